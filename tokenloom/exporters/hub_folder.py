"""A push to the Hub: a folder with Parquet files of whole chunks, the tokenizer and a card, sent in one commit."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import yaml

from tokenloom.errors import ConfigError, SourceUnavailableError, StoreError
from tokenloom.exporters.export_folder import open_splits
from tokenloom.exporters.row_layouts import parquet_writer
from tokenloom.loaders import TokenDataset
from tokenloom.loaders.datasets import hub
from tokenloom.loaders.datasets.hub import ABOUT, FOLDER, START_WEIGHTS, sides_of, stored_rows
from tokenloom.loaders.datasets.mixed_dataset import row_blocks, row_table
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.sources.hub import LOG_IN
from tokenloom.resources.store import Manifest
from tokenloom.resources.store.manifest import SIDECARS, TRAINED, WEIGHTED
from tokenloom.resources.store.objects import digest_table
from tokenloom.resources.tables.ragged import list_array, list_views, offsets_of
from tokenloom.resources.tables.sequence_schema import DOCUMENT_LENGTHS, ROWS, WEIGHTS, SequenceFacts
from tokenloom.resources.tables.sequence_schema import TRAINED as TRAINED_FLAGS
from tokenloom.resources.visible import as_markdown, first_line

if TYPE_CHECKING:
    from tokenloom.assets.building.build import Build
    from tokenloom.assets.building.target import BuildTarget

FILE_BYTES, LARGEST_FILE = 64 << 20, 512 << 20
"""Bytes of a Parquet file from which it can end, and at which it must."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

REPLACED = ["data/*.parquet", "tokenizer/*"]
"""Files of an earlier push, which are deleted if this one does not have them."""

ENDS = 4
"""One chunk of this many ends a file that is large enough. Its digest decides, so that files begin again at the same
chunks after rows were inserted."""


def _write_split(folder: Path, dataset: TokenDataset, facts: SequenceFacts, places: Sequence[int]) -> dict[str, Any]:
    """Write the chunks of a split as Parquet files with one row group each, and return the split's entry in the card.

    Args:
        places: the place of each chunk among those of all splits.

    Raises:
        StoreError: a chunk does not come back from its rows as it is stored.
    """
    writer, path, held, is_full = None, folder, list[dict[str, Any]](), False
    rows, sizes, schema, files = 0, 0, pa.schema([]), 0
    for number, chunk in enumerate(dataset.chunks):
        names = dataset.chunk_table(number).column_names
        described = {"place": places[number], "output": chunk.output, "rows": chunk.table_rows, "columns": names}
        if not chunk.table_rows:
            held.append(described)
            continue
        table = _pushed_rows(dataset, number, rows)
        # What is sent is read back as rows: a chunk that they do not give again byte for byte could not be verified.
        if digest_table(stored_rows(table, facts, names)) != chunk.output:
            remedy = f"build {dataset.name} with its keep_columns"
            raise StoreError(f"chunk {chunk.output} cannot be written as rows; {remedy}")
        if is_full:
            _close(writer, held)
            writer, held = None, []
        if writer is None:
            path, schema = folder / f"{dataset.split}-{files:05d}.parquet", table.schema
            writer, files = parquet_writer(path, schema), files + 1
        writer.write_table(table.cast(schema), row_group_size=table.num_rows)
        held.append(described)
        rows, sizes = rows + table.num_rows, sizes + table.nbytes
        written = path.stat().st_size
        is_full = written >= LARGEST_FILE or (written >= FILE_BYTES and int(chunk.output[:8], 16) % ENDS == 0)
    if writer is not None:
        _close(writer, held)
    return {"name": dataset.split, "num_bytes": sizes, "num_examples": rows, "schema": schema}


def _pushed_rows(dataset: TokenDataset, number: int, first: int) -> pa.Table:
    """Return a chunk as rows: the columns of `row_tables`; `rows`, the raw row of each document; and for packed rows
    `start_weights`.

    Args:
        number: number of the chunk in its split.
        first: the chunk's first row.

    Raises:
        StoreError: bytes of the chunk are missing or damaged.
    """
    stored, kept = dataset.chunk_table(number), _kept(dataset)
    rows = np.arange(first, first + stored.num_rows)
    blocks, policy = row_blocks(rows, dataset.lengths(rows)), dataset.padding("longest")
    table = pa.concat_tables([row_table(dataset.reader.batch(block, policy), kept) for block in blocks])
    table = table.combine_chunks().append_column(ROWS, stored[ROWS])
    for side in sides_of(dataset.kind) if dataset.packed else ():
        offsets, lengths = list_views(stored[f"{side}{DOCUMENT_LENGTHS}"])
        name = f"{side}{WEIGHTS}" if f"{side}{WEIGHTS}" in stored.column_names else f"{side}{TRAINED_FLAGS}"
        weights = list_views(stored[name])[1][offsets_of(lengths)[:-1]].astype(np.float32)
        table = table.append_column(f"{side}{START_WEIGHTS}", list_array(offsets, weights))
    return table


def _kept(dataset: TokenDataset) -> dict[str, pa.DataType | None]:
    return dataset.reader.kept.types() if dataset.reader.kept else {}


def _close(writer: Any, chunks: Sequence[Mapping[str, Any]]) -> None:
    writer.add_key_value_metadata({"tokenloom": json.dumps({"chunks": chunks})})
    writer.close()


def write_hub_folder(
    folder: Path,
    repository: str,
    manifest: Manifest,
    splits: Mapping[str, TokenDataset],
    tokenizer: pa.Buffer,
    summary: Mapping[str, Any],
) -> tuple[list[Path], str]:
    """Write what a push sends: no paths, no rows that were rejected, no YAML.

    Args:
        manifest: that of the sequences.
        splits: the splits to write.
        tokenizer: the tokenizer's object.
        summary: what the card says of the tokenizer, the template and the stages.

    Returns:
        The files, and the version that covers them.
    """
    (folder / FOLDER).mkdir(parents=True)
    chunks = [chunk for chunk in manifest.chunks if chunk.split in splits]
    manifest = Manifest(manifest.dataset, manifest.stage, chunks, manifest.facts, manifest.counters)
    described, place = list[dict[str, Any]](), {split: list[int]() for split in splits}
    for number, chunk in enumerate(chunks):
        place[chunk.split].append(number)
    for split, dataset in splits.items():
        described.append(_write_split(folder / FOLDER, dataset, SequenceFacts.of(manifest.facts), place[split]))
    one = next(iter(splits.values()))
    (folder / "tokenizer").mkdir()
    (folder / hub.TOKENIZER).write_bytes(tokenizer)
    files = hub.tokenizer_files(tokenizer)
    for name, content in files.items():
        (folder / "tokenizer" / name).write_bytes(content)
    counters = {name: manifest.counters[name] for name in (WEIGHTED, TRAINED) if name in manifest.counters}
    about = {"dataset": manifest.dataset, "version": manifest.digest, "facts": manifest.facts, "counters": counters}
    about |= {"tokenizer": {name: digest_bytes(content) for name, content in files.items()}, "splits": manifest.splits}
    kept = {name: kind is None for name, kind in sorted(_kept(one).items())}
    about |= {SIDECARS: kept, hub.KEPT: hub.kept_digest(folder, kept, one.packed)}
    (folder / ABOUT).write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    (folder / "README.md").write_text(_card(folder, repository, about, described, summary), encoding="utf-8")
    return sorted(path for path in folder.rglob("*") if path.is_file()), hub.full_version(about)


def _card(
    folder: Path,
    repository: str,
    about: Mapping[str, Any],
    splits: Sequence[dict[str, Any]],
    summary: Mapping[str, Any],
) -> str:
    """Return the dataset card: YAML that `datasets` and the hub read, then what people want to know."""
    import datasets

    sizes = [{name: value for name, value in split.items() if name != "schema"} for split in splits]
    features = datasets.Features.from_arrow_schema(splits[0]["schema"])._to_yaml_list()
    info: dict[str, Any] = {"features": features, "splits": sizes}
    info["download_size"] = sum(path.stat().st_size for path in (folder / FOLDER).iterdir())
    info["dataset_size"] = sum(split["num_bytes"] for split in splits)
    files = [{"split": split["name"], "path": f"{FOLDER}/{split['name']}-*.parquet"} for split in splits]
    configs = [{"config_name": "default", "data_files": files}]
    head = {"configs": configs, "dataset_info": info, "tags": ["tokenloom", "tokenized"]}
    facts, stages = about["facts"], summary["stages"].items()
    lines = [
        f"# {about['dataset']}",
        "",
        f"Tokens and labels for training, built by tokenloom. Version `{hub.full_version(about)}`.",
        "",
        "```python",
        f'rows = datasets.load_dataset("{repository}")  # input_ids, labels and others',
        f'dataset = tokenloom.loaders.open_dataset("hf://{repository}")  # verified, exact order and resume',
        "```",
        "",
        *summary["lines"],
        f"- Rows: {facts['kind']}{', packed' if facts['packed'] else ''}, at most {facts['max_length']:,} tokens.",
        f"- Tokenizer: {summary['tokenizer']}, {facts['vocab_size']:,} ids; its files are in `tokenizer/`.",
        "",
        "| stage | rows in | rows out | rejected | filtered |",
        "|---|--:|--:|--:|--:|",
        *(f"| {stage} | {' | '.join(f'{count:,}' for count in counts)} |" for stage, counts in stages),
        "",
        *(["The chat template's certificate:", "", *summary["certificate"], ""] if summary["certificate"] else []),
        "`labels` are `input_ids` where a token is trained, -100 elsewhere, not shifted. With `rows` and",
        "`start_weights`, `open_dataset` restores the chunks of the build, byte for byte.",
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n".join(lines) + "\n"


def pushed_splits(target: BuildTarget, names: Sequence[str] | None) -> dict[str, Any]:
    """Open splits that have rows.

    Raises:
        ConfigError: one does not exist or has images.
    """
    every = (pair for name in names or [None] for pair in open_splits(target, name).items())
    found = {split: opened for split, opened in every if len(opened)}
    if any(opened.images is not None for opened in found.values()):
        text = "has images, which a push does not hold; use `export --to parquet`, and `hf upload`"
        raise ConfigError.at("CONFIG", text)
    if not found:
        raise ConfigError.at("--split", "has no rows")
    return found


def summary_of(build: Build) -> dict[str, Any]:
    """Return what the card says of how a dataset was built, without paths."""
    manifests = {stage: build.manifest(stage) for stage in build.stages}
    counts = ("rows_in", "rows_out", "rejected", "filtered")
    sequences, name = manifests["sequences"], build.config.tokenizer.name_or_path
    is_local = name is None or Path(name).expanduser().exists() or not REPOSITORY.fullmatch(name)
    trained, tokens = sequences.counters.get(TRAINED, 0), sequences.total("tokens")
    certificate: Sequence[Mapping[str, str]] = manifests["prompts"].notes.get("certificate") or ()
    return {
        "lines": [f"- {tokens:,} tokens, {trained:,} of them trained."],
        "tokenizer": "trained on the dataset" if name is None else "a local one" if is_local else f"`{name}`",
        "stages": {stage: [*map(each.total, counts)] for stage, each in manifests.items() if stage != "tokenizer"},
        "certificate": [f"- {finding['name']}: {as_markdown(finding['found'])}" for finding in certificate],
    }


def send(folder: Path, repository: str, branch: str | None, private: bool, message: str) -> str:
    """Send a folder in one commit, and return the commit's address.

    Raises:
        ConfigError: the repository cannot be written with this login.
        SourceUnavailableError: the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # pyright: ignore[reportPrivateImportUsage]
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=private or None, exist_ok=True)
        if branch not in (None, "main"):
            api.create_branch(repository, branch=branch, repo_type="dataset", exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, repo_type="dataset", folder_path=folder, revision=branch, commit_message=message,
            delete_patterns=REPLACED,
        )  # fmt: skip
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError.at("ORG/NAME", f"{repository} cannot be written with this login; {LOG_IN}") from error
        raise SourceUnavailableError(f"{repository} cannot be sent to the hub: {first_line(error)}") from error
    except (HTTPError, OSError, RuntimeError) as error:
        raise SourceUnavailableError(f"{repository} cannot be sent to the hub: {first_line(error)}") from error
    return str(commit.commit_url)
