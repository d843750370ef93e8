"""Finds the images of rows: in a column of the source, in content parts, and where texts mark them.

A row's images are those of its content parts, or those of the mapped column, in the order of the marks: `<image>` in a
text, or a content part without an image of its own. Images without any mark come before the first user's message or the
prompt, as TRL's `prepare_multimodal_messages` puts them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.content_parts import INDEX, ImagePartError, Reference, reference_of, text_reference
from tokenloom.assets.columns.messages import with_columns
from tokenloom.assets.columns.source_expressions import RowReader, SourceExpression
from tokenloom.assets.stage.forms import FORMS, IMAGES, MESSAGES
from tokenloom.assets.stage.images import BREAK, IN_TEXT, MARK, REFERENCE, REFERENCES, ROLE
from tokenloom.assets.stage.rejects import RowProblem
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import MEDIA
from tokenloom.resources.tables.json_text import is_json, json_texts, read_json_value, to_json_text
from tokenloom.resources.tables.nested_paths import list_values, without_null_fields
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of, list_array, offsets_of, row_of

Columns = dict[str, pa.Array]
_ANSWERS = ("chosen", "rejected")
_MARKED = f'"{IMAGES}"'
_EMPTY_FIELDS: dict[str, None] = {"role": None, "content": None}


def refuse_images(columns: Columns) -> list[RowProblem]:
    """Return the rows that have images, for datasets without a processor."""
    problems = []
    for name, column in columns.items():
        if column.type != MESSAGES:
            continue
        lengths, flat = list_values(column)
        illustrated = _illustrated(flat)
        by_types: dict[str, Flags] = {}
        for place in np.flatnonzero(illustrated).tolist():
            types = json.loads(pc.struct_field(flat, "fields")[place].as_py())[IMAGES]["types"]
            by_types.setdefault(types, np.zeros(len(flat), bool))[place] = True
        for types, flags in by_types.items():
            message = (
                f"the content of a message is not text, but has parts of type {types}; set tokenizer.processor to "
                "train on images, or give it as text"
            )
            problems.append(RowProblem(any_of(flags, lengths), "not_text", name, message, column))
    return problems


def with_images(
    rows: RowReader, columns: Columns, source: SourceExpression | None, form: str
) -> tuple[Columns, pa.Array, dict[str, bytes]]:
    """Mark the images of rows in their texts; rows whose images cannot be used are a problem.

    Args:
        rows: the raw rows.
        columns: their canonical form.
        source: where the column with the rows' images is, or None.
        form: the name of the form.

    Returns:
        the columns with marks; `REFERENCES` [rows]; and the content of images that were written in the rows, by digest.
    """
    count = rows.table.num_rows
    media, given = dict[str, bytes](), _Given(count)
    shown = next(iter(columns.values())) if source is None else given.read(rows.values(ROLE, source))

    def report(flags: Flags, code: str, message: str) -> None:
        if flags.any():
            rows.report(flags, code, ROLE, message, shown)

    columns, listed = dict(columns), np.array([len(row) for row in given.listed], np.int64)
    reserved = np.zeros(count, bool)
    for name, column in columns.items():
        if column.type == MESSAGES:
            lengths, flat = list_values(column)
            illustrated, with_listed = _illustrated(flat), listed[row_of(lengths)] > 0
            contents = pc.struct_field(flat, "content")
            reserved |= any_of(_reserved(contents, with_listed) & ~illustrated, lengths)
            columns[name] = with_columns(given.take(column), content=_marked(contents, with_listed & ~illustrated))
        elif pa.types.is_string(column.type):
            reserved |= _reserved(column, listed > 0)
            columns[name] = _marked(column, listed > 0)
    marks = _count_marks(columns, count)
    bare = (listed > 0) & (marks == 0)
    if bare.any():
        columns = _with_leading(columns, np.where(bare, listed, 0))
        marks = _count_marks(columns, count)
    references = given.merged()
    image_counts = np.array([len(row) for row in references], np.int64)
    for problem, flags in given.unfit.items():
        report(flags, "image_part", problem)
    message = "a text contains the private-use character U+E0D4 or U+E0D5, which stands for an image"
    report(reserved, "private_use", message)
    different = image_counts != marks if form in FORMS else np.zeros(count, bool)
    for images, places in sorted({*zip(image_counts[different].tolist(), marks[different].tolist(), strict=True)}):
        message = f"the row has {images} images, but marks the places of {places}"
        report((image_counts == images) & (marks == places), "image_marks", message)
    if source is not None:
        blank = (image_counts == 0) & (_count_marks(columns, count, IN_TEXT) > 0)
        report(blank, "image_marks", f"a text has {IN_TEXT}, but the row has no image")
    answers = _count_marks({name: columns[name] for name in _ANSWERS if name in columns}, count)
    message = "an image is in a chosen or rejected answer; only prompts of pairs can have images"
    report(answers > 0, "image_marks", message)
    report(_decoded(references, media), "image_part", "an image is not valid base64")
    return columns, _as_array(references), media


class _Given:
    """The images of rows, as they are given.

    Attributes:
        listed: for each row, the images of the mapped column.
        own: for each row, the images of its content parts, in order; empty for parts that only mark a place.
        unfit: rows with a value that is no image, by the reason.
    """

    def __init__(self, count: int):
        self.listed: list[list[Reference]] = [[] for _ in range(count)]
        self.own: list[list[Reference]] = [[] for _ in range(count)]
        self.unfit: defaultdict[str, Flags] = defaultdict(lambda: np.zeros(count, bool))

    def read(self, values: pa.Array) -> pa.Array:
        """Read the column of images; returns what rejects quote."""
        texts = json_texts(values) if is_json(values.type) else None
        objects = without_null_fields(values) if texts is None else map(_json_value, texts.to_pylist())
        for row, value in enumerate(objects):
            items = value if isinstance(value, list) else [] if value in (None, "") else [value]
            try:
                self.listed[row] = [_listed(item) for item in items if item is not None]
            except ImagePartError as error:
                self.unfit[str(error)][row] = True
        return pa.array([", ".join(map(_name, row))[:200] for row in self.listed], pa.string())

    def take(self, column: pa.Array) -> pa.Array:
        """Take the images out of the fields of messages; returns the messages without them."""
        lengths, flat = list_values(column)
        places = np.flatnonzero(_illustrated(flat))
        if not len(places):
            return column
        # Fields are JSON text, so messages with images, which are few beside the others, are read one by one.
        rows, fields = row_of(lengths), pc.struct_field(flat, "fields").to_pylist()
        for place in places.tolist():
            said = json.loads(fields[place])
            images = said.pop(IMAGES)
            self.own[rows[place]] += images["references"]
            if problem := images.get("problem"):
                self.unfit[problem][rows[place]] = True
            fields[place] = None if said == _EMPTY_FIELDS else to_json_text(said)
        return with_columns(column, fields=pa.array(fields, pa.string()))

    def merged(self) -> list[list[Reference]]:
        """Return the images of each row: its content parts', with the column's for parts with an index or nothing."""
        merged = []
        for row, (listed, own) in enumerate(zip(self.listed, self.own, strict=True)):
            if not any(own):
                merged.append(listed)
                continue
            named = {int(reference[INDEX]) for reference in own if INDEX in reference}
            if any(number >= len(listed) for number in named):
                message = f"an image part has the index {max(named)}, but the column has {len(listed)} images"
                self.unfit[message][row] = True
                named, own = set[int](), [{} for _ in own]
            # Parts without an image take the column's in order, apart from those that another part names by index.
            rest = iter(image for number, image in enumerate(listed) if number not in named)
            filled = [listed[int(each[INDEX])] if INDEX in each else each or next(rest, {}) for each in own]
            merged.append([*filter(None, filled), *rest])
        return merged


def _json_value(text: str | None) -> Any:
    try:
        return None if text is None else read_json_value(text)
    except ValueError:
        return text


def _listed(item: Any) -> Reference:
    if isinstance(item, str):
        return text_reference(item)
    if isinstance(item, Mapping) and (reference := reference_of({**item, "type": None})):
        return reference
    raise ImagePartError(f"{ROLE} holds {type(item).__name__}, not a path, URL or image")


def _name(reference: Reference) -> str:
    encoded = f"{len(reference['base64'])} characters of base64" if "base64" in reference else ""
    return reference.get("path") or encoded


def _illustrated(flat: pa.Array) -> Flags:
    return flags_of(pc.match_substring(pc.struct_field(flat, "fields"), _MARKED))


def _marked(texts: pa.Array, chosen: Flags) -> pa.Array:
    written = chosen & flags_of(pc.match_substring(texts, IN_TEXT))
    if not written.any():
        return texts
    flags = pa.array(written)
    return pc.replace_with_mask(texts, flags, pc.replace_substring(texts.filter(flags), IN_TEXT, MARK))


def _reserved(texts: pa.Array, listed: Flags) -> Flags:
    """Return which texts have a mark of their own, or a break where the row can get marks."""
    return flags_of(pc.match_substring(texts, MARK)) | (listed & flags_of(pc.match_substring(texts, BREAK)))


def _count_marks(columns: Columns, count: int, mark: str = MARK) -> Ints:
    """Return int64 [rows]: the number of marks in all texts of each row."""
    total = np.zeros(count, np.int64)
    for column in columns.values():
        if column.type == MESSAGES:
            lengths, flat = list_values(column)
            marks = pc.count_substring(pc.struct_field(flat, "content"), mark).fill_null(0).to_numpy()
            total += np.bincount(row_of(lengths), marks, count).astype(np.int64)
        elif pa.types.is_string(column.type):
            total += pc.count_substring(column, mark).fill_null(0).to_numpy()
    return total


def _with_leading(columns: Columns, counts: Ints) -> Columns:
    """Put marks, int64 [rows], before the first user's message, or before the prompt or text."""
    columns = dict(columns)
    for name, column in columns.items():
        if not counts.any():
            break
        if column.type == MESSAGES:
            lengths, flat = list_values(column)
            row = row_of(lengths)
            users = np.flatnonzero(flags_of(pc.equal(pc.struct_field(flat, "role"), "user")))
            first = users[np.unique(row[users], return_index=True)[1]]
            leading = np.zeros(len(flat), np.int64)
            leading[first] = counts[row[first]]
            columns[name] = with_columns(column, content=_led(pc.struct_field(flat, "content"), leading))
            counts = counts.copy()
            counts[row[first]] = 0
        elif name in ("prompt", "text"):
            columns[name], counts = _led(column, counts), np.zeros_like(counts)
    return columns


def _led(texts: pa.Array, counts: Ints) -> pa.Array:
    return pc.binary_join_element_wise(pa.array([MARK * count for count in counts.tolist()], pa.string()), texts, "")


def _decoded(references: list[list[Reference]], media: dict[str, bytes]) -> Flags:
    """Replace images that are written as base64 with their digests, add their bytes to `media`, and return bool [rows],
    which rows have others."""
    unfit = np.zeros(len(references), bool)
    for row, images in enumerate(references):
        for reference in images:
            if (text := reference.pop("base64", None)) is None:
                continue
            try:
                content = base64.b64decode("".join(text.split()), validate=True)
            except (binascii.Error, ValueError):
                unfit[row] = True
                continue
            reference[MEDIA] = digest_bytes(content)
            media[reference[MEDIA]] = content
    return unfit


def _as_array(references: list[list[Reference]]) -> pa.Array:
    flat = [reference for images in references for reference in images]
    arrays = [pa.array([reference.get(name) for reference in flat], pa.string()) for name in REFERENCE.names]
    structs = pa.StructArray.from_arrays(arrays, fields=list(REFERENCE))
    return list_array(offsets_of(np.array([*map(len, references)], np.int64)), structs).cast(REFERENCES)
