"""raw: the rows as found, with the types found in each chunk.

Files of records are cut into chunks by their bytes, and a chunk whose bytes are known is never parsed again.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokenloom.assets.raw.chunks import FILTER_LACKS, SourceNotes, source_chunks
from tokenloom.assets.rejects import ROW
from tokenloom.assets.stage import Context, Stage, Work
from tokenloom.config import PipelineConfig

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


class RawStage(Stage):
    name = "raw"
    version = 2
    upstream = ()
    libraries = ("pyarrow",)
    droppable = True
    output_schema = None

    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        dataset = config.dataset
        return {
            "format": dataset.format,
            "encoding": dataset.encoding,
            "reader": dataset.reader.model_dump(),
            "columns": list(dataset.columns) if dataset.columns else None,
            "val_split": dataset.val_split,
            "filters": list(dataset.filters),
        }

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        dataset = config.dataset.model_dump(mode="json", include={"name", "config", "revision", "splits"})
        return {**self.settings(config), **dataset}

    def prepare(self, context: Context) -> Work:
        notes = SourceNotes()
        chunks = source_chunks(context.config, context.chunk_size, context.limit, notes)
        return Work(chunks, lambda output: output, notes=lambda: asdict(notes))

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
