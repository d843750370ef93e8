"""Datasets that were pushed to the Hugging Face Hub: their files are downloaded into the hub's cache, and their chunks
restored into a store in tokenloom's cache, with the same bytes, and so the same digests, as where it was built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import DatasetNotFoundError, StoreError, StoreUnavailableError, missing_package
from tokenloom.loaders.reading.batch import IGNORED
from tokenloom.resources.digest import block_digests, digest_bytes, digest_json
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.store.blobs.file_cache import FileCache
from tokenloom.resources.store.manifest import SIDECARS, WEIGHTED
from tokenloom.resources.store.manifest import TRAINED as TRAINED_TOKENS
from tokenloom.resources.store.objects import digest_table, encode_table
from tokenloom.resources.store.versions import LOADED
from tokenloom.resources.tables.json_text import json_column
from tokenloom.resources.tables.ragged import SIDES, Ints, list_array, list_views, offsets_of, one_array, sides
from tokenloom.resources.tables.sequence_schema import (
    DOCUMENT_LENGTHS,
    ID_TYPES,
    INPUT_IDS,
    LABEL,
    LENGTH,
    PAIR,
    POSITIONS,
    RAW_ROW,
    REACH,
    ROWS,
    TRAINED,
    WEIGHTS,
    SequenceFacts,
    check_tokenizer,
    length_type,
    read_table,
    with_padding,
)
from tokenloom.resources.visible import first_line

START_WEIGHTS = "start_weights"
"""Column of packed rows: the loss weight that the first token of each document has in the store. Its label is -100."""

FOLDER = "data"
"""Folder of the Parquet files."""

_LENGTHS = "seq_lengths"

ABOUT = "tokenloom.json"
"""File with what all chunks share: dataset, version, facts, counters and kept columns."""

TOKENIZER = "tokenizer.arrow"
"""File with the tokenizer's object, whose digest is among the facts."""

KEPT = "kept"
"""Key in `ABOUT` of the digest of the kept columns' values; "" if there are none. Older pushes lack it."""


def stored_rows(table: pa.Table, facts: SequenceFacts, names: Sequence[str]) -> pa.Table:
    """Return a chunk, given its rows with the columns of `row_tables`, with `rows` and, if packed, `start_weights`.

    Args:
        names: names of the chunk's columns, in order.

    Raises:
        ValueError: the rows are not those of a chunk.
    """
    columns: dict[str, Any] = {ROWS: list_array(*list_views(table[ROWS]))}
    if LABEL in names:
        columns[LABEL] = one_array(table[LABEL])
    for side in sides_of(facts.kind):
        offsets, ids = list_views(table[f"{side}{INPUT_IDS}"])
        id_type = ID_TYPES[facts.vocab_size > 1 << 16].value_type.to_pandas_dtype()
        columns[f"{side}{INPUT_IDS}"] = list_array(offsets, ids.astype(id_type))
        if facts.trees:
            bounds, starts, of_nodes = _nodes(table, offsets)
            columns |= {name: list_array(bounds, values.astype(np.int32)) for name, values in of_nodes.items()}
        else:
            bounds, lengths = np.arange(len(offsets)), np.diff(offsets).astype(np.int32)
            if f"{side}{_LENGTHS}" in table.column_names:
                bounds, lengths = list_views(table[f"{side}{_LENGTHS}"])
            columns[f"{side}{DOCUMENT_LENGTHS}"], starts = list_array(bounds, lengths), offsets_of(lengths)[:-1]
        if f"{side}labels" in table.column_names:
            trained = list_views(table[f"{side}labels"])[1] != IGNORED
        else:
            trained = np.zeros(len(ids), bool)
        weights = trained.astype(np.float32)
        if f"{side}loss_weights" in table.column_names:
            weights = list_views(table[f"{side}loss_weights"])[1].copy()
        if facts.packed:
            # a document's first token has no label, so that its weight travels in a column of its own
            weights[starts] = list_views(table[f"{side}{START_WEIGHTS}"])[1]
        columns[f"{side}{TRAINED}"] = list_array(offsets, (weights > 0).astype(np.uint8))
        columns[f"{side}{WEIGHTS}"] = list_array(offsets, weights)
    if facts.document_multiple:
        made = with_padding(pa.table(columns), facts.document_multiple, facts.pad_token_id)
        columns = {name: made[name].combine_chunks() for name in made.column_names}
    if missing := [name for name in names if name not in columns]:
        raise ValueError(f"has no column {missing[0]}")
    return pa.table({name: columns[name] for name in names})


def sidecar_of(table: pa.Table, names: Mapping[str, bool], packed: bool) -> pa.Table:
    """Return the kept columns of a chunk by raw row, as loaders read them next to it.

    Args:
        names: the columns, and whether each holds JSON texts.
    """
    offsets, raw = list_views(table[ROWS])
    raw_rows, first = np.unique(raw, return_index=True)  # a row that was split has its values once
    row = np.searchsorted(offsets, first, side="right") - 1
    columns = {RAW_ROW: pa.array(raw_rows.astype(np.int32))}
    for name, is_text in names.items():
        values = one_array(table[name])
        values = values.flatten().take(pa.array(first)) if packed else values.take(pa.array(row))
        columns[name] = json_column(values) if is_text else values
    return pa.table(columns)


def sides_of(kind: str) -> list[str]:
    """Return what the columns of rows of a kind begin with."""
    return [f"{side}_" for side in SIDES] if kind == PAIR else [""]


def _nodes(table: pa.Table, offsets: np.ndarray) -> tuple[Ints, Ints, dict[str, Ints]]:
    """Return the first node of each row, the first token of each node, and the columns of trees; a ValueError if no
    trees have such positions."""
    positions, ends = (list_views(table[name])[1].astype(np.int64) for name in ("position_ids", "attention_ends"))
    # a node begins where positions jump, where another end is seen, or at a new text
    before = np.diff(positions, prepend=-2) != 1
    starts = np.flatnonzero(before | (np.diff(ends, prepend=-1) != 0) | (positions == 0))
    bounds = np.searchsorted(starts, offsets)
    row = np.searchsorted(bounds, np.arange(len(starts)), side="right") - 1
    reach = ends[starts] - (starts - offsets[row])
    lengths = np.diff(starts, append=len(positions))
    if starts[:1].any() or (positions[offsets[:-1]] != 0).any():
        raise ValueError("has rows whose position_ids begin at no tree")
    return bounds, starts, {DOCUMENT_LENGTHS: lengths, POSITIONS: positions[starts], REACH: reach}


PROTOCOL = "hf://"

LARGEST_ABOUT, LARGEST_TOKENIZER, MOST_VALUES = 16 << 20, 1 << 30, 1 << 28
"""Bytes of `ABOUT` and `TOKENIZER`, and values of a chunk, that are read: a few bytes of Parquet can stand for any
number of values."""

_ADDRESS = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?")


def hub_store(address: str, version: str | None = None) -> tuple[ArtifactStore, str, str]:
    """Return a store that has a dataset of the hub, and the dataset's name and version: those of the build.

    Args:
        address: `hf://org/name` or `hf://org/name@revision`: a branch, tag or commit. Default: `main`.
        version: the version that the revision must have; at least the start of its digest. With kept columns,
            `VERSION+KEPT`: the version of a dataset does not cover them.

    Raises:
        DatasetNotFoundError: the address, the revision or the version does not exist, or was not pushed by tokenloom.
        StoreUnavailableError: the hub cannot be reached, and its cache lacks the files.
        StoreError: a file does not hold what was pushed.
    """
    if (parts := _ADDRESS.fullmatch(address)) is None:
        raise DatasetNotFoundError(
            f"{address!r} is not the address of a dataset; write hf://org/name or hf://org/name@revision"
        )
    repository, revision = parts[1], parts[2]
    folder = _downloaded(repository, revision)
    about = _about(folder, address)
    if version is not None:
        _check_version(about, version, address)
    folder_name = repository.replace("/", "--")
    store, name = ArtifactStore(FileCache.from_environment().root / "hub" / folder_name), about["dataset"]
    store.prepare()
    # two processes that open the same dataset restore it once
    with store.building(), store.building_alone(name, lambda message: None):
        if not _is_restored(store, name, about):
            _restore(store, name, folder, about, address)
    return store, name, about["version"]


def full_version(about: Mapping[str, Any]) -> str:
    """Return the version that covers all that is opened."""
    return f"{about['version']}+{about[KEPT]}" if about[SIDECARS] else about["version"]


def _check_version(about: Mapping[str, Any], version: str, address: str) -> None:
    """Raise a DatasetNotFoundError unless a version is that of a pushed dataset, and covers all that is opened."""
    if about[SIDECARS] and not about.get(KEPT):
        message = f"{address} was pushed by an earlier tokenloom, whose versions do not cover its kept columns; push it"
        raise DatasetNotFoundError(f"{message} again, or name a commit, hf://org/name@COMMIT, and no version")
    parts, named = full_version(about).split("+"), version.lower().split("+")
    wrong = any(len(start) < 4 or not part.startswith(start) for part, start in zip(parts, named, strict=False))
    if wrong or len(named) > len(parts):
        has = "+".join(part[:12] for part in parts)
        message = f"{address} has version {has}, not {version}; name the revision that has it: "
        raise DatasetNotFoundError(f"{message}{address.partition('@')[0]}@REVISION")
    if len(parts) != len(named):
        message = f"{address}: the version {version} does not cover the kept columns {', '.join(about[SIDECARS])}"
        raise DatasetNotFoundError(f"{message}; name their digest too: version={'+'.join(parts)!r}")


def _is_restored(store: ArtifactStore, name: str, about: Mapping[str, Any]) -> bool:
    versions = [each for each in store.versions.of(name) if each.digest == about["version"]]
    if not versions:
        return False
    manifest = store.manifest_at(versions[-1].stages[LOADED])
    kept = store.manifest_at(manifest.sidecars).digest if manifest.sidecars else ""
    return about.get(KEPT, kept) == kept and store.objects.size(manifest.facts["tokenizer"]) is not None


def _downloaded(repository: str, revision: str | None) -> Path:
    """Return a folder with the files of a revision: of one commit, from the hub's cache if the hub is away."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise missing_package("huggingface_hub", "opening a dataset of the hub") from None
    try:
        patterns = [ABOUT, TOKENIZER, "tokenizer/*", f"{FOLDER}/*.parquet"]
        return Path(snapshot_download(repository, repo_type="dataset", revision=revision, allow_patterns=patterns))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        named = f"{repository} at {revision}" if revision else repository
        message = f"no dataset {named} on the hub; check its spelling, or log in with `hf auth login` if it is private"
        raise DatasetNotFoundError(message) from error
    except Exception as error:  # of HTTP clients, the hub's cache and its transfers
        raise StoreUnavailableError(f"{repository} cannot be downloaded from the hub: {first_line(error)}") from error


def _about(folder: Path, address: str) -> dict[str, Any]:
    try:
        with (folder / ABOUT).open("rb") as file:
            content = file.read(LARGEST_ABOUT + 1)
        if len(content) > LARGEST_ABOUT:
            raise ValueError(f"has more than {LARGEST_ABOUT:,} bytes")
        about = json.loads(content)
        SequenceFacts.of(about["facts"])
        if not all(isinstance(about[name], str) for name in ("dataset", "version")):
            raise ValueError("has no version")
        if not all(isinstance(about[name], dict) for name in ("tokenizer", "counters", SIDECARS)):
            raise ValueError("has no tokenizer, counters or kept columns")
        return about
    except FileNotFoundError:
        message = f"{address} was not written by `tokenloom push`; use it as dataset.name of a YAML, and build it"
        raise DatasetNotFoundError(message) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise StoreError(f"{address}: {ABOUT} is damaged: {first_line(error)}") from error


def _restore(store: ArtifactStore, name: str, folder: Path, about: Mapping[str, Any], address: str) -> None:
    """Write the objects of a pushed dataset, and publish its version; a StoreError if one is not what was pushed."""
    facts, kept = SequenceFacts.of(about["facts"]), about[SIDECARS]
    chunks, sidecars = dict[int, ManifestChunk](), dict[int, ManifestChunk]()
    trained = weighted = 0  # loaders rely on these counts, and the version does not cover those in `about`
    try:
        for path in sorted((folder / FOLDER).glob("*.parquet")):
            for described, rows in _chunks_of(path):
                place, split = described["place"], path.name.rpartition("-")[0]
                table = stored_rows(rows, facts, described["columns"])
                ids_of = [list_views(side[INPUT_IDS])[0] for side in sides(table).values()]
                longest = np.max([np.diff(offsets) for offsets in ids_of], axis=0)  # of pairs, the longer side
                lengths = pa.array(longest, length_type(int(longest.max(initial=0))))
                chunks[place] = _put(store, table, split, address, pa.table({LENGTH: lengths}))
                if chunks[place].output != described["output"]:
                    raise ValueError(f"chunk {described['output']} has other bytes in {path.name}")
                weighted += any(column.endswith(WEIGHTS) for column in table.column_names)
                trained += sum(np.count_nonzero(list_views(side[TRAINED])[1]) for side in sides(table).values())
                if kept:
                    sidecars[place] = _put(store, sidecar_of(rows, kept, facts.packed), split, address)
        notes = {}
        if kept:
            listed = [sidecars[place] for place in sorted(sidecars)]
            manifest = Manifest(name, SIDECARS, listed, facts={"columns": list(kept)})
            if manifest.digest != about.get(KEPT, manifest.digest):
                raise ValueError("its kept columns are not those of its description")
            notes[SIDECARS] = store.put_manifest_object(manifest)
        # files are by split; the manifest has the chunks in the order of the build
        listed = [chunks[place] for place in sorted(chunks)]
        counters = {WEIGHTED: max(weighted, about["counters"].get(WEIGHTED, 1)), TRAINED_TOKENS: int(trained)}
        manifest = Manifest(name, LOADED, listed, about["facts"], counters, notes)
        if manifest.digest != about["version"]:
            raise ValueError(f"its chunks have version {manifest.digest[:12]}, not {about['version'][:12]}")
        tokenizer = _tokenizer_object(folder)
        # the version covers the chunks and, with the facts, the tokenizer: both are recomputed, not believed
        if digest_bytes(tokenizer) != facts.tokenizer:
            raise ValueError(f"its tokenizer is not that of version {manifest.digest[:12]}")
        files = tokenizer_files(pa.py_buffer(tokenizer))
    except (LookupError, ValueError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise StoreError(f"{address}: {first_line(error)}; push it again, or remove it from the hub's cache") from error
    store.objects.put(pa.py_buffer(tokenizer), facts.tokenizer)
    for blob in [*store.blobs.below(f"tokenizers/{facts.tokenizer}")]:
        if blob.name.rpartition("/")[2] not in files:  # of an earlier tokenloom
            store.blobs.delete(blob.name)
    store.publish_tokenizer(facts.tokenizer, files)
    store.versions.add(name, manifest.digest, {LOADED: store.put_manifest(manifest)})


def _tokenizer_object(folder: Path) -> bytes:
    """Return the bytes of a tokenizer's object. Older pushes have only its files."""
    if (path := folder / TOKENIZER).exists():
        if path.stat().st_size > LARGEST_TOKENIZER:
            raise ValueError(f"{TOKENIZER} has more than {LARGEST_TOKENIZER:,} bytes")
        return path.read_bytes()
    paths = [folder / "tokenizer" / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]
    files = {path.name: path.read_bytes() for path in paths if path.exists()}
    table = pa.table({"file": pa.array(list(files)), "content": pa.array(list(files.values()), pa.binary())})
    return encode_table(table, compressed=True).to_pybytes()


def tokenizer_files(data: pa.Buffer) -> dict[str, bytes]:
    """Return the files in a tokenizer's object, by name; raises a ValueError if it is not what the stage writes."""
    table = read_table(data)
    check_tokenizer(table)
    return dict(zip(table["file"].to_pylist(), table["content"].to_pylist(), strict=True))


def kept_digest(folder: Path, kept: Mapping[str, bool], packed: bool) -> str:
    """Return the digest of the manifest of the kept columns in the Parquet files of a push; "" if there are none."""
    pairs = {
        described["place"]: (path.name.rpartition("-")[0], digest_table(sidecar_of(rows, kept, packed)))
        for path in ((folder / FOLDER).glob("*.parquet") if kept else ())
        for described, rows in _chunks_of(path)
    }
    listed = [pairs[place] for place in sorted(pairs)]
    return digest_json({"chunks": listed, "facts": {"columns": list(kept)}}) if kept else ""


def _chunks_of(path: Path) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        listed = json.loads((file.metadata.metadata or {})[b"tokenloom"])["chunks"]
        group = 0
        for described in listed:
            # an empty chunk has no row group
            if not described["rows"]:
                yield described, file.schema_arrow.empty_table()
                continue
            stated = file.metadata.row_group(group)
            if sum(stated.column(column).num_values for column in range(stated.num_columns)) > MOST_VALUES:
                raise ValueError(f"a chunk in {path.name} has more than {MOST_VALUES:,} values")
            yield described, file.read_row_group(group)
            group += 1
        if group != file.num_row_groups:
            raise ValueError(f"{path.name} has {file.num_row_groups} row groups, and names {group} chunks")


def _put(
    store: ArtifactStore, table: pa.Table, split: str, source: str, lengths: pa.Table | None = None
) -> ManifestChunk:
    data = encode_table(table, compressed=False)
    output = digest_bytes(memoryview(data))
    store.objects.put(data, output)
    rows = table.num_rows
    tokens = sum(len(list_views(table[name])[1]) for name in table.column_names if name.endswith(INPUT_IDS))
    return ManifestChunk(
        output=output,
        bytes=data.size,
        rejects=None,
        lengths=store.objects.put(encode_table(lengths, compressed=False)) if lengths is not None else None,
        rows_in=rows,
        rows_out=rows,
        rejected=0,
        filtered=0,
        tokens=tokens,
        table_rows=rows,
        blocks=block_digests(memoryview(data)).hex(),
        split=split,
        runs=(Run(source),),
        unit="row",
        input=output,
        key=output,
    )
