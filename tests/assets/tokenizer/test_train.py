"""`train:` a byte-level BPE: the same bytes for any engine, no control tokens from plain text, and reuse by name."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.builds import build
from support.datasets_on_disk import PROMPT, TOKENIZER, rows, write_dataset
from support.paths import TESTS
from support.processes import run_together
from tokenloom.assets.tokenizer.stage import train
from tokenloom.config import PipelineConfig, TrainConfig
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import TOKENIZER as FILE
from tokenloom.resources.tokenizers import TokenizerSpec, resolve_tokenizer

PROGRAM = """
import sys
from pathlib import Path
from support.builds import build
from tokenloom.resources.store import ArtifactStore
build(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3]))
print(ArtifactStore(sys.argv[2]).manifest("small", "tokenizer").facts["digest"])
"""


def spec(*control: str) -> TokenizerSpec:
    return TokenizerSpec({}, None, control[0], None, None, control, None, None)


def trained(texts: list[str], vocab_size: int = 400, control: tuple[str, ...] = ("</s>", "<|user|>")) -> Tokenizer:
    content = train([pa.array(texts, pa.string())], TrainConfig(vocab_size=vocab_size), spec(*control))
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_training_gives_the_same_bytes_with_any_engine(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 600)
    kinds = [(1, "1", "false"), (2, "2", "true"), (4, "4", "true"), (4, "1", "true")]
    commands = []
    for at, (workers, threads, parallel) in enumerate(kinds):
        own = {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel, "PYTHONHASHSEED": at}
        variables = ["env", *(f"{name}={value}" for name, value in own.items())]
        commands.append([*variables, sys.executable, "-c", PROGRAM, config, tmp_path / f"store{at}", workers])
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    digests = {done.stdout.strip() for done in run_together(commands, env={**os.environ, "PYTHONPATH": paths})}
    assert len(digests) == 1 and len(digests.pop()) == 64
    files = {path.read_bytes() for path in tmp_path.glob("store*/tokenizers/*/tokenizer.json")}
    assert len({hashlib.sha256(content).digest() for content in files}) == 1


literal = st.sampled_from(["</s>", "<|user|>", "</", "s>", "<|", "user", "|>", "x", " "])


@given(st.lists(st.lists(literal, max_size=12).map("".join), min_size=1, max_size=6))
def test_no_merge_makes_a_control_token_of_plain_text(texts: list[str]) -> None:
    tokenizer = trained([*texts * 20, "</s>" * 50, "<|user|>" * 50])
    control = {tokenizer.token_to_id(token) for token in ("</s>", "<|user|>")}
    assert control == {0, 1}
    for text in [*texts, "</s>", "a</s>b <|user|>"]:
        found = tokenizer.encode(text, add_special_tokens=False).ids
        assert not control & set(found)
        assert tokenizer.decode(found) == text


@pytest.mark.parametrize("token", ["a", "Ġthe", "Ċ"])
def test_a_control_token_that_plain_text_can_produce_is_refused(token: str) -> None:
    with pytest.raises(TokenizerError, match="is also a token of plain text"):
        trained([" the the the\n" * 50], control=(token,))


@pytest.mark.parametrize("vocab_size", [258, 259, 300])
def test_a_vocabulary_too_small_for_bytes_and_special_tokens_is_refused(vocab_size: int) -> None:
    special = {"eos": "</s>", "pad": "<pad>", "additional": ["<|user|>"]}
    tokenizer = {"train": {"vocab_size": vocab_size}, "special_tokens": special}
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "tokenizer": tokenizer})
    if vocab_size < 259:
        with pytest.raises(ConfigError, match=r"vocab_size: 256 bytes and 3 special tokens need at least 259"):
            resolve_tokenizer(config)
    else:
        resolve_tokenizer(config)
        assert trained(["ab " * 50], vocab_size, ("</s>", "<pad>", "<|user|>")).get_vocab_size() <= vocab_size


def test_the_vocabulary_size_is_reported(tmp_path: Path) -> None:
    tokenizer = {**TOKENIZER, "train": {"vocab_size": 50_000, "min_frequency": 3}}
    report = build(write_dataset(tmp_path, 200, tokenizer=tokenizer), tmp_path / "store")["tokenizer"]
    facts = ArtifactStore(tmp_path / "store").manifest("small", "tokenizer").facts
    (file,) = (tmp_path / "store" / "tokenizers").rglob(FILE)
    size = Tokenizer.from_file(str(file)).get_vocab_size()
    assert report.counters["vocab_size"] == facts["vocab_size"] == size < 50_000


def test_naming_the_trained_tokenizer_freezes_it(tmp_path: Path) -> None:
    config, store = write_dataset(tmp_path, 300), tmp_path / "store"
    first = build(config, store)
    digest = ArtifactStore(store).manifest("small", "tokenizer").facts["digest"]
    settings = yaml.safe_load(config.read_text())
    settings["tokenizer"] = {"name_or_path": f"store/tokenizers/{digest}", "max_length": TOKENIZER["max_length"]}
    config.write_text(yaml.safe_dump(settings))
    frozen = build(config, store)
    reused = {name for name, report in frozen.items() if report.chunks_reused == report.chunks}
    assert reused >= {"raw", "schema", "columns", "prompts", "tokens", "sequences"}
    assert frozen["sequences"].digest == first["sequences"].digest
    assert ArtifactStore(store).manifest("small", "tokenizer").facts["digest"] == digest
    with (tmp_path / "small.jsonl").open("a") as file:
        file.write(json.dumps(rows(1, seed=9)[0]) + "\n")
    grown = build(config, store)
    assert ArtifactStore(store).manifest("small", "tokenizer").facts["digest"] == digest
    assert grown["tokens"].chunks - grown["tokens"].chunks_reused <= 2
    assert PROMPT["format_type"] == settings["prompt_template"]["format_type"]
