"""Contents with images, for chat templates that read the parts of a content.

A template gets such a content as in the source: a list of parts. So that all rows with the same parts are one shape, it
is rendered with placeholders for the texts of the parts, which are then put into the text. Each row is rendered once
more with its own texts, and rejected if the result differs. Templates that take only texts get a text with marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.messages import struct_of
from tokenloom.assets.prompts.spans import SPAN_ROLES, flat_spans, span_lists
from tokenloom.assets.stage.forms import MESSAGE, MESSAGES
from tokenloom.assets.stage.images import BREAK, MARK, split_parts
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.errors import TemplateError
from tokenloom.resources.tables.json_text import to_json_text
from tokenloom.resources.tables.ragged import flags_of, list_array, list_parts, one_array, row_of
from tokenloom.resources.templates.answers import WHITE_SPACE

OPEN, CLOSE = "\ue0d6", "\ue0d7"
_PLACEHOLDER = re.compile(f"{OPEN}([0-9]+)\\.([0-9]+){CLOSE}")
_WORD = "quokka"
"""A text that no template writes of its own."""

_EMPTY = '{"role": null, "content": null}'

Texts = dict[str, str]
"""The text of each placeholder of a row."""


@dataclass(frozen=True)
class PartTexts:
    """The texts of the content parts of rows, by row position.

    Attributes:
        texts: the text of each placeholder.
        roles: the role of each message with placeholders.
    """

    texts: dict[int, Texts] = field(default_factory=dict)
    roles: dict[int, dict[int, str]] = field(default_factory=dict)

    def trim(self, row: int) -> None:
        """Trim the texts of a row, as its template does."""
        self.texts[row] = trimmed(self.texts[row])


def trimmed(texts: Texts) -> Texts:
    return {name: text.strip(WHITE_SPACE) for name, text in texts.items()}


def with_texts(value: Any, texts: Texts) -> Any:
    """Return a value with the texts of all placeholders in it."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: texts.get(found[0], found[0]), value) if OPEN in value else value
    if isinstance(value, Mapping):
        return {name: with_texts(inner, texts) for name, inner in value.items()}
    return [with_texts(inner, texts) for inner in value] if isinstance(value, list) else value


def divide_contents(rows: pa.Array, messages: pa.Array, reads: Callable[[str], Reading]) -> tuple[pa.Array, PartTexts]:
    """Return conversations whose contents with images are lists of parts, with placeholders for texts; and these texts.

    Contents without images become lists of one part where the template reads nothing else.

    Args:
        rows: int32 [rows], row positions.
        messages: `MESSAGES` [rows], whose contents have marks for images.
        reads: returns how the template reads the contents of a role.
    """
    messages = _listed(messages, reads)
    found, (offsets, flat) = PartTexts(), list_parts(messages)
    role, content, *_, fields = flat.flatten()
    places = np.flatnonzero(flags_of(pc.match_substring(content, MARK)))
    if not len(places):
        return messages, found
    row = row_of(np.diff(offsets))[places]
    numbers, within = one_array(rows).to_numpy()[row], places - offsets[row]
    contents, structures = content.to_pylist(), fields.to_pylist()
    for place, number, index in zip(places.tolist(), numbers.tolist(), within.tolist(), strict=True):
        speaker, parts = role[place].as_py(), [*split_parts(contents[place])]
        contents[place] = contents[place].replace(BREAK, "")
        if not reads(speaker).images:
            continue
        texts, own = found.texts.setdefault(number, {}), json.loads(structures[place] or _EMPTY)
        own["content"] = [*_structure(parts, index, texts)]
        structures[place] = to_json_text(own)
        found.roles.setdefault(number, {})[index] = speaker
    changed = {"content": pa.array(contents, pa.string()), "fields": pa.array(structures, pa.string())}
    columns = dict(zip(MESSAGE.names, flat.flatten(), strict=True)) | changed
    return list_array(offsets, struct_of(columns, len(flat))).cast(MESSAGES), found


def _structure(parts: Iterable[str | None], message: int, texts: Texts) -> Iterable[dict[str, str]]:
    for number, text in enumerate(parts):
        name = f"{OPEN}{message}.{number}{CLOSE}"
        if text is None:
            yield {"type": "image"}
        else:
            texts[name] = text
            yield {"type": "text", "text": name}


def _listed(messages: pa.Array, reads: Callable[[str], Reading]) -> pa.Array:
    """Return conversations with a list of one part in place of each text that the template omits otherwise."""
    offsets, flat = list_parts(messages)
    role, content, *_, fields = flat.flatten()
    chosen = pc.is_in(
        role, pa.array([name for name in pc.unique(role).to_pylist() if reads(name).only_parts], role.type)
    )
    places = np.flatnonzero(flags_of(chosen) & ~flags_of(pc.match_substring(content, MARK)))
    if not len(places):
        return messages
    structures = fields.to_pylist()
    for place in places.tolist():
        own = json.loads(structures[place] or _EMPTY)
        if "content" in own and own["content"] is None:
            structures[place] = to_json_text({**own, "content": [{"type": "text", "text": None}]})
    columns = dict(zip(MESSAGE.names, flat.flatten(), strict=True)) | {"fields": pa.array(structures, pa.string())}
    return list_array(offsets, struct_of(columns, len(flat))).cast(MESSAGES)


class Reading(NamedTuple):
    """How a template reads the contents of a role.

    Attributes:
        images: whether it writes the token of an image for an image part.
        only_parts: whether it writes the text of a part, but not a content that is a text.
    """

    images: bool
    only_parts: bool


def reads_parts(write: Callable[[list[dict[str, Any]]], str], role: str, token: str) -> Reading:
    """Return how a template reads the contents of a role.

    Args:
        write: renders messages; raises `TemplateError` if the template refuses them.
        token: the token of an image.
    """
    text = {"type": "text", "text": _WORD}
    images, parts, plain = (_writes(write, role, content) for content in ([{"type": "image"}, text], [text], _WORD))
    return Reading(
        any(token in written for written in images),
        any(_WORD in written for written in parts) and not any(_WORD in written for written in plain),
    )


def _writes(write: Callable[[list[dict[str, Any]]], str], role: str, content: Any) -> Iterator[str]:
    """Yield what a template writes for a message, between others whose contents are texts or lists."""
    call = {"id": "a", "type": "function", "function": {"name": "a", "arguments": {}}}
    for form in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
        before = [] if role in ("system", "user") else [{"role": "user", "content": form("a")}]
        before += [{"role": "assistant", "content": form(""), "tool_calls": [call]}] if role == "tool" else []
        after = [] if role == "user" else [{"role": "user", "content": form("c")}]
        with suppress(TemplateError):
            yield write([*before, {"role": role, "content": content}, *after])


def put_texts(table: pa.Table, parts: PartTexts) -> pa.Table:
    """Put the texts of content parts in place of their placeholders, each as a span of its message."""
    if not parts.texts:
        return table
    numbers = table[ROW].to_numpy()
    chosen = [place for place, row in enumerate(numbers.tolist()) if row in parts.texts]
    if not chosen:
        return table
    texts, spans = one_array(table["text"]).to_pylist(), flat_spans(table["spans"])
    bounds = spans.offsets
    counts = spans.counts.copy()
    columns = [spans.start, spans.end, spans.role, spans.message, spans.weight, spans.control]
    pieces: list[list[np.ndarray]] = [[] for _ in columns]
    done = 0
    for place in chosen:
        first, last = int(bounds[place]), int(bounds[place + 1])
        row = int(numbers[place])
        texts[place], divided = _divided(
            texts[place], [column[first:last].tolist() for column in columns], parts.texts[row], parts.roles[row]
        )
        for index, column in enumerate(columns):
            pieces[index] += [column[done:first], np.array(divided[index], column.dtype)]
        counts[place], done = len(divided[0]), last
    flat = [np.concatenate([*piece, column[done:]]) for piece, column in zip(pieces, columns, strict=True)]
    table = table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))
    return table.set_column(table.schema.get_field_index("spans"), "spans", span_lists(counts, *flat))


def _divided(
    text: str, columns: list[list[Any]], texts: Texts, roles: Mapping[int, str]
) -> tuple[str, list[list[Any]]]:
    """Return a text with its placeholders filled, and its spans cut at them."""
    data, whole = text.encode(), list[str]()
    out: list[list[Any]] = [[] for _ in columns]
    at = 0

    def add(part: str, role: int, message: int, weight: float, control: bool) -> None:
        nonlocal at
        if part:
            size = len(part.encode())
            for values, value in zip(out, (at, at + size, role, message, weight, control), strict=True):
                values.append(value)
            whole.append(part)
            at += size

    for start, end, role, message, weight, control in zip(*columns, strict=True):
        rest, cut = data[start:end].decode(), 0
        for found in _PLACEHOLDER.finditer(rest):
            if found[0] not in texts:  # the data has the same private-use characters
                continue
            add(rest[cut : found.start()], role, message, weight, control)
            index = int(found[1])
            add(texts[found[0]], SPAN_ROLES.index(_role(roles[index])), index, weight, False)
            cut = found.end()
        add(rest[cut:], role, message, weight, control)
    return "".join(whole), out


def _role(role: str) -> str:
    return role if role in MESSAGE_ROLES else "tool"
