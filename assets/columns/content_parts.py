"""Contents that are lists of parts, such as `[{"type": "text", "text": "Hi"}]`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tokenloom.assets.schema.evidence.training_flags import loss_weight

TEXT_PARTS = (None, "text", "input_text", "output_text")
"""Types of parts that are text; None for parts without a type."""

TEXT_FIELDS = ("text", "value", "content")
"""Fields of parts with the text."""

REASONING_PARTS = ("reasoning", "thinking")
CALL_PARTS = ("tool_call", "tool_use", "function_call")
RESULT_PARTS = ("tool_result", "tool_response", "function_call_output")


def text_of(part: Any) -> str | None:
    """Return the text of a part, or None if it is not a text part."""
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS:
        return next((part[name] for name in TEXT_FIELDS if isinstance(part.get(name), str)), None)
    return part if isinstance(part, str) else None


def blank_parts(parts: list[Any]) -> list[Any] | None:
    """Return text parts with null in place of their texts, or None if a part is not text."""
    return None if any(text_of(part) is None for part in parts) else [_blank(part) for part in parts]


def is_spaced(parts: Any) -> bool:
    """Return whether text parts have white space where two of them meet."""
    texts = [text_of(part) or "" for part in parts] if isinstance(parts, list) else []
    return any(one[-1:].isspace() or other[:1].isspace() for one, other in pairwise(texts))


def is_blank(content: Any) -> bool:
    """Return whether a content is what `blank_parts` returns."""
    return isinstance(content, list) and all(part is None or _blank_field(part) for part in content)


def filled(parts: list[Any], texts: list[str]) -> list[Any]:
    """Return blank parts with their texts; there can be more texts than parts."""
    pairs = zip(parts, texts, strict=False)
    return [text if part is None else {**part, _blank_field(part): text} for part, text in pairs]


def part_ranges(content: Any) -> list[tuple[int, int, float | None]]:
    """Return where the text of each part is in the joined text, and the weight that the part declares.

    Returns:
        start and end in bytes, and the weight or None; empty if the content is not a list of text parts, or if none of
        them declares a weight.

    Raises:
        ValueError: a weight is not understood.
    """
    ranges: list[tuple[int, int, float | None]] = []
    end = 0
    texts = list(map(text_of, content)) if isinstance(content, list) else []
    for part, text in zip(content, texts, strict=True) if None not in texts and texts else ():
        start, end = end, end + len((text or "").encode("utf-8", "surrogatepass"))
        ranges.append((start, end, loss_weight(part) if isinstance(part, dict) else None))
    return ranges if any(weight is not None for _, _, weight in ranges) else []


def _blank(part: Any) -> Any:
    if isinstance(part, str):
        return None
    field = next(name for name in TEXT_FIELDS if isinstance(part.get(name), str))
    return {name: None if name == field else value for name, value in part.items() if value is not None}


def _blank_field(part: Any) -> str | None:
    """Return the field of a blank part that its text belongs in, or None if the part is not blank."""
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
        return None
    return next((name for name in TEXT_FIELDS if name in part and part[name] is None), None)
