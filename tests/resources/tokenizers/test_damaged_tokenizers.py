"""Damaged and hostile tokenizer files: one sentence with the line of the YAML, exit code 2, no code is run."""

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
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("tokenizer.json", "{}")
    return data.getvalue()


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a tokenizer.json with a change."""
    parsed = json.loads(byte_level((), 300).to_str())
    change(parsed)
    return json.dumps(parsed).encode()


def put(path: str, value: object) -> bytes:
    """Return a tokenizer.json with another value at `section` or `section.key`."""
    section, _, key = path.partition(".")
    return changed(lambda parsed: parsed[section].update({key: value}) if key else parsed.update({section: value}))


def token(content: object, id: object) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, "special": True, **flags}


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "cut model": ("t.model", MODEL[:5000], "is truncated"),
    "model without its last byte": ("t.model", MODEL[:-1], "is truncated"),
    "empty model": ("t.model", b"", "contains no pieces"),
    "zeros": ("t.model", bytes(1000), "contains no pieces"),
    "pickle": ("t.model", pickle.dumps(Evil()), "not a protocol buffer"),
    "pickle as json": ("tokenizer.json", pickle.dumps(Evil()), "not a protocol buffer"),
    "zip": ("t.model", archive(), "not a protocol buffer"),
    "text": ("t.model", b"hello world\n", "not a protocol buffer"),
    "flipped": ("t.model", MODEL[:100] + b"\xff\xff\xff\xff" + MODEL[104:], "is damaged"),
    "twice": ("t.model", MODEL + MODEL[:40], "occurs twice|is truncated"),
    "bad line": ("t.tiktoken", RANKS.replace(b"IQ==", b"I*==", 1), "line 1 is not a token in base64"),
    "rank twice": ("t.tiktoken", RANKS + b"enp6eg== 5\n", "two tokens share a rank"),
    "token twice": ("t.tiktoken", RANKS + b"IQ== 700\n", "line 701 repeats a token"),
    "gap": ("t.tiktoken", RANKS + b"enp6eg== 900\n", "no token has the rank 700"),
    "no byte": ("t.tiktoken", b"\n".join(RANKS.splitlines()[:50]), "no token for the byte 0x00"),
    "huge rank": ("t.tiktoken", RANKS + b"enp6eg== 99999999999\n", "line 701 is not a token"),
    "endless token": ("t.tiktoken", RANKS + b"A" * 4_000_000 + b" 700\n", "line 701 has a token of 3,000,000 bytes"),
    "empty ranks": ("t.tiktoken", b"", "no token for the byte 0x00"),
    "another encoding": ("cl100k_base.tiktoken", RANKS, "700 ranks, but a special token has the id 100,276"),
    "list": ("tokenizer.json", b"[]", "not a JSON object"),
    "nothing": ("tokenizer.json", b"{}", "must contain a model with a vocabulary"),
    "half": ("tokenizer.json", b"{", "not valid JSON"),
    "deep": ("tokenizer.json", b"[" * 100_000, "not valid JSON"),
    "null model": ("tokenizer.json", put("model", None), "must contain a model with a vocabulary"),
    "text as id": ("tokenizer.json", put("model.vocab", {"a": "b"}), "'a' has the id 'b'"),
    "true as id": ("tokenizer.json", put("model.vocab", {"a": True}), "'a' has the id True"),
    "negative id": ("tokenizer.json", put("model.vocab", {"a": -1}), "'a' has the id -1, but ids must be"),
    "huge id": ("tokenizer.json", put("model.vocab", {"a": 1 << 40}), "'a' has the id 1099511627776"),
    "far id": ("tokenizer.json", put("model.vocab", {"a": 0, "b": 9_000_000}), "wide gaps"),
    "shared id": ("tokenizer.json", put("model.vocab", {"a": 5, "b": 5}), "'a' and 'b' share the id 5"),
    "no merges": ("tokenizer.json", put("model.merges", [["q", "nope"]]), "cannot be loaded: .*nope"),
    "added text": ("tokenizer.json", put("added_tokens", "x"), "must contain a model with a vocabulary"),
    "added number": ("tokenizer.json", put("added_tokens", [token(5, 1)]), "which is not a token"),
    "added shared id": ("tokenizer.json", put("added_tokens", [token("<x>", 5)]), "share the id 5"),
    "unknown part": ("tokenizer.json", put("pre_tokenizer", {"type": "Evil"}), "cannot be loaded"),
    "bad processor": ("tokenizer.json", put("post_processor", [1]), "cannot be loaded"),
    "bad table": (
        "tokenizer.json",
        put("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        "precompiled_charsmap is damaged",
    ),
}


def build_error(
    folder: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> str:
    """Return what a build with the tokenizer `name` prints to stderr."""
    monkeypatch.chdir(folder)
    (folder / "rows.jsonl").write_text('{"text": "hello"}\n')
    config = write_config(folder, dataset={"name": "rows.jsonl"}, tokenizer={"name_or_path": name})
    assert main(["build", str(config), "--store", str(folder / "store")]) == 2
    message = capfd.readouterr().err.strip()
    assert not (folder / "unpickled").exists() and not (folder / "store").exists()
    return message


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_vocabulary_is_reported_in_one_sentence(
    tmp_path: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    name, content, expected = DAMAGED[kind]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(PATTERN))
    message = build_error(tmp_path, write_config, monkeypatch, capfd, name)
    assert message.startswith(f"{tmp_path}/data.yaml:4: tokenizer.name_or_path: {name}") and "\n" not in message
    assert re.search(expected, message), message


SETTINGS: dict[str, tuple[str, bytes, str]] = {
    "list": ("tokenizer_config.json", b"[]", "tokenizer_config.json is not a JSON object"),
    "half": ("special_tokens_map.json", b"{", "special_tokens_map.json is not valid JSON"),
    "bytes": ("added_tokens.json", b"\xff\xfe", "added_tokens.json is not valid JSON"),
    "number as token": ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token: 5 is not a token"),
    "object as token": ("tokenizer_config.json", b'{"bos_token": {"text": "a"}}', "bos_token: .* is not a token"),
    "text as flag": ("tokenizer_config.json", b'{"bos_token": {"content": "a", "lstrip": "x"}}', "is not a token"),
    "word as id": (
        "tokenizer_config.json",
        b'{"added_tokens_decoder": {"x": {"content": "a"}}}',
        "'x' is not a token id",
    ),
    "list as decoder": (
        "tokenizer_config.json",
        b'{"added_tokens_decoder": []}',
        "added_tokens_decoder is not a JSON obj",
    ),
    "number as extra": ("tokenizer_config.json", b'{"extra_special_tokens": 5}', "extra_special_tokens must be a list"),
    "number as template": ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template must be a string"),
    "no template": ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not valid UTF-8"),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_damaged_settings_are_reported_in_one_sentence(
    tmp_path: Path,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    name, content, expected = SETTINGS[kind]
    (tmp_path / "tok").mkdir()
    byte_level((), 300).save(str(tmp_path / "tok" / "tokenizer.json"))
    (tmp_path / "tok" / name).write_bytes(content)
    message = build_error(tmp_path, write_config, monkeypatch, capfd, "tok")
    assert message.startswith(f"{tmp_path}/data.yaml:4: tokenizer.name_or_path: tok: ") and "\n" not in message
    assert re.search(expected, message), message
