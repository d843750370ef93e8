"""Shared fixtures: real data where it is there, YAML files, small tokenizers, and Hypothesis profiles."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, processors

from support.masked_platform import MASKED, mask
from support.small_tokenizers import SaveTokenizer, WriteConfig, byte_level

pytest.register_assert_rewrite("canonical_rows", "rendered_prompts", "raw_rows", "loaded_rows")

if MASKED:
    mask()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=_QUIET)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=_QUIET)
settings.load_profile("soak" if os.environ.get("TOKENLOOM_SOAK") == "1" else "default")


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
