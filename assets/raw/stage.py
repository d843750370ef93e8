"""raw: the rows as found, with the types found in each chunk.

Files of records are cut into chunks by their bytes, and a chunk whose bytes are known is never parsed again.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.assets.raw.chunks import FILTER_LACKS, Known, SourceNotes, source_chunks
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work, read_settings
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store.known_files import KnownFiles

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


class RawStage(Stage):
    name = "raw"
    version = 2
    upstream = ()
    libraries = ("pyarrow", "numpy", "charset-normalizer")
    droppable = True
    output_schema = None

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return read_settings(config, "dataset.columns", "dataset.val_split", "dataset.filters")

    def shaping(self, config: PipelineConfig) -> dict[str, Any]:
        named = ("format", "encoding", "reader", "config", "revision", "splits")
        return read_settings(config, *(f"dataset.{name}" for name in named))

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        return {**self.settings(config), **self.shaping(config), **read_settings(config, "dataset.name")}

    def prepare(self, context: Context) -> Work:
        notes, parts = SourceNotes(), context.key_parts(self, Work((), _as_it_is))
        reading = [self.version, parts.probe, parts.settings, parts.shaping, asdict(context.chunk_size)]
        known = Known(
            KnownFiles(context.store.blobs, reading),
            lambda digest: not context.rereading and context.has_action(self, parts.key(digest)),
        )
        chunks = source_chunks(context.config, context.chunk_size, context.limit, notes, known=known)
        return Work(chunks, _as_it_is, notes=lambda: asdict(notes))

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Nothing; but a filter must not read a column or field that is nowhere."""
        for counter, chunks in manifest.counters.items():
            if counter.startswith(FILTER_LACKS) and chunks == len(manifest.chunks):
                name = counter.removeprefix(FILTER_LACKS)
                context.restore(manifest, [manifest.chunks[0].output])
                first = context.store.objects.get(manifest.chunks[0].output)
                columns = [column for column in first.column_names if column != ROW]
                close = difflib.get_close_matches(name, columns, n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                there = ", ".join(columns[:20])
                raise context.config.fault(
                    "dataset.filters", f"dataset.filters: no column or field {name}; {hint}the data has {there}"
                )
        return {}


STAGE = RawStage()


def _as_it_is(output: ChunkOutput) -> ChunkOutput:
    """A raw chunk is made while it is loaded."""
    return output
