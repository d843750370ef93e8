"""Parses plain text to rows, and rejects records that are not UTF-8."""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.record_boundaries import Bytes
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.ragged import Ints, text_array

BOM = codecs.BOM_UTF8
TEXT_COLUMN = "text"
NOT_UTF8 = "not UTF-8; set dataset.encoding"


def parse_text(data: Bytes, bounds: Ints) -> ParsedChunk:
    """Parse plain text: one row per record, without its final line breaks. Blank records are filtered.

    Args:
        data: uint8 [bytes], the bytes of the chunk.
        bounds: int64 [records + 1] into `data`.
    """
    text = text_array(bounds, data)
    rows = np.arange(len(text))
    rejects = []
    if len(bad := undecodable(data, bounds, rows)):
        rejects = [reject_undecodable(data, bounds, bad, TEXT_COLUMN)]
        rows = np.setdiff1d(rows, bad)
        text = text.take(pa.array(rows))
    text = pc.utf8_rtrim(text, "\r\n")
    filled = flags_of(pc.not_equal(pc.utf8_trim_whitespace(text), ""))
    table = pa.table({TEXT_COLUMN: text.filter(pa.array(filled))})
    return ParsedChunk.of(table, rows[filled], rejects, int((~filled).sum()))


def undecodable(data: Bytes, bounds: Ints, records: Ints) -> Ints:
    """Return those of the records that are not UTF-8."""
    if not len(records):
        return records
    try:
        codecs.decode(data.tobytes(), "utf-8")
        return records[:0]
    except UnicodeDecodeError:
        parts = ((record, data[bounds[record] : bounds[record + 1]]) for record in records.tolist())
        return np.array([record for record, part in parts if not is_utf8(part.tobytes())], np.int64)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def reject_undecodable(data: Bytes, bounds: Ints, records: Ints, field: str) -> pa.Table:
    """Return rejects for records that are not UTF-8."""
    shown = [data[bounds[row] : bounds[row + 1]][:400].tobytes().decode(errors="replace") for row in records]
    return reject_rows(records, "raw", "invalid_utf8", field, NOT_UTF8, shown)
