"""Writes the splits of a dataset into a folder in one of the layouts, with a README that says how it is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.exporters import LAYOUTS
from tokenloom.exporters.layouts import ExportedSplit, FinishedShards, Layout, check_layout, kind_of, write_split
from tokenloom.resources.digest import digest_json
from tokenloom.resources.file_lock import lock_exclusive
from tokenloom.resources.store.blobs.file_cache import parse_size

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenloom.assets.building.target import BuildTarget
    from tokenloom.loaders import MixedDataset, TokenDataset

MARK = ".export.json"
"""File that marks a folder as an export."""


VERSION = 1
"""Increased when a layout's files change, so that shards of another version are not continued."""

Shown = Callable[[str, "TokenDataset | MixedDataset", "Iterable[pa.Table]"], "Iterable[pa.Table]"]
"""Passes on the tables of a split, and shows progress."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        dataset: name of the dataset or mixture.
        format: name of the layout.
        folder: the folder, which has a README.md that says how to read it.
        splits: for each split its name, rows, files, bytes and the counts of its shards.
        notices: what to know about it.
    """

    dataset: str
    format: str
    folder: Path
    splits: list[dict[str, Any]]
    notices: list[str]

    @property
    def files(self) -> list[Path]:
        """The files with rows, of all splits."""
        return [self.folder / name for facts in self.splits for name in facts["files"]]


def export(
    folder: str | os.PathLike[str],
    to: str,
    built: Callable[[], BuildTarget],
    split: str | None = None,
    overwrite: bool = False,
    shard_size: str | None = None,
    shown: Shown = lambda split, dataset, tables: tables,
) -> Exported:
    """Write the rows of a dataset or mixture to files for another library.

    Args:
        folder: where to write; it appears only when the export is complete.
        to: name of the layout.
        built: builds what is missing. It is called once what can be checked before is checked.
        split: only this split; None: all.
        overwrite: replace an earlier export.
        shard_size: Arrow data after which a file is closed, such as `200MB`; None: the layout's.

    Raises:
        ConfigError: the folder cannot be written, there is no such layout or split, or the layout cannot hold a row.
    """
    if to not in LAYOUTS:
        raise ConfigError.at("--to", f"{to!r} is not one of {', '.join(LAYOUTS)}{did_you_mean(to, LAYOUTS)}")
    path, shard_bytes = check_folder(os.fspath(folder), overwrite), _shard_bytes(shard_size)
    target = built()
    return export_splits(path, overwrite, to, target.name, open_splits(target, split), shard_bytes, shown)


def _shard_bytes(text: str | None) -> int | None:
    try:
        return None if text is None else max(parse_size(text), 1)
    except ValueError:
        raise ConfigError.at("--shard-size", f"{text!r} is not a size such as 200MB") from None


def open_splits(target: BuildTarget, split: str | None) -> dict[str, TokenDataset | MixedDataset]:
    """Return the splits of a built dataset or mixture, or one of them.

    Raises:
        ConfigError: it does not exist.
    """
    known = target.splits()
    if split is not None and split not in known:
        raise ConfigError.at("--split", f"{split!r} is not one of {', '.join(known)}{did_you_mean(split, known)}")
    return {name: target.open_split(name) for name in ([split] if split is not None else known)}


def export_splits(
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
    layout = layout_class(name)()
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
    return Exported(dataset, name, folder, written, [*notices])


def layout_class(name: str) -> type[Layout]:
    """Return the class of a layout."""
    module, _, of_layout = LAYOUTS[name][0].partition(".")
    return getattr(import_module(f"tokenloom.exporters.{module}"), of_layout)


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
    summary, command = LAYOUTS[name][1], f"tokenloom export --to {name}"
    origin = f"{summary[0].upper()}{summary[1:]}, written by `{command}` from version `{version}` of `{dataset}`."
    parts = [f"# {dataset}", origin, "\n".join(table), "FOLDER is the path of this folder.", guide.rstrip()]
    return "\n\n".join([*parts, *(f"- {notice}." for notice in notices)]) + "\n"


def check_folder(target: str, overwrite: bool, option: str = "DIR", mark: str = MARK) -> Path:
    """Return the folder that an export can write.

    Args:
        overwrite: an earlier export can be replaced.
        option: the option that names the folder.
        mark: a file that an earlier export has.

    Raises:
        ConfigError: the folder is not local, or holds something else.
    """
    if not target or "://" in target:
        raise ConfigError.at(option, f"{target!r} is not a local folder; export to one, and copy it from there")
    path = Path(target).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise ConfigError.at(option, f"{target} is a file; name a folder")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            remedy = "name another folder, or add --overwrite to replace an export"
            raise ConfigError.at(option, f"{target} is not empty; {remedy}")
        if not (path / mark).is_file():
            text = f"{target} is not an export, so --overwrite does not replace it; name another folder"
            raise ConfigError.at(option, text)
    return path


@contextmanager
def new_folder(path: Path, overwrite: bool, content: str = "") -> Iterator[tuple[Path, FinishedShards]]:
    """Yield a folder to write, which becomes `path` if the block ends without an error, and its finished shards.

    What a killed process left is kept for the next one that writes the same content, and removed by any other.

    Args:
        overwrite: replace an existing folder.
        content: identifies what is written.

    Raises:
        ConfigError: the folder cannot be written, or another process is writing it.
    """
    # Beside the target, because a rename cannot lead to another file system.
    temporary = path.parent / f".{path.name}.part"
    lock, written, before = temporary / "lock", temporary / "written", temporary / "before"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with lock_exclusive(lock) as free:
            if not free:
                raise _folder_error(f"another process is exporting to {path}")
            try:
                shards = FinishedShards(temporary / "shards.json", content)
                for leftover in (before,) if shards.any else (written, before):
                    shutil.rmtree(leftover, ignore_errors=True)
                written.mkdir(exist_ok=True)
                yield written, shards
                _sync(written)
                # The new folder takes the place of the old one by renames alone; if one fails, the other is undone.
                if overwrite and path.exists():
                    path.rename(before)
                try:
                    written.rename(path)
                except OSError:
                    if before.exists():
                        before.rename(path)
                    raise
                _sync(path.parent, below=False)
            except Exception:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _folder_error(f"cannot write {path}: {error.strerror or error}") from error


def _sync(folder: Path, below: bool = True) -> None:
    """Force a folder, and everything in it if `below`, to disk."""
    for path in [folder, *(folder.rglob("*") if below else ())]:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _folder_error(message: str) -> ConfigError:
    return ConfigError.at("DIR", message)
