"""A reader of stores written from docs/internals/format.md alone: json, blake3 and pyarrow, nothing of tokenloom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from blake3 import blake3

FORMAT = b"tokenloom store 3\n"
BLOCK = 1 << 18


class RefusedError(Exception):
    """What a reader must refuse."""


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    return blake3(canonical(value)).hexdigest()


def read_object(store: Path, digest: str) -> pa.Table:
    path = store / "objects" / digest[:2] / f"{digest}.arrow"
    data = path.read_bytes()
    if blake3(data).hexdigest() != digest:
        raise RefusedError(f"{digest} has other bytes")
    return pa.ipc.open_file(data).read_all()


def in_text(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk with its digests in hexadecimal and its counters as an object."""
    text = {name: value.hex() if isinstance(value, bytes) else value for name, value in chunk.items()}
    return text | {"counters": json.loads(chunk["counters"])}


class ReadManifest:
    """A manifest: `head` as in its metadata, `chunks` a dict a chunk, `digest` of its content."""

    def __init__(self, store: Path, digest: str):
        table = read_object(store, digest)
        self.head = json.loads(table.schema.metadata[b"tokenloom"])
        if self.head["version"] != 5:
            raise RefusedError(f"manifest version {self.head['version']}")
        self.chunks: list[dict[str, Any]] = list(map(in_text, table.to_pylist()))
        self.digest = digest_of(
            {"chunks": [[chunk["split"], chunk["output"]] for chunk in self.chunks], "facts": self.head["facts"]}
        )


def open_store(store: Path) -> Path:
    if (found := (store / "FORMAT").read_bytes()) != FORMAT:
        raise RefusedError(f"format {found!r}")
    return store


def read_record(store: Path, name: str) -> Any:
    record = json.loads((store / name).read_bytes())
    if record["digest"] != digest_of({"content": record["content"], "name": name}):
        raise RefusedError(f"{name} is damaged")
    return record["content"]


def latest(store: Path, name: str, stage: str) -> ReadManifest:
    return ReadManifest(store, read_record(store, f"datasets/{name}/{stage}.json")["manifest"])


def versions(store: Path, name: str) -> list[dict[str, Any]]:
    folder = f"versions/{name}"
    return [read_record(store, f"{folder}/{path.name}") for path in sorted((store / folder).iterdir())]


def blocks_of(data: bytes) -> str:
    begins = range(0, len(data), BLOCK)
    return "".join(blake3(data[begin : begin + BLOCK]).digest(length=16).hex() for begin in begins)


def read_lengths(store: Path, chunk: dict[str, Any]) -> list[int]:
    """The number of tokens of each row of a chunk of sequences."""
    return read_object(store, chunk["lengths"])["length"].to_pylist()


def read_kept(store: Path, manifest: ReadManifest, number: int, row: int) -> dict[str, list[Any]]:
    """The kept columns of a row of chunk `number` of sequences: by name, the values of its documents."""
    sidecars = ReadManifest(store, manifest.head["notes"]["sidecars"])
    sidecar = read_object(store, sidecars.chunks[number]["output"])
    rows = read_object(store, manifest.chunks[number]["output"])["rows"][row].as_py()
    at = [sidecar["_row"].to_pylist().index(raw) for raw in rows]
    return {name: [_value(sidecar[name][place]) for place in at] for name in sidecars.head["facts"]["columns"]}


def _value(scalar: Any) -> Any:
    value = scalar.as_py()
    return json.loads(value) if str(scalar.type) == "extension<arrow.json>" and value is not None else value


def place_of(chunk: dict[str, Any], row: int) -> str:
    """The source of a raw row of a chunk, and its line or row."""
    run = [run for run in chunk["runs"] if run["first"] <= row][-1]
    if run["offset"] < 0:
        return run["source"]
    at = run["offset"] + row - run["first"]
    return f"{run['source']}:{at + 1}" if chunk["unit"] == "line" else f"{run['source']} row {at}"


def read_row(store: Path, manifest: ReadManifest, split: str, row: int) -> dict[str, list[Any]]:
    """Row i of a split, unpadded: input_ids, labels and loss_weights, of pairs under `chosen_` and `rejected_`."""
    for chunk in (chunk for chunk in manifest.chunks if chunk["split"] == split):
        if row < chunk["table_rows"]:
            break
        row -= chunk["table_rows"]
    else:
        raise IndexError(row)
    path = store / "objects" / chunk["output"][:2] / f"{chunk['output']}.arrow"
    data = path.read_bytes()
    if len(data) != chunk["bytes"] or blocks_of(data) != chunk["blocks"]:
        raise RefusedError(f"{path.name} is damaged")
    table = pa.ipc.open_file(data).read_all()
    names = table.column_names
    found: dict[str, Any] = {}
    for side in ("chosen_", "rejected_") if "chosen_input_ids" in names else ("",):
        ids, trained = (table[f"{side}{name}"][row].as_py() for name in ("input_ids", "trained"))
        labels = [token if flag else -100 for token, flag in zip(ids, trained, strict=True)]
        if manifest.head["facts"]["packed"]:
            at = 0
            for length in table[f"{side}document_lengths"][row].as_py():
                labels[at] = -100
                at += length
        found |= {f"{side}input_ids": ids, f"{side}labels": labels}
        if manifest.head["counters"]["weighted_chunks"]:
            weights = table[f"{side}weights"][row].as_py() if f"{side}weights" in names else trained
            counted = [weight if label != -100 else 0 for weight, label in zip(weights, labels, strict=True)]
            found[f"{side}loss_weights"] = counted
    if "label" in names:
        found["label"] = table["label"][row].as_py()
    return found
