"""raw: the rows as found in the source, with the types found in each chunk.

Files of records are cut into chunks by their bytes. A chunk whose bytes were parsed before is not parsed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.chunks import FILTER_LACKS, SourceNotes, source_bytes, source_chunks
from tokenloom.assets.raw.filters import Filter
from tokenloom.assets.raw.formats.record_file import open_records, session_notices
from tokenloom.assets.raw.formats.tables import parse_table
from tokenloom.assets.raw.images import image_columns
from tokenloom.assets.raw.unchanged import UnchangedFiles
from tokenloom.assets.stage.contract import Contract, row_column
from tokenloom.assets.stage.definition import FIXED_TEXTS, Context, Reads, Stage, Work, key_parts, settings
from tokenloom.assets.stage.rejects import ROW, SESSION_REMEDIES
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.errors import did_you_mean
from tokenloom.resources.digest import canonical_json
from tokenloom.resources.sources.source_file import SESSIONS, SourceFile
from tokenloom.resources.store.known_files import KnownFiles

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


CONTRACT = Contract(
    "One row of the source. All other columns have the names and types found in the chunk.",
    {ROW: row_column()},
    open=True,
)


_RECORDS = [
    {"text": text, "n": number, "share": number / 7, "tags": [text[:3], None], "in": {"a": {"b": number % 2 == 0}}}
    for number, text in enumerate(FIXED_TEXTS)
]
_ODD = (
    b'{"text": "mixed", "n": 1.5, "when": "2024-02-29T12:30:00Z", "date": "2024-02-29", "none": null}\n'
    b'{"text": 7, "n": 12345678901234567890, "when": "12:30", "tags": []}\n{"text": "cut of\n'
    b'{"text": "x", "n": [1, {"a": null, "b": 1.10}], "tags": {"z": 1, "a": NaN}}\n'
    b'{"text": "\\ud83c\\udf0a \\u00e9", "n": -0.0, "n2": 1e400}\n{"text": "\xff"}\n\n{"a": 1, "a": 2}\n'
)
_CSV = 'name;note;n\n"a ""b"" c";"two\nlines";007\nd;;1e5\ntoo;many;fields;here\ne;é;\n'.encode()
_LATIN = "titre;résumé\ncafé;où l'été à Nîmes\nnaïve;élève déjà là\n".encode("latin-1")

_FILES = {
    "rows.jsonl": b"\n".join(map(canonical_json, _RECORDS)),
    "odd.jsonl": _ODD,
    "mixed.jsonl": b'{"n": 1, "s": "a", "f": 1.0}\n{"n": 2.5, "s": 7, "f": -0.0}\n{"n": 18446744073709551616}\n',
    "rows.json": canonical_json({"data": [{"title": "t", "rows": _RECORDS}]}),
    "rows.csv": _CSV,
    "latin.csv": _LATIN,
    "rows.text": "\n".join(FIXED_TEXTS).encode("utf-16"),
}
_TESTS = ('len(text) > 3 and text.startswith("B")', "n in [1, 3] or share >= 0.5", 'not ("e" in text) or n % 3 == 1')


@dataclass(frozen=True)
class _Fixed(SourceFile):
    content: bytes = b""

    def blocks(self, size: int = 0) -> Iterator[bytes]:
        yield self.content


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    tables: list[pa.Table] = []
    for name, content in _FILES.items():
        opened = open_records(DatasetConfig(name=name), _Fixed(name, name, name.rpartition(".")[2], content=content))
        for block in opened.blocks():
            parsed = opened.parse(block.data, block.bounds, 0).positioned(None, name)
            tables += [parsed.table, parsed.rejects]
    count = len(_RECORDS)
    table = pa.Table.from_pylist(_RECORDS)
    times = pa.array([datetime(2024, 2, 29, 12, number) for number in range(count)], pa.timestamp("us", "UTC"))
    binary = pa.array([text.encode() for text in FIXED_TEXTS], pa.binary())
    table = table.append_column("when", times).append_column("raw", binary)
    rows = parse_table(table, "rows", np.zeros(0, np.int64), 0).positioned(None, "rows").table
    for condition in _TESTS:
        tables.append(rows.filter(pa.array(Filter.parse(condition).keep(rows))))
    return tables


def _reader(config: PipelineConfig) -> dict[str, Any]:
    """Return how files are read; `dtype` and `eos_id` only if they are set, so that keys of other files stay."""
    given = config.dataset.reader.model_dump(mode="json")
    return {name: value for name, value in given.items() if value is not None or name not in ("dtype", "eos_id")}


class RawStage(Stage):
    name = "raw"
    description = "The rows as they are in the source, in chunks whose places depend on their content."
    version = 7
    upstream = ()
    libraries = ("pyarrow", "numpy", "charset-normalizer", "msgspec")
    reads = (
        settings("dataset", "columns", "val_split", "filters"),
        settings("dataset", "fraction", when=lambda config: config.dataset.fraction < 1),
        Reads(lambda config: {"dataset.column_mapping": image_columns(config)} if config.media else {}),
        settings("dataset", "format", "encoding", "config", "revision", "splits", where="chunks"),
        Reads(lambda config: {"dataset.reader": _reader(config)}, "chunks"),
        settings("dataset", "max_rows", when="dataset.max_rows", where="chunks"),
        settings("dataset", "name", where="later"),
    )
    droppable = True
    remedies: ClassVar = {
        "invalid_json": "correct the line; each line must be one JSON object",
        "invalid_utf8": "set dataset.encoding to the encoding of the file",
        "lone_surrogate": "replace the half of the pair, such as \\ud83d, in the data",
        "nested_too_deeply": "write the value as text, or with fewer levels",
        "not_a_list": "set dataset.reader.root to the path of a list of rows",
        "not_an_object": "write each row as an object, or set dataset.reader.root to the list of rows",
        "too_large": "raise dataset.reader.max_record_bytes",
        "too_many_fields": "put the fields into one object in the row",
        "wrong_field_count": "quote fields that contain the delimiter, or set dataset.reader.delimiter or quote",
        "abandoned_branch": "nothing to do: another branch of the conversation was continued, and is a row",
        "missing_context": "nothing to do: what the model answered to is not in the file, or encrypted",
        "parent_cycle": "correct parentUuid in the file",
        "repeated_uuid": "give each line its own uuid",
        **SESSION_REMEDIES,
        "unknown_version": "convert the trajectory to a version of ATIF that is read",
        "malformed_quotes": "double the quotes inside quoted fields, or set dataset.reader.escape or quote",
    }

    def prepare(self, context: Context) -> Work:
        notes, parts = SourceNotes(), key_parts(self, context.config, context.store)
        # what is recorded of a file is void once anything that decides its chunks changes
        reading = [self.version, parts.probe, parts.settings, parts.shaping, asdict(context.chunk_size), *SESSIONS]
        known = KnownFiles(context.store.blobs, reading)
        unchanged = UnchangedFiles(known, lambda digest: context.is_cached(parts.key(digest)))
        config, size = context.config, context.chunk_size
        chunks = source_chunks(config, size, context.limit, notes, unchanged=unchanged, engine=context.engine)
        known_bytes = (lambda: source_bytes(context.config)) if context.limit is None else (lambda: None)
        # loading a raw chunk computes its output already
        return Work(chunks, lambda output: output, notes=notes.shown, source_bytes=known_bytes)

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        return session_notices(manifest.counters)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return no facts; refuse filters that read a column or field which no chunk has."""
        for counter, chunks in manifest.counters.items():
            if counter.startswith(FILTER_LACKS) and chunks == len(manifest.chunks):
                name = counter.removeprefix(FILTER_LACKS)
                first = next(source_chunks(context.config, context.chunk_size, heads=True)).load()
                columns = [column for column in first.table.column_names if column != ROW]
                listed = f"{', '.join(columns[:20])}{did_you_mean(name, columns)}"
                message = f"no column or field {name} in the data, which has {listed}"
                raise context.config.fault("dataset.filters", message)
        return {}


STAGE = RawStage()
