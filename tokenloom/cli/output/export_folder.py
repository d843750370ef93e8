"""Writes the splits of a dataset into a folder in one of the layouts, with a README that says how it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.output import flat_layouts, row_layouts
from tokenloom.cli.output.layout_names import SUMMARIES
from tokenloom.cli.output.layouts import ExportedSplit, FinishedShards, Layout, check_layout, kind_of, write_split
from tokenloom.cli.output.targets import MARK, new_folder
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.digest import digest_json

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenloom.assets.building.target import BuildTarget
    from tokenloom.loaders import MixedDataset, TokenDataset

LAYOUTS: dict[str, type[Layout]] = {
    "hf": row_layouts.SavedToDisk,
    "parquet": row_layouts.ParquetFiles,
    "trl": row_layouts.PreparedForTrl,
    "axolotl": row_layouts.Axolotl,
    "llamafactory": row_layouts.LlamaFactory,
    "skyrl": row_layouts.SkyRl,
    "megatron": flat_layouts.MegatronIndexed,
    "megatron-sft": row_layouts.MegatronPacked,
    "olmo": flat_layouts.OlmoArrays,
    "mds": flat_layouts.MosaicShards,
    "jsonl": row_layouts.JsonLines,
}

VERSION = 1
"""Increased when a layout's files change, so that shards of another version are not continued."""

Shown = Callable[[str, "TokenDataset | MixedDataset", "Iterable[pa.Table]"], "Iterable[pa.Table]"]
"""Passes on the tables of a split, and shows progress."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        splits: for each split its name, rows, files, bytes and the counts of its shards.
        notices: what to know about it.
    """

    splits: list[dict[str, Any]]
    notices: list[str]


def open_splits(target: BuildTarget, split: str | None) -> dict[str, TokenDataset | MixedDataset]:
    """Return the splits of a built dataset or mixture, or one of them.

    Raises:
        ConfigError: it does not exist.
    """
    known = target.splits()
    if split is not None and split not in known:
        raise ConfigError.at("--split", f"{split!r} is not one of {', '.join(known)}{did_you_mean(split, known)}")
    return {name: target.open_split(name) for name in ([split] if split is not None else known)}


def export_folder(
    folder: Path,
    overwrite: bool,
    name: str,
    dataset: str,
    splits: dict[str, TokenDataset | MixedDataset],
    shard_bytes: int | None,
    shown: Shown,
) -> Exported:
    """Write splits into a folder that appears when it is complete. A run that continues a killed one writes the rest.

    Args:
        overwrite: replace an earlier export.
        name: of the layout.
        dataset: its name.
        shard_bytes: bytes of Arrow data after which a file is closed; None: the layout's.

    Raises:
        ConfigError: the folder cannot be written, or the layout cannot hold a row.
    """
    layout = LAYOUTS[name]()
    digests = {split: each.digest for split, each in splits.items()}
    content = digest_json([VERSION, name, dataset, shard_bytes, list(digests), list(digests.values())])
    notices = dict.fromkeys(notice for each in splits.values() for notice in check_layout(name, layout, each, dataset))
    with new_folder(folder, overwrite, content) as (writing, shards):
        written = [
            _split(layout, writing, _source(dataset, split, each), each, shard_bytes, shown, shards)
            for split, each in splits.items()
        ]
        filled = [facts["split"] for facts in written if facts["files"]]
        layout.finish(writing, filled)
        for facts in written:
            notices |= dict.fromkeys(f"{facts['split']}: {line}" for line in layout.notices(facts["counts"]))
        version = next(iter(splits.values()))
        text = _readme(name, dataset, getattr(version, "version", version.digest), layout, written, [*notices])
        (writing / "README.md").write_text(text, encoding="utf-8")
        kept = [{key: value for key, value in facts.items() if key != "counts"} for facts in written]
        (writing / MARK).write_text(json.dumps({"dataset": dataset, "format": name, "splits": kept}, indent=2))
    return Exported(written, [*notices])


def _source(dataset: str, split: str, opened: TokenDataset | MixedDataset) -> ExportedSplit:
    version, tokenizer = getattr(opened, "version", opened.digest), Path(opened.tokenizer_path)
    return ExportedSplit(dataset, version, split, opened.digest, kind_of(opened), opened.vocab_size, tokenizer)


def _split(
    layout: Layout,
    folder: Path,
    source: ExportedSplit,
    dataset: TokenDataset | MixedDataset,
    shard_bytes: int | None,
    shown: Shown,
    finished: FinishedShards,
) -> dict[str, Any]:
    """Write a split, unless it has no rows, and return the facts about it."""
    from tokenloom.loaders.datasets.mixed_dataset import row_tables

    facts: dict[str, Any] = {"split": source.split, "rows": len(dataset), "files": [], "bytes": 0, "counts": {}}
    if not len(dataset):
        return facts
    path = folder / source.split

    def tables(first: int) -> Iterable[pa.Table]:
        return shown(source.split, dataset, row_tables(dataset, first))

    shards = write_split(layout, path, source, tables, shard_bytes, finished)
    facts["files"] = [f"{source.split}/{name}" for shard in shards for name in shard.files]
    facts["bytes"] = sum(sum(shard.sizes) for shard in shards)
    for shard in shards:
        for name, count in shard.counts.items():
            facts["counts"][name] = facts["counts"].get(name, 0) + count
    return facts


def _readme(
    name: str, dataset: str, version: str, layout: Layout, splits: Sequence[dict[str, Any]], notices: Sequence[str]
) -> str:
    filled = [facts for facts in splits if facts["files"]]
    guide = layout.guide.format(split=filled[0]["split"] if filled else "train")
    counted = ("rows", "documents", "tokens", "trained")
    table = ["| split | rows | documents | tokens | trained tokens | files |", "|---|--:|--:|--:|--:|--:|"]
    for facts in filled:
        numbers = [facts["counts"].get(each, 0) for each in counted] + [len(facts["files"])]
        table.append(f"| {facts['split']} | {' | '.join(f'{number:,}' for number in numbers)} |")
    what = SUMMARIES[name][0].upper() + SUMMARIES[name][1:]
    origin = f"{what}, written by `tokenloom export --to {name}` from version `{version}` of `{dataset}`."
    parts = [f"# {dataset}", origin, "\n".join(table), "FOLDER is the path of this folder.", guide.rstrip()]
    return "\n\n".join([*parts, *(f"- {notice}." for notice in notices)]) + "\n"
