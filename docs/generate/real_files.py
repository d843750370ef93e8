"""Write docs/prepare/datasets.md: the format detected in real files, and their canonical form. Part of `make docs`.

Reads the files in $TOKENLOOM_REAL_DATA.
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
"""A plausible mapping for each file whose columns do not decide what to train on."""

HEAD = """# Real files

What `tokenloom inspect FILE` detects in files of many kinds, with no setting except the path.

```bash
TOKENLOOM_REAL_DATA=data python docs/generate/real_files.py   # writes this page
```

*canonical* is the number of rows that reach the canonical form. *mapped* means that the columns do not decide what to
train on, and the [`column_mapping`](columns.md) shown under *roles* does.

| file | rows | detected settings | format, confidence | form | roles | canonical |
|---|---:|---|---|---|---|---:|
"""


def page(data: Path) -> str:
    """Return the page for the files in a folder."""
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
    best = choose([FormatCandidate(**candidate) for candidate in schema.facts["formats"]])
    settings = ", ".join(f"{setting} `{value}`" for file in notes.values() for setting, value in file.items())
    try:
        build.run("columns")
    except ConfigError:
        build = built(path, store, MAPPINGS[path.name])
        build.run("columns")
    columns = build.manifest("columns")
    mapping = columns.facts["mapping"]
    roles = ", ".join(f"{role}: `{cell(source)}`" for role, source in mapping["roles"].items())
    sure = isinstance(best, FormatCandidate)
    detected = f"{best.format}, {best.confidence:.2f}" if isinstance(best, FormatCandidate) else "not sure"
    form = mapping["form"] if sure else f"{mapping['form']}, mapped"
    raw_rows, canonical = build.manifest("raw").total("rows_out"), columns.total("rows_out")
    return f"| {name} | {raw_rows:,} | {settings} | {detected} | {form} | {roles} | {canonical:,} |"


def built(path: Path, store: ArtifactStore, mapping: dict[str, str] | None = None) -> Build:
    """Run the first two stages for a file."""
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
        print(
            "docs/prepare/datasets.md is unchanged: set TOKENLOOM_REAL_DATA to a folder of real files", file=sys.stderr
        )
