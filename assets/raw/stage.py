"""raw: the rows as found in the source, with the types found in each chunk.

Files of records are cut into chunks by their bytes. A chunk whose bytes were parsed before is not parsed again.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.assets.raw.chunks import FILTER_LACKS, SourceNotes, source_bytes, source_chunks
from tokenloom.assets.raw.unchanged_files import UnchangedFiles
from tokenloom.assets.stage.definition import ChunkOutput, Context, Stage, Work, read_settings
from tokenloom.assets.stage.keys import key_parts
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import did_you_mean
from tokenloom.resources.store.known_files import KnownFiles

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


class RawStage(Stage):
    name = "raw"
    version = 5
    upstream = ()
    libraries = ("pyarrow", "numpy", "charset-normalizer", "msgspec")
    droppable = True

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        return read_settings(config, "dataset.columns", "dataset.val_split", "dataset.filters")

    def shaping(self, config: PipelineConfig) -> dict[str, Any]:
        named = ("format", "encoding", "reader", "config", "revision", "splits")
        return read_settings(config, *(f"dataset.{name}" for name in named))

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        return {**self.settings(config), **self.shaping(config), **read_settings(config, "dataset.name")}

    def prepare(self, context: Context) -> Work:
        notes, parts = SourceNotes(), key_parts(self, context.config, context.store)
        reading = [self.version, parts.probe, parts.settings, parts.shaping, asdict(context.chunk_size)]
        known = KnownFiles(context.store.blobs, reading)
        unchanged = UnchangedFiles(known, lambda digest: context.is_cached(parts.key(digest)))
        chunks = source_chunks(context.config, context.chunk_size, context.limit, notes, unchanged=unchanged)
        known_bytes = (lambda: source_bytes(context.config)) if context.limit is None else (lambda: None)
        return Work(chunks, _loaded, notes=notes.shown, source_bytes=known_bytes)

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return no facts; refuse filters that read a column or field which no chunk has."""
        for counter, chunks in manifest.counters.items():
            if counter.startswith(FILTER_LACKS) and chunks == len(manifest.chunks):
                name = counter.removeprefix(FILTER_LACKS)
                first = next(source_chunks(context.config, context.chunk_size, heads=True)).load()
                columns = [column for column in first.table.column_names if column != ROW]
                raise context.config.fault(
                    "dataset.filters",
                    f"no column or field {name} in the data, which has {', '.join(columns[:20])}"
                    f"{did_you_mean(name, columns)}",
                )
        return {}


STAGE = RawStage()


def _loaded(output: ChunkOutput) -> ChunkOutput:
    """Return the output itself: loading a raw chunk already computes it."""
    return output
