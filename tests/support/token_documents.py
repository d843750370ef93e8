"""Rows of tokens as the tokens stage stores them, for tests of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from tokenloom.assets.prompts.spans import SPANS
from tokenloom.assets.stage.rejects import ROW


@dataclass(frozen=True)
class Document:
    """One row of tokens: its raw row, and its ids with their trained flags."""

    row: int
    tokens: list[tuple[int, bool]]

    @property
    def useful(self) -> bool:
        return any(trained for _, trained in self.tokens)


def documents_of(flags: list[list[bool]]) -> list[Document]:
    """Return documents whose ids are all different, so that a lost or repeated token shows."""
    found, number = [], 0
    for index, row in enumerate(flags):
        found.append(Document(3 * index + 1, [(number + k, trained) for k, trained in enumerate(row)]))
        number += len(row)
    return found


def table_of(documents: list[Document]) -> pa.Table:
    """Return a table as the tokens stage stores it; each run of trained or untrained tokens is a span."""
    spans = []
    for document in documents:
        found, at = [], 0
        for trained, run in groupby(trained for _, trained in document.tokens):
            end = at + len(list(run))
            found.append(
                {"start": at, "end": end, "role": 0, "message": -1, "weight": float(trained), "control": False}
            )
            at = end
        spans.append(found)
    ids = [[number for number, _ in document.tokens] for document in documents]
    rows = pa.array([document.row for document in documents], pa.int32())
    return pa.table({ROW: rows, "input_ids": pa.array(ids, pa.list_(pa.uint16())), "spans": pa.array(spans, SPANS)})
