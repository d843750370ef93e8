"""Tokenizers that treat white space before an answer in every way: trained on the rows, or real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from support.tokenizer_kits import made

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
MADE = ("bpe", "llama-3", "sentencepiece", "sentencepiece without prefix", "unigram", "unigram of spaces", "wordpiece")
REAL = ("phi-2", "bert-base-cased")


def write_tokenizer(name: str, folder: Path, lines: Iterable[str], data: Path | None = None) -> Path:
    """Write the tokenizer.json of a name, with the tokens of `CONTROL`."""
    if name in REAL and data is not None:
        written = (data / "tokenizers" / name / "tokenizer.json").read_text(encoding="utf-8")
    elif name.startswith("sentencepiece"):
        written = _pieces(lines, prefix=name == "sentencepiece")
    elif name == "unigram of spaces":
        written = _spaces(lines)
    else:
        written = made(name, lines).to_str()
    parsed = json.loads(written)
    vocabulary, added = parsed["model"]["vocab"], parsed["added_tokens"]
    top = max(len(vocabulary), *(token["id"] + 1 for token in added))
    known = {token["content"] for token in added}
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    missing = [token for token in CONTROL if token not in known]
    added += [{"id": top + number, "content": token, **kinds} for number, token in enumerate(missing)]
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(parsed), encoding="utf-8")
    return folder


def _pieces(lines: Iterable[str], prefix: bool) -> str:
    """Return a BPE like Llama 2's: pieces within words, spaces as marks at their start, the rest as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    words = [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split("\n", "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    special = ["<unk>", *CONTROL]
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parsed = json.loads(tokenizer.to_str())
    vocabulary = parsed["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    parsed["model"]["byte_fallback"] = True
    return json.dumps(parsed)


def _spaces(lines: Iterable[str]) -> str:
    """Return a Unigram like XLM-RoBERTa's: line breaks are spaces, and runs of spaces are one."""
    tokenizer = Tokenizer(models.Unigram())
    one = [normalizers.Replace("\n", " "), normalizers.Replace("  ", " ")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *one])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<unk>", *CONTROL]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.to_str()
