"""Bounds the work that a tokenizer.json can cause: how much longer it makes a text, and how long its words are.

`tokenizers` holds a normalized text as a whole, with two numbers for each byte, and ends the process if memory is
short. So what a normalizer can do is computed from its steps, before it runs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tokenloom.errors import TokenizerError
from tokenloom.resources.tokenizers.tokenizer_json import LONGEST

USUAL_GROWTH, MOST_GROWTH = 40, 1 << 12
"""Most characters that one becomes in known tokenizers, and in those that are read."""

MOST_CHARACTERS = 4 << 20
"""Most characters that a row, or all added tokens, become by a tokenizer with more than the usual growth."""

LONGEST_WORD = 1000
"""Most characters of a word of WordPiece, whose work grows with their square. Known tokenizers have 100."""

_CAN_BE_EMPTY = re.compile(r"[?*^$|]|\\[bBAzZG]|\{[0,]|\A\Z")
"""What a pattern has that can match between two characters."""


class _Parts(msgspec.Struct):
    normalizer: Any = None
    pre_tokenizer: Any = None


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, without those that are not valid."""
    inner = part.get("normalizers", part.get("pretokenizers")) if isinstance(part, dict) else None
    if isinstance(inner, list):
        for each in inner:
            yield from _steps(each)
    elif isinstance(part, dict):
        yield part


def _growth(step: dict[str, Any]) -> float:
    """Return how many characters a step makes of one at most."""
    kind, content, pattern = step.get("type"), step.get("content"), step.get("pattern")
    if kind in ("ByteLevel", "Prepend"):
        return 1.0 + len(str(step.get("prepend", "1")))
    if kind == "Replace" and isinstance(content, str) and isinstance(pattern, dict):
        text = pattern.get("String") or ""
        empty = bool(content) and not text and _CAN_BE_EMPTY.search(str(pattern.get("Regex", ""))) is not None
        return max((len(content) + empty) / max(len(text), 1), 1.0)
    if kind == "Precompiled":
        table = base64.b64decode(str(step.get("precompiled_charsmap")) + "===")
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return max(len(max(texts, key=len).decode(errors="replace")), 1.0)
    return 1.0


def growth(steps: Sequence[dict[str, Any]]) -> float:
    """Return how many characters steps make of one at most, one after the other.

    A text that replaces one is replaced again only by a pattern with a character of it.
    """
    found, made, any_made = 1.0, set[str](), False
    for step in steps:
        once, pattern, is_replace = _growth(step), step.get("pattern"), step.get("type") == "Replace"
        text = pattern.get("String") if is_replace and isinstance(pattern, dict) else None
        apart = isinstance(text, str) and text != "" and made.isdisjoint(text) and not any_made
        found = min(max(found, once) if apart else found * once, 1e30)
        any_made |= not is_replace and found > 1
        made |= {*str(step.get("content", ""))}
    return found


def growth_of(content: bytes) -> float:
    """Return the growth of a tokenizer.json."""
    parts = msgspec.json.decode(content, type=_Parts)
    return growth([*_steps(parts.normalizer), *_steps(parts.pre_tokenizer)])


def check_work(parsed: dict[str, Any]) -> None:
    """Refuse a tokenizer.json that can make far more of a text than any known one.

    Raises:
        TokenizerError: the message names the part.
    """
    model = parsed["model"]
    texts = {name: str(model.get(name) or "") for name in ("continuing_subword_prefix", "end_of_word_suffix")}
    if isinstance(model["vocab"], list):
        texts["vocab"] = max((piece for piece, _ in model["vocab"] if isinstance(piece, str)), key=len, default="")
    long = next((name for name, text in texts.items() if len(text) > LONGEST), None)
    most = growth([*_steps(parsed.get("normalizer")), *_steps(parsed.get("pre_tokenizer"))])
    added = most * sum(len(token["content"]) for token in parsed["added_tokens"] if token.get("normalized", True))
    if long is not None:
        reason = f"{long} has a text of {len(texts[long]):,} characters, but at most {LONGEST:,} are supported"
    elif isinstance(word := model.get("max_input_chars_per_word"), int) and word > LONGEST_WORD:
        reason = f"max_input_chars_per_word is {word:,}, but at most {LONGEST_WORD:,} is supported; 100 is usual"
    elif most > MOST_GROWTH:
        reason = f"its normalizer can make {most:,.0f} characters of one, more than {MOST_GROWTH:,}"
    elif most > USUAL_GROWTH and added > MOST_CHARACTERS:
        reason = f"its normalizer can make {added:,.0f} characters of the added tokens"
    else:
        return
    raise TokenizerError(f"tokenizer.json: {reason}; use the file of a trained tokenizer")
