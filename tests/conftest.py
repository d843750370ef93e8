"""Shared fixtures: real data where it is there, YAML files, small tokenizers, and Hypothesis profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

pytest.register_assert_rewrite("canonical_rows", "rendered_prompts", "raw_rows", "loaded_rows")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=_QUIET)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=_QUIET)
settings.load_profile("soak" if os.environ.get("TOKENLOOM_SOAK") == "1" else "default")

CONTROL = (
    "<s>",
    "</s>",
    "<|pad|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
)

CORPUS = (
    "Below is an instruction that describes a task. Write a response that completes the request.",
    "### Instruction: name three primary colours. ### Response: red, blue and yellow",
    "the quick brown fox jumps over the lazy dog; the dog sleeps, the fox runs on and on",
    "user assistant system tool answer question hello world what is the answer to everything",
    "Grüße aus Köln, naïve café, ça va? Привет мир, как дела? 你好世界，今天天气怎么样？ مرحبا بالعالم",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 100 1000 3.14159 (a + b) * c == d; return x[i] {y: 'z'}",
)

WriteConfig = Callable[..., Path]
SaveTokenizer = Callable[..., Path]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files that $TOKENLOOM_REAL_DATA names."""
    folder = os.environ.get("TOKENLOOM_REAL_DATA")
    if not folder:
        pytest.skip(
            "TOKENLOOM_REAL_DATA is not set: it names the folder with real data files, tokenizers and templates"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def write_config() -> WriteConfig:
    """Writes a YAML file of the sections given and returns its path; `name` is the file's stem."""

    def write(folder: Path, name: str = "data", **sections: Any) -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def save_tokenizer() -> SaveTokenizer:
    """Writes a tokenizer and its config as a folder that `from_pretrained` loads."""

    def save(tokenizer: Tokenizer, folder: Path, **config: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        found = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(found), encoding="utf-8")
        return folder

    return save


def byte_level(control: Iterable[str] = CONTROL, vocab_size: int = 500) -> Tokenizer:
    """A byte-level BPE without a normalizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in control]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Path:
    """A byte-level BPE with many control tokens that adds nothing by itself."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
    return save_tokenizer(byte_level(), tmp_path_factory.mktemp("tokenizer"), **names)


@pytest.fixture(scope="session")
def bos_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, save_tokenizer: SaveTokenizer) -> Path:
    """The same tokenizer, putting BOS before every text."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
    return save_tokenizer(tokenizer, tmp_path_factory.mktemp("bos_tokenizer"), **names)
