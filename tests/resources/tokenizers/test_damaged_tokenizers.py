"""Damaged and hostile tokenizer files: one sentence at the YAML's line, exit code 2, and nothing runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOKENIZER_MODELS
from support.small_tokenizers import WriteConfig, byte_level
from tokenloom.cli import main

MODEL, RANKS = (TOKENIZER_MODELS / "bpe.model").read_bytes(), (TOKENIZER_MODELS / "trained.tiktoken").read_bytes()
PATTERN = {"pat_str": r"\S+|\s+"}


class Evil:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


def archive() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("tokenizer.json", "{}")
    return made.getvalue()


def written(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A tokenizer.json with a change."""
    parsed = json.loads(byte_level((), 300).to_str())
    change(parsed)
    return json.dumps(parsed).encode()


def put(path: str, value: object) -> bytes:
    """A tokenizer.json with another value at `section` or `section.key`."""
    section, _, key = path.partition(".")
    return written(lambda parsed: parsed[section].update({key: value}) if key else parsed.update({section: value}))


def token(content: object, id: object) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, "special": True, **flags}


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "cut model": ("t.model", MODEL[:5000], "cut off"),
    "model without its last byte": ("t.model", MODEL[:-1], "cut off"),
    "empty model": ("t.model", b"", "holds no pieces"),
    "zeros": ("t.model", bytes(1000), "holds no pieces"),
    "pickle": ("t.model", pickle.dumps(Evil()), "no protocol buffer"),
    "pickle as json": ("tokenizer.json", pickle.dumps(Evil()), "no protocol buffer"),
    "zip": ("t.model", archive(), "no protocol buffer"),
    "text": ("t.model", b"hello world\n", "no protocol buffer"),
    "flipped": ("t.model", MODEL[:100] + b"\xff\xff\xff\xff" + MODEL[104:], "is damaged"),
    "twice": ("t.model", MODEL + MODEL[:40], "there twice|cut off"),
    "bad line": ("t.tiktoken", RANKS.replace(b"IQ==", b"I*==", 1), "line 1 is not a token in base64"),
    "rank twice": ("t.tiktoken", RANKS + b"enp6eg== 5\n", "two tokens share a rank"),
    "token twice": ("t.tiktoken", RANKS + b"IQ== 700\n", "line 701 holds a token for the second time"),
    "gap": ("t.tiktoken", RANKS + b"enp6eg== 900\n", "no token has the rank 700"),
    "no byte": ("t.tiktoken", b"\n".join(RANKS.splitlines()[:50]), "no token for the byte 0x00"),
    "huge rank": ("t.tiktoken", RANKS + b"enp6eg== 99999999999\n", "line 701 is not a token"),
    "endless token": ("t.tiktoken", RANKS + b"A" * 4_000_000 + b" 700\n", "line 701 holds a token of 3,000,000 bytes"),
    "empty ranks": ("t.tiktoken", b"", "no token for the byte 0x00"),
    "another encoding": ("cl100k_base.tiktoken", RANKS, "700 ranks, but a special token has the id 100,276"),
    "list": ("tokenizer.json", b"[]", "no JSON object"),
    "nothing": ("tokenizer.json", b"{}", "no model with a vocabulary"),
    "half": ("tokenizer.json", b"{", "no JSON"),
    "deep": ("tokenizer.json", b"[" * 100_000, "no JSON"),
    "null model": ("tokenizer.json", put("model", None), "no model with a vocabulary"),
    "text as id": ("tokenizer.json", put("model.vocab", {"a": "b"}), "'a' has the id 'b'"),
    "true as id": ("tokenizer.json", put("model.vocab", {"a": True}), "'a' has the id True"),
    "negative id": ("tokenizer.json", put("model.vocab", {"a": -1}), "'a' has the id -1"),
    "huge id": ("tokenizer.json", put("model.vocab", {"a": 1 << 40}), "'a' has the id 1099511627776"),
    "far id": ("tokenizer.json", put("model.vocab", {"a": 0, "b": 9_000_000}), "wide gaps"),
    "shared id": ("tokenizer.json", put("model.vocab", {"a": 5, "b": 5}), "'a' and 'b' share the id 5"),
    "no merges": ("tokenizer.json", put("model.merges", [["q", "nope"]]), "cannot be loaded: .*nope"),
    "added text": ("tokenizer.json", put("added_tokens", "x"), "no model with a vocabulary"),
    "added number": ("tokenizer.json", put("added_tokens", [token(5, 1)]), "which is no token"),
    "added shared id": ("tokenizer.json", put("added_tokens", [token("<x>", 5)]), "share the id 5"),
    "unknown part": ("tokenizer.json", put("pre_tokenizer", {"type": "Evil"}), "cannot be loaded"),
    "bad processor": ("tokenizer.json", put("post_processor", [1]), "cannot be loaded"),
    "bad table": (
        "tokenizer.json",
        put("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        "precompiled_charsmap is damaged",
    ),
}


def told(
    folder: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> str:
    """What a build says of the tokenizer `name`."""
    monkeypatch.chdir(folder)
    (folder / "rows.jsonl").write_text('{"text": "hello"}\n')
    config = write_config(folder, dataset={"name": "rows.jsonl"}, tokenizer={"name_or_path": name})
    assert main(["build", str(config), "--store", str(folder / "store")]) == 2
    said = capfd.readouterr().err.strip()
    assert not (folder / "unpickled").exists() and not (folder / "store").exists()
    return said


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_vocabulary_is_one_sentence_at_its_line(
    tmp_path: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    name, content, message = DAMAGED[kind]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(PATTERN))
    said = told(tmp_path, write_config, monkeypatch, capfd, name)
    assert said.startswith(f"{tmp_path}/data.yaml:4: tokenizer.name_or_path: {name}") and "\n" not in said
    assert re.search(message, said), said


SETTINGS: dict[str, tuple[str, bytes, str]] = {
    "list": ("tokenizer_config.json", b"[]", "tokenizer_config.json is no JSON object"),
    "half": ("special_tokens_map.json", b"{", "special_tokens_map.json is no JSON"),
    "bytes": ("added_tokens.json", b"\xff\xfe", "added_tokens.json is no JSON"),
    "number as token": ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token: 5 is no token"),
    "object as token": ("tokenizer_config.json", b'{"bos_token": {"text": "a"}}', "bos_token: .* is no token"),
    "text as flag": ("tokenizer_config.json", b'{"bos_token": {"content": "a", "lstrip": "x"}}', "is no token"),
    "word as id": ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {"content": "a"}}}', "'x' is no token id"),
    "list as decoder": (
        "tokenizer_config.json",
        b'{"added_tokens_decoder": []}',
        "added_tokens_decoder is no JSON obj",
    ),
    "number as extra": ("tokenizer_config.json", b'{"extra_special_tokens": 5}', "extra_special_tokens is neither"),
    "number as template": ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is no text"),
    "no template": ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is no UTF-8"),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_damaged_settings_are_one_sentence_at_their_line(
    tmp_path: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    name, content, message = SETTINGS[kind]
    (tmp_path / "tok").mkdir()
    byte_level((), 300).save(str(tmp_path / "tok" / "tokenizer.json"))
    (tmp_path / "tok" / name).write_bytes(content)
    said = told(tmp_path, write_config, monkeypatch, capfd, "tok")
    assert said.startswith(f"{tmp_path}/data.yaml:4: tokenizer.name_or_path: tok: ") and "\n" not in said
    assert re.search(message, said), said
