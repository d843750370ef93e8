"""Builds of several states of one dataset, and `gc` run on them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from support.datasets_on_disk import write_dataset
from tokenloom.loaders import TokenDataset
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import Garbage, collect

NOW, DAY = timedelta(0), timedelta(days=1)


def gc(store: Path, keep: int = 3, older_than: timedelta = NOW) -> Garbage:
    return collect(ArtifactStore(store), keep, older_than, delete=True)


def content(store: Path, name: str, version: str | None = None) -> str:
    """A digest of all rows of a version, as a loader reads them."""
    opened = ArtifactStore(store)
    dataset = TokenDataset(opened, opened.manifest(name, version=version), "train")
    return digest_json([dataset[row]["labels"].tolist() for row in range(len(dataset))])


def states(folder: Path, tokenizer: Path, count: int, rows: int = 120) -> list[Path]:
    """YAMLs of one dataset whose templates differ, so that all but the first stages do."""
    named = {"name_or_path": str(tokenizer), "max_length": 64}
    template = "{{instruction}}\n{{output}}\nstate {}\n"
    made = []
    for number in range(count):
        prompt = {"format_type": "custom", "template": template.format(number), "label_column": "output"}
        made.append(write_dataset(folder / str(number), rows, tokenizer=named, prompt_template=prompt))
    return made
