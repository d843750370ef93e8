"""Rows rendered as prompts, as in the pipeline, and their trained bytes, for tests of prompts and chats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import resolve_tokenizer

Row = dict[str, Any]
Render = Callable[..., ChunkOutput]


def renders(tokenizer_folder: Path) -> Render:
    """Renders rows as the pipeline does: columns with the mapping that the rows suggest, then the prompt's format."""

    def rendered(
        rows: list[Row], prompt: Row, tokenizer: Row | None = None, folder: Path = tokenizer_folder
    ) -> ChunkOutput:
        settings = {"name_or_path": str(folder), **(tokenizer or {})}
        config = PipelineConfig.from_mapping(
            {"dataset": {"name": "x"}, "tokenizer": settings, "prompt_template": prompt}
        )
        table = pa.Table.from_pylist(rows).append_column(ROW, pa.array(range(len(rows)), pa.int32()))
        mapping = resolve(config, merge([sketch(table)]))
        canonical = to_canonical(table, mapping)
        assert canonical.rejects.num_rows == 0, canonical.rejects.to_pylist()
        return renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical.table)

    return rendered


def trained_parts(text: str, spans: list[Row]) -> list[str]:
    """Return the maximal runs of trained bytes, decoded."""
    data, parts, end = text.encode(), [], -1
    for span in spans:
        if span["weight"] > 0:
            piece = data[span["start"] : span["end"]]
            if span["start"] == end:
                parts[-1] += piece
            else:
                parts.append(piece)
            end = span["end"]
    return [part.decode() for part in parts]


def assert_partition(text: str, spans: list[Row]) -> None:
    at = 0
    for span in spans:
        assert span["start"] == at < span["end"]
        at = span["end"]
    assert at == len(text.encode())
