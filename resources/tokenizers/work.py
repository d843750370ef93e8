"""Bounds the work that a tokenizer.json can cause: how much longer it makes a text, and how long its words are.

`tokenizers` holds a normalized text as a whole, with two numbers for each byte, and ends the process if memory is
short. So what a normalizer can do is computed from its steps, before it runs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tokenloom.errors import TokenizerError
from tokenloom.resources.tokenizers.tokenizer_json import LONGEST, naming_tokenizer

MOST_GROWTH = 1 << 12
"""Most characters that one can become."""

MOST_CHARACTERS = 40 << 20
"""Most characters that texts which are tokenized at once become, or four times theirs if that is more."""

LONGEST_WORD = 1000
"""Most characters of a word of WordPiece, whose work grows with their square. Known tokenizers have 100."""

_CAN_BE_EMPTY = re.compile(r"[?*^$|]|\\[bBAzZG]|\{[0,]|\A\Z")
"""What a pattern has that can match between two characters."""


class _Parts(msgspec.Struct):
    normalizer: Any = None
    pre_tokenizer: Any = None


def _steps(part: Any, inner: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, without those that are not valid."""
    if isinstance(part, dict) and isinstance(part.get(inner), list):
        for each in part[inner]:
            yield from _steps(each, inner)
    elif isinstance(part, dict):
        yield part


def _growth(step: dict[str, Any]) -> float:
    """Return how many characters a step makes of one at most."""
    kind, content, pattern = step.get("type"), step.get("content"), step.get("pattern")
    if kind == "ByteLevel":
        return 2.0
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend")))
    if kind == "Replace" and isinstance(content, str) and isinstance(pattern, dict):
        if isinstance(text := pattern.get("String"), str):
            return max(len(content) / len(text) if text else len(content) + 1, 1.0)
        empty = bool(content) and _CAN_BE_EMPTY.search(str(pattern.get("Regex"))) is not None
        return max(len(content) + empty, 1.0)
    if kind == "Precompiled" and isinstance(table := step.get("precompiled_charsmap"), str):
        try:
            decoded = base64.b64decode(table)
        except (binascii.Error, ValueError):
            return 1.0
        texts = decoded[4 + int.from_bytes(decoded[:4], "little") :].split(b"\0")
        return max(len(max(texts, key=len).decode(errors="replace")), 1.0)
    return 1.0


def growth(steps: Sequence[dict[str, Any]]) -> float:
    """Return how many characters steps make of one at most, one after the other.

    A text that replaces one is replaced again only by a pattern with a character of it.
    """
    found, made, any_made = 1.0, set[str](), False
    for step in steps:
        once, is_replace = _growth(step), step.get("type") == "Replace"
        pattern, content = step.get("pattern"), step.get("content")
        text = pattern.get("String") if is_replace and isinstance(pattern, dict) else None
        apart = isinstance(text, str) and text != "" and made.isdisjoint(text) and not any_made
        found = min(max(found, once) if apart else found * once, 1e30)
        any_made |= not is_replace and found > 1
        made |= {*content} if isinstance(content, str) else set()
    return found


def check_work(parsed: dict[str, Any]) -> None:
    """Refuse a tokenizer.json that can make far more of a text than any known one.

    Raises:
        TokenizerError: the message names the part.
    """
    model: Any = parsed.get("model")
    steps = [*_steps(parsed.get("normalizer"), "normalizers"), *_steps(parsed.get("pre_tokenizer"), "pretokenizers")]
    added = [len(token["content"]) for token in parsed["added_tokens"] if token.get("normalized", True)]
    texts = {name: str(model.get(name) or "") for name in ("continuing_subword_prefix", "end_of_word_suffix")}
    if isinstance(model["vocab"], list):
        texts["vocab"] = max((piece for piece, _ in model["vocab"] if isinstance(piece, str)), key=len, default="")
    long = next((name for name, text in texts.items() if len(text) > LONGEST), None)
    word = model.get("max_input_chars_per_word")
    if long is not None:
        reason = f"{long} has a text of {len(texts[long]):,} characters, but at most {LONGEST:,} are supported"
    elif isinstance(word, int) and word > LONGEST_WORD:
        reason = f"max_input_chars_per_word is {word:,}, but at most {LONGEST_WORD:,} is supported; 100 is usual"
    elif (most := growth(steps)) > MOST_GROWTH:
        reason = f"its normalizer can make {most:,.0f} characters of one, more than {MOST_GROWTH:,}"
    elif most * sum(added) > MOST_CHARACTERS:
        reason = f"its normalizer can make {most * sum(added):,.0f} characters of the added tokens"
    else:
        return
    raise TokenizerError(f"tokenizer.json: {reason}; use the file of a trained tokenizer")


class NormalizerBounds:
    """Checks what a normalizer makes of texts that it could make too long, a step at a time.

    Args:
        content: tokenizer.json.
    """

    def __init__(self, content: bytes):
        parts = msgspec.json.decode(content, type=_Parts)
        self._steps, after = [*_steps(parts.normalizer, "normalizers")], _steps(parts.pre_tokenizer, "pretokenizers")
        self._after = growth([*after])
        self.growth = growth(self._steps) * self._after

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that take too much memory if they are normalized.

        Raises:
            TokenizerError: they do.
        """
        size = sum(map(len, texts))
        most = max(MOST_CHARACTERS, 4 * size)
        if size * self.growth <= most:
            return
        from tokenizers import Tokenizer

        model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
        for step in [*self._steps, None]:
            size = sum(map(len, texts)) * (_growth(step) if step else self._after)
            if size > most:
                raise TokenizerError(
                    f"tokenizer.json: its normalizer can make {size:,.0f} characters of rows tokenized at once, "
                    f"more than {most:,}; use the file of a trained tokenizer, or shorter rows"
                )
            if step is None:
                return
            with naming_tokenizer("cannot normalize a text of the data"):
                whole = {"version": "1.0", "added_tokens": [], "normalizer": step, "model": model}
                normalizer: Any = Tokenizer.from_str(json.dumps(whole)).normalizer
                texts = [normalizer.normalize_str(text) for text in texts]
