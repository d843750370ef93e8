"""Images in texts: the parts of contents that hold them, and the tokens that stand for them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.messages import struct_of
from tokenloom.assets.prompts.spans import SPAN_ROLES, flat_spans, span_lists
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGE, MESSAGES
from tokenloom.assets.stage.images import BREAK, IMAGES_COLUMN, IMAGES_OF_ROW, MARK, split_parts
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.errors import TemplateError
from tokenloom.resources.processors.certificate import ImageTokens
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.json_text import to_json_text
from tokenloom.resources.tables.ragged import (
    SIDES,
    Ints,
    flags_of,
    list_array,
    list_parts,
    offsets_of,
    one_array,
    ranges,
    row_of,
    text_array,
    text_parts,
)
from tokenloom.resources.templates.marks import WHITE_SPACE

OPEN, CLOSE = "\ue0d6", "\ue0d7"
_PLACEHOLDER = re.compile(f"{OPEN}([0-9]+)\\.([0-9]+){CLOSE}")
_WORD = "quokka"
"""A text that no template writes of its own."""

_EMPTY = '{"role": null, "content": null}'

Lists = list[list[Any]]
"""The fields of a row's spans."""

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
    listed = [name for name in pc.unique(role).to_pylist() if reads(name).only_parts]
    chosen = flags_of(pc.is_in(role, pa.array(listed, role.type)))
    places = np.flatnonzero(chosen & ~flags_of(pc.match_substring(content, MARK)))
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
    only_parts = any(_WORD in written for written in parts) and not any(_WORD in written for written in plain)
    return Reading(any(token in written for written in images), only_parts)


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
    texts, spans = one_array(table["text"]).to_pylist(), flat_spans(table["spans"])
    bounds = spans.offsets
    counts, columns = spans.counts.copy(), spans.columns
    pieces: list[list[np.ndarray]] = [[] for _ in columns]
    done = 0  # spans before this one are in `pieces`
    for place in chosen:
        first, last = int(bounds[place]), int(bounds[place + 1])
        row, own = int(numbers[place]), [column[first:last].tolist() for column in columns]
        texts[place], divided = _divided(texts[place], own, parts.texts[row], parts.roles[row])
        for index, column in enumerate(columns):
            pieces[index] += [column[done:first], np.array(divided[index], column.dtype)]
        counts[place], done = len(divided[0]), last
    flat = [np.concatenate([*piece, column[done:]]) for piece, column in zip(pieces, columns, strict=True)]
    table = table.set_column(table.schema.get_field_index("text"), "text", pa.array(texts, pa.string()))
    return table.set_column(table.schema.get_field_index("spans"), "spans", span_lists(counts, *flat))


def _divided(text: str, columns: Lists, texts: Texts, roles: Mapping[int, str]) -> tuple[str, Lists]:
    """Return a text with its placeholders filled, and its spans cut at them."""
    data, whole = text.encode(), list[str]()
    out, at = [list[Any]() for _ in columns], 0

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
        for placeholder in _PLACEHOLDER.finditer(rest):
            if placeholder[0] not in texts:  # the data has the same private-use characters
                continue
            add(rest[cut : placeholder.start()], role, message, weight, control)
            index = int(placeholder[1])
            speaker = roles[index] if roles[index] in MESSAGE_ROLES else "tool"
            add(texts[placeholder[0]], SPAN_ROLES.index(speaker), index, weight, False)
            cut = placeholder.end()
        add(rest[cut:], role, message, weight, control)
    return "".join(whole), out


IMAGE = SPAN_ROLES.index("image")
_TEMPLATE = SPAN_ROLES.index("template")
_MARK = np.frombuffer(MARK.encode(), np.uint8)


@dataclass(frozen=True)
class Illustrated:
    """Renders rows with images. Each text gets the images that it has places for, the first ones of its row: it can be
    the start of a conversation."""

    render: Callable[[pa.Table], ChunkOutput]
    tokens: ImageTokens

    def __call__(self, table: pa.Table) -> ChunkOutput:
        if IMAGES_COLUMN not in table.column_names:  # rows without answers, for inference
            return self.render(table)
        images = one_array(table[IMAGES_COLUMN])
        out = self.render(table.drop_columns([IMAGES_COLUMN]))
        texts, rows = out.table, out.table[ROW].to_numpy()
        offsets, flat = list_parts(images.take(pa.array(np.searchsorted(table[ROW].to_numpy(), rows))))
        written = np.zeros(len(rows), np.int64)
        for prefix in [f"{side}_" for side in SIDES] if "chosen_text" in texts.column_names else [""]:
            text, spans, counts = place_images(texts[f"{prefix}text"], texts[f"{prefix}spans"], self.tokens)
            for name, array in ((f"{prefix}text", text), (f"{prefix}spans", spans)):
                texts = texts.set_column(texts.schema.get_field_index(name), name, array)
            written = np.maximum(written, counts)
        return _counted(out, texts, offsets, flat, written)


def _counted(out: ChunkOutput, texts: pa.Table, offsets: Ints, images: pa.Array, written: Ints) -> ChunkOutput:
    """Return texts with their images; rows in whose longest text there are others than their images are rejected.

    Args:
        offsets, images: the images of each text's row.
        written: int64 [texts], the number of images in each text.
    """
    rows, given = texts[ROW].to_numpy(), np.diff(offsets)
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    most = np.maximum.reduceat(written, first) if len(first) else written
    wrong = most != given[first]
    rejects = list[pa.Table]()
    for places, number in sorted({*zip(most[wrong].tolist(), given[first][wrong].tolist(), strict=True)}):
        chosen = rows[first][(most == places) & (given[first] == number)]
        message = f"the text has places for {places} images, the row has {number}"
        rejects.append(reject_rows(chosen, "prompts", "image_marks", "images", message, [""] * len(chosen)))
    lost = np.isin(rows, rows[first][wrong])
    shown = np.where(lost, 0, written)
    lists = list_array(offsets_of(shown), images.take(pa.array(ranges(offsets[:-1], shown)))).cast(IMAGES_OF_ROW)
    table = texts.append_column(MEDIA, lists).filter(pa.array(~lost)).combine_chunks()
    return replace(out, table=table, rejects=join_rejects([out.rejects, *rejects]))


def place_images(
    texts: pa.Array | pa.ChunkedArray, spans: pa.Array | pa.ChunkedArray, tokens: ImageTokens
) -> tuple[pa.Array, pa.Array, Ints]:
    """Put the token of an image, as a span of its own without weight, in place of each mark and of each such token that
    a template writes.

    Returns:
        the texts, their spans, and int64 [texts], the number of images of each.
    """
    bounds, data = text_parts(texts)
    flat = flat_spans(spans)
    row = row_of(flat.counts)
    begin, end = flat.start + bounds[row], flat.end + bounds[row]
    first, last = _places(data, begin, end, flat.control, tokens.token)
    if not len(first):
        return one_array(texts), one_array(spans), np.zeros(len(bounds) - 1, np.int64)
    parts = [part.encode() for part in (tokens.before, tokens.token, tokens.after)]
    content = np.frombuffer(b"".join(parts), np.uint8)
    cuts = zip([0, *last.tolist()], [*first.tolist(), len(data)], strict=True)
    pieces = [piece for start, stop in cuts for piece in (data[start:stop], content)][:-1]
    grown = np.concatenate([[0], np.cumsum(len(content) - (last - first))])
    new_bounds = bounds + grown[np.searchsorted(first, bounds, side="left")]
    text = text_array(new_bounds, np.concatenate(pieces))

    # a span with k images is cut into 2k + 1 parts, the images at its odd places; each image into what is around it
    span = np.searchsorted(begin, first, side="right") - 1
    inside = np.bincount(span, minlength=len(begin))
    base = offsets_of(2 * inside + 1)
    rank = np.arange(len(first)) - offsets_of(inside)[span]
    at = base[span] + 2 * rank + 1
    start, stop = np.empty(base[-1], np.int64), np.empty(base[-1], np.int64)
    start[base[:-1]], stop[base[1:] - 1] = begin, end
    start[at], stop[at], stop[at - 1], start[at + 1] = first, last, first, last
    is_image = np.zeros(base[-1], bool)
    is_image[at] = True
    copies = np.where(is_image, len(parts), 1)
    of, place = np.repeat(np.repeat(np.arange(len(begin)), 2 * inside + 1), copies), row_of(copies)
    within = np.where(is_image[place], np.arange(len(place)) - offsets_of(copies)[place], -1)
    length = np.where(within < 0, (stop - start)[place], np.array([*map(len, parts), 0])[within])
    kept = np.flatnonzero(length)
    of, within, length = of[kept], within[kept], length[kept]
    added, image = within >= 0, within == 1
    counts = np.bincount(row[of], minlength=len(bounds) - 1)
    ends = np.cumsum(length) - new_bounds[:-1][row[of]] + new_bounds[0]
    columns = (
        np.where(image, IMAGE, np.where(added, _TEMPLATE, flat.role[of])).astype(np.uint8),
        np.where(added, -1, flat.message[of]),
        np.where(added, 0, flat.weight[of]).astype(np.float32),
        np.where(added, image, flat.control[of]),
    )
    images = np.bincount(row[span], minlength=len(bounds) - 1).astype(np.int64)
    return text, span_lists(counts, ends - length, ends, *columns), images


def _places(data: np.ndarray, begin: Ints, end: Ints, control: np.ndarray, token: str) -> tuple[Ints, Ints]:
    """Return where images are in the texts' bytes, in order: marks, and control tokens of an image."""
    # all places of the first byte, then those of which the next bytes are right too
    marks = np.flatnonzero(data[: max(len(data) - len(_MARK) + 1, 0)] == _MARK[0])
    for index, byte in enumerate(_MARK):
        marks = marks[data[marks + index] == byte]
    name = np.frombuffer(token.encode(), np.uint8)
    written = np.flatnonzero(control & (end - begin == len(name)))
    written = written[(data[begin[written][:, None] + np.arange(len(name))] == name).all(axis=1)]
    first = np.concatenate([marks, begin[written]])
    last = np.concatenate([marks + len(_MARK), end[written]])
    order = np.argsort(first, kind="stable")
    return first[order], last[order]
