"""Writes docs/prepare/datasets.md: what is found in real files, and what brings each into its canonical form.

The files are those below $TOKENLOOM_REAL_DATA.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tokenloom.assets.building.build import Build
from tokenloom.assets.schema.candidates import FormatCandidate, choose
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

PAGE = Path(__file__).parents[1] / "prepare" / "datasets.md"
FOLDERS = ("instruct", "math", "chat", "preference", "text", "multilingual", "awkward")
MAPPINGS = {
    "avengers_latin1.csv": {"prompt": "Name/Alias", "completion": "Notes"},
    "disfl_qa_dev.json": {"prompt": "disfluent", "completion": "original"},
    "gap_validation.tsv": {"prompt": "{Text}\n\nWho is {Pronoun}?", "completion": "A"},
    "gemoji.json": {"prompt": "{description} ({category})", "completion": "emoji"},
    "query_wellformedness_dev.tsv": {"prompt": "column_0", "completion": "column_1"},
}
"""For files whose columns do not say what to train on, what one may want."""

HEAD = """# What is found in real files

`tokenloom inspect FILE` tells what a file holds. This page is what it finds in files of many kinds, with no setting but
the path, by `python docs/generate/real_files.py`. The last column says how many rows reach the canonical form: as the
file was read, or with the `column_mapping` shown where its columns do not tell what to train on.

| file | rows | found about the file | format, confidence | form | roles | canonical |
|---|---:|---|---|---|---|---:|
"""


def page(data: Path) -> str:
    """The page, for the files below a folder."""
    with tempfile.TemporaryDirectory(prefix="tokenloom-docs-") as folder:
        return HEAD + "".join(f"{row}\n" for row in rows(data, Path(folder)))


def rows(data: Path, store: Path) -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((data / folder).rglob("*")):
            if path.is_file():
                yield row(path, ArtifactStore(store / path.name), str(path.relative_to(data)))


def row(path: Path, store: ArtifactStore, name: str) -> str:
    build = built(path, store)
    schema, notes = build.manifest("schema"), build.manifest("raw").notes["files"]
    best = choose([FormatCandidate(**found) for found in schema.facts["formats"]])
    found = ", ".join(f"{setting} `{value}`" for about in notes.values() for setting, value in about.items())
    try:
        build.run("columns")
    except ConfigError:
        build = built(path, store, MAPPINGS[path.name])
        build.run("columns")
    columns = build.manifest("columns")
    mapping = columns.facts["mapping"]
    roles = ", ".join(f"{role}: `{cell(source)}`" for role, source in mapping["roles"].items())
    sure = isinstance(best, FormatCandidate)
    told = f"{best.format}, {best.confidence:.2f}" if isinstance(best, FormatCandidate) else "table: asks"
    count = f"{columns.total('rows_out'):,}"
    form = mapping["form"] if sure else f"{mapping['form']}, mapped"
    return f"| {name} | {build.manifest('raw').total('rows_out'):,} | {found} | {told} | {form} | {roles} | {count} |"


def built(path: Path, store: ArtifactStore, mapping: dict[str, str] | None = None) -> Build:
    """A file's first two stages."""
    dataset = {"name": str(path), **({"column_mapping": mapping} if mapping else {})}
    build = Build(PipelineConfig.from_mapping({"dataset": dataset}), store)
    for stage in ("raw", "schema"):
        build.run(stage)
    return build


def cell(text: str) -> str:
    return text.replace("\n", "\\n").replace("|", "\\|")


if __name__ == "__main__":
    if "TOKENLOOM_REAL_DATA" in os.environ:
        PAGE.write_text(page(Path(os.environ["TOKENLOOM_REAL_DATA"])), encoding="utf-8")
    else:
        print("TOKENLOOM_REAL_DATA names no folder of real files; docs/prepare/datasets.md stays as it is", file=sys.stderr)
