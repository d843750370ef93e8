"""Files taken to the prompts stage, by a build or by the stages' functions: the texts and rejects of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from support.raw_rows import chunks_of
from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import resolve_tokenizer

Texts = tuple[dict[int, str], dict[int, str]]
"""The text of each row, and the code and message of each reject, by the row's number."""


def config_of(path: Path, **sections: Any) -> PipelineConfig:
    dataset = {"name": str(path), **sections.pop("dataset", {})}
    return PipelineConfig.from_mapping({"dataset": dataset, "validation": {"max_reject_fraction": 1.0}, **sections})


def built(path: Path, store: Path, last: str = "prompts", **sections: Any) -> Build:
    """Build a file up to the stage `last`. A store that is used again keeps what the settings do not change."""
    build = Build(config_of(path, **sections), ArtifactStore(store), ComputeEngine(1))
    for _ in build.run_all(last):
        pass
    return build


def built_texts(path: Path, store: Path, **sections: Any) -> Texts:
    """Return what a build of a file with one chunk renders and rejects."""
    build = built(path, store, **sections)
    chunks = [build.manifest(stage).chunks[0] for stage in ("raw", "schema", "columns", "prompts")]
    rejects = [build.store.objects.get(chunk.rejects) for chunk in chunks if chunk.rejects]
    return _texts(build.store.objects.get(chunks[-1].output), rejects)


def rendered_texts(path: Path, **sections: Any) -> Texts:
    """Return what the stages' functions render and reject of a file with one chunk; without a store."""
    config = config_of(path, **sections)
    (chunk,) = chunks_of(path)
    raw = chunk.load()
    mapping = resolve(config, merge([sketch(raw.table)]))
    canonical = to_canonical(raw.table, mapping)
    prompts = renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical.table)
    return _texts(prompts.table, [raw.rejects, canonical.rejects, prompts.rejects])


def _texts(prompts: pa.Table, rejects: list[pa.Table]) -> Texts:
    rejected = [row for table in rejects for row in table.to_pylist()]
    texts = dict(zip(prompts["_row"].to_pylist(), prompts["text"].to_pylist(), strict=True))
    return texts, {row["_row"]: f"{row['code']}: {row['message']}" for row in rejected}
