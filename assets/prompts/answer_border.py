"""The border between prompt and answer: white space that a tokenizer joins to the answer belongs to the answer.

A prompt for inference ends at the border, and the trained text begins there. The ids of the prompt are a prefix of the
row's ids if no token of the row straddles the border, and if the end of the prompt is not cut differently when a word
follows. Which white space can end a prompt depends on how the tokenizer cuts texts into words:

- `breaks`: line breaks end it, spaces begin the answer. In `:\\n` a line break is joined to what comes before it
  (Llama 3, Qwen), and in ` word` a space to what comes after it.
- `last`: as `breaks`, but of several white-space characters with a line break the last one begins the answer: before a
  word they are cut apart, at the end of a text they are not (GPT-2, and tokenizers trained here).
- `none`: all white space begins the answer, as line breaks become spaces (SentencePiece with NFKC).
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any, Literal

import msgspec
import numpy as np

from tokenloom.resources.tables.ragged import Ints
from tokenloom.resources.tokenizers import TOKENIZER, TokenizerSpec, naming_tokenizer

Rule = Literal["breaks", "last", "none"]
_RULES: tuple[Rule, ...] = ("breaks", "last", "none")

SPACE = np.isin(np.arange(256), list(b" \t\v\f\r\n"))
"""Bool [256]: which bytes are white space."""

_BLANK = np.isin(np.arange(256), list(b" \t\v\f"))

_TRAINED = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""The pre-tokenizer of tokenizers that a build trains."""

_PROBES = [*product(("a", "a:"), (" ", "\n", "\n\n", "\n "), ("b", "B", "1", "("))]


class _Cutting(msgspec.Struct):
    """What cuts a text into words, in a tokenizer.json."""

    normalizer: Any = None
    pre_tokenizer: Any = None


def border_rule(spec: TokenizerSpec) -> Rule:
    """Return which white space can end a prompt: the first rule with which every probe's prompt is cut as its row is.

    Only the normalizer and the pre-tokenizer are loaded. If they do not cut texts, it is `breaks`: without them,
    the merges alone decide, which no lookahead changes.
    """
    cutting = _Cutting(None, _TRAINED)
    if spec.files:
        cutting = msgspec.json.decode(spec.files[TOKENIZER], type=_Cutting)
    words = _words(cutting)
    for rule in _RULES:
        if all(_holds(rule, words, *probe) for probe in _PROBES):
            return rule
    return "breaks"


def _words(cutting: _Cutting) -> Any:
    """Return the tokenizer that cuts texts into words, and knows no words."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    parts = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None, "decoder": None}
    cut = {"normalizer": cutting.normalizer, "pre_tokenizer": cutting.pre_tokenizer}
    with naming_tokenizer("cannot be loaded"):
        return Tokenizer.from_str(json.dumps({"version": "1.0", **parts, **cut, "model": model}))


def _holds(rule: Rule, words: Any, before: str, space: str, answer: str) -> bool:
    """Return whether a prompt that ends as the rule says is cut as the row that starts with it."""
    data = np.frombuffer((before + space).encode(), np.uint8)
    size = len(data) - int(moved(data, np.array([len(data)]), np.array([0]), rule)[0])
    prompt, row = (words.encode(text).offsets for text in ((before + space)[:size], before + space + answer))
    return row[: len(prompt)] == prompt and all(start >= size for start, _ in row[len(prompt) :])


def moved(data: np.ndarray, border: Ints, first: Ints, rule: Rule) -> Ints:
    """Return int64: how many bytes of white space before each border begin the answer.

    Args:
        data: uint8, UTF-8.
        border, first: int64, positions in the data: where the answer starts, and the least that its border can be.
    """
    space, blank = run_before(data, border, first), run_before(data, border, first, _BLANK)
    if rule == "none":
        return space
    return np.where(space > np.maximum(blank, 1), 1, blank) if rule == "last" else blank


def run_before(data: np.ndarray, border: Ints, first: Ints, members: np.ndarray = SPACE) -> Ints:
    """Return int64: how many bytes right before each border, down to `first`, are members, bool [256]."""
    found = np.zeros(len(border), np.int64)
    active = np.flatnonzero(border > first)
    while len(active):
        active = active[members[data[border[active] - found[active] - 1]]]
        found[active] += 1
        active = active[border[active] - found[active] > first[active]]
    return found
