"""Write docs/prepare/first_rows.md: the first row of real files under the YAML that `inspect` writes.

Part of `make docs`. Reads the files in $TOKENLOOM_REAL_DATA, and their licenses in its MANIFEST.md.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.candidates import FormatCandidate
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import sides
from tokenloom.resources.tokenizers import resolve_tokenizer
from tokenloom.starter.source_facts import Inspection, inspect_source

PAGE = Path(__file__).parents[1] / "prepare" / "first_rows.md"
FOLDERS = ("instruct", "math", "chat", "preference", "text", "multilingual", "awkward", "vision")
TOKENIZER = "tokenizers/phi-2"

CHECKED, SHOWN, SHOWN_RUNS = 20, 300, 4
"""Rows that are checked, characters and runs that are shown."""

LICENSE, NOTES = 6, 8
"""Columns of the manifest."""

NOT_QUOTED = {LICENSE: re.compile("NC|research"), NOTES: re.compile("offensive|overlaps Alpaca")}
"""What the manifest says of files whose content this page does not quote."""

HEAD = """# First rows of real files

The first row of files of many kinds, after two commands and no edit:

```bash
tokenloom inspect FILE --tokenizer data/tokenizers/phi-2 --out first.yaml
tokenloom build first.yaml
```

For each file: how it is read, what it is rendered with, the columns that are not used, and the row, shortened. ⟦…⟧ is
trained, ⏎ is a line break. phi-2's tokenizer has no chat template. Where the reading is not certain, the YAML offers
choices, and the build refuses until one is made. Files whose license does not allow it, or whose text is offensive, are
not quoted: `{column}` or `{role}` is in place of the content. In none of these files does an answer follow its prompt
without white space between them.

```bash
TOKENLOOM_REAL_DATA=data python docs/generate/first_rows.py   # writes this page
```
"""


def page(data: Path) -> str:
    """Return the page for the files in a folder."""
    return HEAD + "".join(section(path, data) for path in files(data))


def files(data: Path) -> list[Path]:
    """Return the files that hold rows."""
    found = (path for folder in FOLDERS for path in sorted((data / folder).rglob("*")))
    return [path for path in found if path.is_file() and path.suffix != ".jpg"]


def section(path: Path, data: Path) -> str:
    """Return the section of a file.

    Raises:
        SystemExit: an answer follows its prompt with nothing between them.
    """
    name = str(path.relative_to(data))
    with tempfile.TemporaryDirectory(prefix="tokenloom-docs-") as folder:
        store, target = ArtifactStore(Path(folder) / "store"), Path(folder) / "first.yaml"
        found = inspect_source(str(path), store, str(data / TOKENIZER))
        target.write_text(found.yaml(target.parent), encoding="utf-8")
        parts = [f"\n## {name}\n", reading(found), *columns_left(found)]
        try:
            config = PipelineConfig.from_file(target)
            build = Build(config, store)
            for _ in build.run_all():
                pass
        except TokenloomError as error:
            (message, *_) = str(error).replace(f"{folder}/", "").split("; the data has ")
            return "\n".join([*parts, f"- refused: {message}\n"])
        parts.append(settings(config, found))
        reader = RowReader(store, build.name)
        rows = [reader.read(number) for number in range(min(CHECKED, len(reader)))]
        read = [side for row in rows for side in _sides(row.sides)]
        if wrong := next((runs for side in read for runs in touching(side)), None):
            raise SystemExit(f"{name}: prompt and answer touch: {wrong}")
        first = next(row for row in rows if row.sides)
        budget = SHOWN
        if quoted(name, data):
            shown = {side: _joined(runs) for side, runs in first.sides.items()}
        else:
            shown, budget = dict(shape(config, found)), sys.maxsize
        pair = {side: runs for side, runs in shown.items() if not side[:1].isdigit()}
        texts = [f"{side} {marked(runs, budget // len(pair))}".strip() for side, runs in pair.items()]
        texts = texts or [marked(next(iter(shown.values())), budget) + " …"]
    return "\n".join([*parts, "\n```text", *texts, "```\n"])


def reading(found: Inspection) -> str:
    """Return how the rows are read, or the choices that are offered."""
    choice = found.choice
    if isinstance(choice, FormatCandidate):
        return f"- read as {choice.format}: {_roles(choice.roles)}"
    choices = " or ".join(f"{one.format} ({_roles(one.roles)})" for one in choice.close)
    return f"- asks: {choices}, or a mapping of your own" if choices else "- asks for a mapping: no known format"


def columns_left(found: Inspection) -> Iterator[str]:
    """Yield the columns that `inspect` reports as not used."""
    for title, names in zip(("not used", "not used, metadata"), found.unused(), strict=True):
        if names:
            yield f"- {title}: {', '.join(f'`{name}`' for name in names)}"


def settings(config: PipelineConfig, found: Inspection) -> str:
    """Return the settings that decide how rows are rendered."""
    named = config.tokenizer.chat_template
    template = f", `chat_template: {named}`" if named else ""
    unit = f", `lines_per_row: {found.text_rows.unit}`" if found.text_rows else ""
    return f"- rendered with `format_type: {config.prompt_template.format_type}`{template}{unit}"


def quoted(name: str, data: Path) -> bool:
    """Return whether the page can quote a file; not if the manifest does not list it."""
    lines = (data / "MANIFEST.md").read_text(encoding="utf-8").splitlines()
    entry = next((line.split("|") for line in lines if line.startswith(f"| {name} |")), None)
    return entry is not None and not any(said.search(entry[number]) for number, said in NOT_QUOTED.items())


def shape(config: PipelineConfig, found: Inspection) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yield the first row with its content replaced, as runs of text and whether they are trained."""
    mapping = resolve(config, found.facts["columns"])
    rows = next(found.build.input_chunks("raw")).load().slice(0, 100)
    canonical = to_canonical(rows, mapping).table.slice(0, 1)
    for name in canonical.column_names[1:]:
        column = canonical[name]
        values = pa.array([_without_content(column[0].as_py(), name, mapping)], column.type)
        canonical = canonical.set_column(canonical.column_names.index(name), name, values)
    for side, table in sides(renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical).table).items():
        (row,) = table.select(["text", "spans"]).to_pylist()
        text = row["text"].encode()
        parts = ((text[span["start"] : span["end"]].decode(), span["weight"] > 0) for span in row["spans"])
        yield side, _merged(parts)


def _without_content(value: Any, name: str, mapping: ColumnMapping) -> Any:
    if isinstance(value, str):
        return f"{{{mapping.roles.get(name, name)}}}" if value else ""
    if isinstance(value, list):
        return [_without_content(item, name, mapping) for item in value]
    if isinstance(value, Mapping) and "role" in value:
        return dict.fromkeys(value) | {"role": value["role"], "content": f"{{{value['role']}}}"}
    return None if value is not None and not isinstance(value, bool) else value


def touching(runs: Sequence[tuple[str, bool]]) -> Iterator[str]:
    """Yield each place where a trained text follows a masked one without white space between them."""
    for (before, _), (after, trained) in pairwise(runs):
        if trained and not (before[-1:].isspace() or after[:1].isspace()):
            yield f"{before[-30:]}⟦{after[:30]}"


def marked(runs: Sequence[tuple[str, bool]], budget: int) -> str:
    """Return the first runs on one line, the longest shortened in the middle, with brackets around what is trained."""
    shown = runs[:SHOWN_RUNS]
    longest = max(len(text) for text, _ in shown)
    most = next(n for n in range(min(longest, budget), -1, -1) if sum(min(len(text), n) for text, _ in shown) <= budget)
    parts = [f"⟦{_shortened(text, most)}⟧" if trained else _shortened(text, most) for text, trained in shown]
    return "".join(parts).replace("\n", "⏎").replace("\r", "␍") + " …" * (len(runs) > SHOWN_RUNS)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"


def _sides(shown: Mapping[str, Sequence[Any]]) -> Iterator[list[tuple[str, bool]]]:
    return (_joined(runs) for runs in shown.values())


def _joined(runs: Sequence[Any]) -> list[tuple[str, bool]]:
    return _merged((run.text, run.trained) for run in runs)


def _merged(parts: Any) -> list[tuple[str, bool]]:
    """Return consecutive parts that are all trained, or all masked, as one."""
    grouped = groupby(parts, key=lambda part: part[1])
    return [("".join(text for text, _ in group), trained) for trained, group in grouped]


def _roles(roles: Mapping[str, str]) -> str:
    return ", ".join(f"`{role}: {source}`" for role, source in roles.items())


if __name__ == "__main__":
    if "TOKENLOOM_REAL_DATA" in os.environ:
        PAGE.write_text(page(Path(os.environ["TOKENLOOM_REAL_DATA"])), encoding="utf-8")
    else:
        print(f"{PAGE.name} is unchanged: set TOKENLOOM_REAL_DATA to a folder of real files", file=sys.stderr)
