"""Plain text to rows; and what is done with bytes that are no text."""

from __future__ import annotations

import codecs
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.raw.formats.parsed import Parsed
from tokenloom.assets.raw.formats.records import Bytes
from tokenloom.assets.stage.rejects import reject_rows
from tokenloom.resources.tables.ragged import Ints, text_array

BOM = codecs.BOM_UTF8
TEXT_COLUMN = "text"
NOT_UTF8 = "not UTF-8; set dataset.encoding"


def parse_text(data: Bytes, bounds: Ints) -> Parsed:
    """Plain text: a row for each record, without its final line breaks; blank records are filtered.

    Args:
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
    solid = np.asarray(pc.not_equal(pc.utf8_trim_whitespace(text), "").to_numpy(zero_copy_only=False), bool)
    table = pa.table({TEXT_COLUMN: text.filter(pa.array(solid))})
    return Parsed.of(table, rows[solid], rejects, int((~solid).sum()))


def undecodable(data: Bytes, bounds: Ints, records: Ints) -> Ints:
    """Those of the records whose bytes are not UTF-8."""
    if not len(records):
        return records
    try:
        codecs.decode(data.tobytes(), "utf-8")
        return records[:0]
    except UnicodeDecodeError:
        bad = [record for record in records.tolist() if not _decodes(data[bounds[record] : bounds[record + 1]])]
        return np.array(bad, np.int64)


def _decodes(record: Any) -> bool:
    try:
        record.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def reject_undecodable(data: Bytes, bounds: Ints, records: Ints, field: str) -> pa.Table:
    """Rejects for records that are not UTF-8."""
    shown = [data[bounds[row] : bounds[row + 1]][:400].tobytes().decode(errors="replace") for row in records]
    return reject_rows(records, "raw", "invalid_utf8", field, NOT_UTF8, shown)
