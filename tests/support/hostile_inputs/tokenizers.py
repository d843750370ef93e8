"""Hostile tokenizers: tokenizer.json, SentencePiece models, tiktoken ranks, and the settings beside them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.hostile_inputs.hostile_input import DEFAULTS, FIRST, LAST, MIB, HostileInput
from support.paths import TOKENIZER_MODELS
from support.small_tokenizers import byte_level

LONG = b'{"text": "' + b"t" * 10_000 + b'"}\n'
CONFIG = {**DEFAULTS, "dataset": {"name": "x.jsonl"}, "tokenizer": {**DEFAULTS["tokenizer"], "name_or_path": "tok"}}


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, content in _crafted().items():
        yield _of("tokenizer.json", name, {"tokenizer.json": content})
    good = byte_level().to_str().encode()
    settings = {
        "deep": b"[" * 100_000,
        "a list": b"[]",
        "digits": b'{"model_max_length": %s}' % (b"9" * 9000),
        "a template of 20 MiB": json.dumps({"chat_template": "x" * 20 * MIB}).encode(),
        "templates of a number": b'{"chat_template": 5}',
        "10,000 templates": json.dumps({"chat_template": [{"name": "x", "template": "y"}] * 10_000}).encode(),
        "tokens of numbers": b'{"eos_token": 5, "bos_token": [1]}',
        "a token of 1 MiB": json.dumps({"eos_token": "x" * MIB}).encode(),
        "added tokens of text": b'{"added_tokens_decoder": "x"}',
        "added tokens far away": b'{"added_tokens_decoder": {"99999999999": {"content": "x"}}}',
        "code": b'{"tokenizer_class": "os.system", "auto_map": {"AutoTokenizer": ["../x.Y", null]}}',
        "not UTF-8": b'{"eos_token": "\xff"}',
        "a lone surrogate": rb'{"eos_token": "\ud800"}',
    }
    for name, content in settings.items():
        files = {"tokenizer.json": good, "tokenizer_config.json": content}
        yield _of("tokenizer settings", name, files)
        if name in ("deep", "a list", "not UTF-8"):
            yield _of("tokenizer settings", f"{name} in the map", {**files, "special_tokens_map.json": content})
            yield _of("tokenizer settings", f"{name} in added", {"tokenizer.json": good, "added_tokens.json": content})
    yield from _models()


def _of(kind: str, name: str, files: dict[str, bytes]) -> HostileInput:
    def write(folder: Path) -> None:
        (folder / "x.jsonl").write_bytes(FIRST + LONG + LAST)
        (folder / "tok").mkdir()
        for file, content in files.items():
            (folder / "tok" / file).write_bytes(content)

    return HostileInput(kind, name, write, "", CONFIG)


def _crafted() -> dict[str, bytes]:
    """Return tokenizer.json files."""
    text = byte_level().to_str()

    def changed(**model: Any) -> bytes:
        parsed = json.loads(text)
        parsed["model"].update(model)
        return json.dumps(parsed).encode()

    def topped(**parts: Any) -> bytes:
        return json.dumps({**json.loads(text), **parts}).encode()

    def regex(pattern: str, where: str = "pre_tokenizer") -> bytes:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x" * 1000}
        return topped(**{where: split if where == "pre_tokenizer" else replace})

    vocab = json.loads(text)["model"]["vocab"]
    many = {f"t{n}": n + len(vocab) for n in range(400_000)}
    nested: Any = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    for _ in range(200):
        nested = {"type": "Sequence", "pretokenizers": [nested]}
    return {
        "empty": b"",
        "null": b"null",
        "half": text.encode()[: len(text) // 2],
        "deep": b'{"model":' * 100_000,
        "zeros": bytes(MIB),
        "no model": b'{"added_tokens": []}',
        "a model of a list": topped(model=[]),
        "a model of its own": changed(type="Magic"),
        "a vocabulary of a list": changed(vocab=["a", "b"]),
        "a vocabulary of text": changed(vocab="abc"),
        "no vocabulary": changed(vocab={}, merges=[]),
        "400,000 tokens": changed(vocab={**vocab, **many}),
        "a token of 20 MiB": changed(vocab={**vocab, "x" * 20 * MIB: len(vocab)}),
        "ids of text": changed(vocab={"a": "0", "b": "1"}),
        "ids below zero": changed(vocab={**vocab, "zz": -1}),
        "ids of 2^40": changed(vocab={**vocab, "zz": 1 << 40}),
        "ids of 1.5": changed(vocab={**vocab, "zz": 1.5}),
        "ids of 2^23": changed(vocab={**vocab, "zz": 1 << 23}),
        "one id for all": changed(vocab=dict.fromkeys(vocab, 0)),
        "merges of unknown tokens": changed(merges=[["zz", "yy"]]),
        "merges of text": changed(merges=["a"]),
        "merges of three": changed(merges=[["a", "b", "c"]]),
        "merges of numbers": changed(merges=[[1, 2]]),
        "100,000 equal merges": changed(merges=json.loads(text)["model"]["merges"][:1] * 100_000),
        "an unknown token of its own": changed(unk_token="nowhere"),
        "dropout": changed(dropout=0.9),
        "a suffix of 1 MiB": changed(end_of_word_suffix="x" * MIB),
        "200 pre-tokenizers": topped(pre_tokenizer=nested),
        "a pre-tokenizer of text": topped(pre_tokenizer="x"),
        "an exponential expression": regex("(a+)+$"),
        "an expression with counts": regex("((a{1,1000}){1,1000}){1,1000}"),
        "an expression of nothing": regex(""),
        "an expression that is not valid": regex("((("),
        "100,000 alternatives": regex("|".join(f"t{n}" for n in range(100_000))),
        "a normalizer that grows": regex(".", "normalizer"),
        "a normalizer of nothing": regex("", "normalizer"),
        "four normalizers that grow": topped(normalizer=_sequence([_replace("t", "t" * 100)] * 4)),
        "two normalizers that grow": topped(normalizer=_sequence([_replace("t", "t" * 60)] * 2)),
        "look-aheads that grow": topped(normalizer=_sequence([_replace("(?=t)", "t", "Regex")] * 40)),
        "30 normalizers of bytes": topped(normalizer=_sequence([{"type": "ByteLevel"}] * 30)),
        "a start of 5 MiB": topped(normalizer={"type": "Prepend", "prepend": "t" * 5 * MIB}),
        "an added token of 5 MiB": topped(
            added_tokens=[{"id": len(vocab), "content": "t" * 5 * MIB, "special": False, "normalized": True}]
        ),
        "a prefix of 1 MiB": changed(continuing_subword_prefix="x" * MIB),
        "words without end": topped(
            model={"type": "WordPiece", "unk_token": "t", "vocab": {"t": 0, "##t": 1, "</s>": 2}}
            | {"continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9},
            pre_tokenizer=None,
            added_tokens=[],
        ),
        "pieces without end": topped(
            model={
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [["</s>", 0.0], *(["t" * n, -1.0] for n in range(1, 3000))],
            },
            pre_tokenizer=None,
            added_tokens=[],
        ),
        "a map of characters": topped(normalizer={"type": "Precompiled", "precompiled_charsmap": "//////8="}),
        "added tokens of numbers": topped(added_tokens=[1, 2]),
        "added tokens without ids": topped(added_tokens=[{"content": "x"}]),
        "100,000 added tokens": topped(
            added_tokens=[
                {"id": len(vocab) + n, "content": f"<{n}>", "single_word": False, "lstrip": False, "rstrip": False}
                | {"normalized": False, "special": True}
                for n in range(100_000)
            ]
        ),
        "an empty added token": topped(added_tokens=[{"id": len(vocab), "content": "", "special": True}]),
        "truncation to 1": topped(
            truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
        ),
        "padding to 2^40": topped(
            padding={"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None}
            | {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
        ),
        "a post-processor of unknown tokens": topped(
            post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "zz", "type_id": 0}}]}
            | {"pair": [], "special_tokens": {}}
        ),
        "a decoder of its own": topped(decoder={"type": "Magic"}),
        "a version of its own": topped(version="9.9"),
        "a name twice": text.replace('"model"', '"added_tokens": [], "model"', 1).encode(),
    }


def _replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _sequence(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": steps}


def _models() -> Iterator[HostileInput]:
    """Yield SentencePiece models and tiktoken ranks."""
    model = (TOKENIZER_MODELS / "bpe.model").read_bytes()
    ranks = b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256))
    files = {
        "tokenizer.model": {
            "half": model[: len(model) // 2],
            "zeros": bytes(10_000),
            "noise": bytes(range(256)) * 100,
            "an endless field": b"\x0a\xff\xff\xff\xff\x0f" + bytes(100),
            "one piece a million times": b"\x0a\x0a\x0a\x01a\x15\0\0\x80?\x18\x01" * 1_000_000,
            "deep groups": b"\x0b" * 100_000,
        },
        "x.tiktoken": {
            "no number": ranks + b"YWI= x\n",
            "a rank below zero": ranks + b"YWI= -1\n",
            "a rank of 2^70": ranks + b"YWI= %d\n" % (1 << 70),
            "a rank twice": ranks + b"YWI= 5\n",
            "a token twice": ranks + b"YQ== 256\n",
            "bad base64": ranks + b"!!! 256\n",
            "a token of 8 MiB": ranks + base64.b64encode(b"x" * 8 * MIB) + b" 256\n",
            "no bytes": b"YWI= 0\n",
            "only line ends": b"\n" * MIB,
            "half": ranks[:1000],
        },
    }
    for file, contents in files.items():
        for name, content in contents.items():
            yield _of(file, name, {file: content})

    def fifo(folder: Path) -> None:
        (folder / "x.jsonl").write_bytes(FIRST + LAST)
        (folder / "tok").mkdir()
        os.mkfifo(folder / "tok" / "tokenizer.json")

    yield HostileInput("tokenizer.json", "a FIFO", fifo, "[12]: ", CONFIG)
    config = {**CONFIG, "tokenizer": {"name_or_path": "/dev/zero"}}
    yield HostileInput(
        "tokenizer.json", "a device", lambda folder: (folder / "x.jsonl").write_bytes(FIRST), "2: ", config
    )
