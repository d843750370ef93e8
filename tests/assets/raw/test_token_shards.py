"""Folders of MDS and litdata: samples are read as they were written; what an index says and is not so is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.reading_child import read_in_children
from tokenloom.assets.raw.chunks import source_chunks
from tokenloom.assets.raw.formats import tokens
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, TokenloomError
from tokenloom.resources.sources import shard_index, source_file
from tokenloom.resources.sources.fingerprint import source_state
from tokenloom.resources.store import ArtifactStore


def configured(name: Path, **dataset: Any) -> PipelineConfig:
    return PipelineConfig.from_mapping({"name": "made", "dataset": {"name": str(name), **dataset}})


def read(name: Path, **dataset: Any) -> dict[str, Any]:
    """The columns of all rows of each split, as lists."""
    found: dict[str, Any] = {}
    for chunk in source_chunks(configured(name, **dataset)):
        table = chunk.load().table
        for column in table.column_names[:-1]:
            found.setdefault(chunk.split, {}).setdefault(column, []).extend(table[column].to_pylist())
    return found


def packed(samples: list[bytes], header: bytes = b"") -> bytes:
    """A shard: the number of samples, their bounds, a header and the samples."""
    start = 8 + 4 * len(samples) + len(header)
    bounds = np.cumsum([start, *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + bounds.tobytes() + header + b"".join(samples)


def array(values: list[int], dtype: str, code: int | None = None) -> bytes:
    """A list as MDS's `ndarray` writes it; with the code of its dtype if the encoding does not state it."""
    width = 1 if len(values) < 256 else 2
    head = b"" if code is None else bytes([code])
    return head + bytes([4 | width // 2]) + len(values).to_bytes(width, "little") + np.array(values, dtype).tobytes()


def sample(fixed: bytes, *variable: bytes) -> bytes:
    """Sizes of the variable values, these, then a fixed one."""
    return np.array([*map(len, variable)], "<u4").tobytes() + b"".join(variable) + fixed


def write_mds(folder: Path, shards: list[list[bytes]], columns: dict[str, tuple[str, int | None]]) -> None:
    """Samples that are encoded already, in files of their own, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    names, encodings = [*columns], [encoding for encoding, _ in columns.values()]
    config = {"column_names": names, "column_encodings": encodings, "column_sizes": [s for _, s in columns.values()]}
    config |= {"compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2}
    described = []
    for number, samples in enumerate(shards):
        content = packed(samples, json.dumps(config).encode())
        (folder / f"shard.{number:05d}.mds").write_bytes(content)
        data = {"basename": f"shard.{number:05d}.mds", "bytes": len(content), "hashes": {}}
        described.append({**config, "samples": len(samples), "raw_data": data, "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": described}))


def write_litdata(folder: Path, chunks: list[list[list[int]]], dtype: str = "<i4", code: str = "tensor:16") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    described = []
    for number, rows in enumerate(chunks):
        content = packed([np.array(row, dtype).tobytes() for row in rows])
        (folder / f"chunk-0-{number}.bin").write_bytes(content)
        known = {"chunk_bytes": len(content), "chunk_size": len(rows), "dim": sum(map(len, rows))}
        described.append({"filename": f"chunk-0-{number}.bin", **known})
    config = {"data_format": [f"no_header_{code}"], "compression": None, "chunk_size": None}
    (folder / "index.json").write_text(json.dumps({"chunks": described, "config": config}))


def ids(count: int = 400, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(120) for _ in range(draw.choice([0, 1, 9, 300]))] for _ in range(count)]


def mds_of(folder: Path, rows: list[list[int]], shards: int = 1) -> None:
    samples = [sample(b"", array(row, "<i4")) for row in rows]
    write_mds(folder, [samples[at::shards] for at in range(shards)], {"input_ids": ("ndarray:int32", None)})


SCALARS = {
    "int": "<i8",
    **{kind: kind for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    **{kind: kind for kind in ("float16", "float32", "float64")},
}


@pytest.mark.parametrize("encoding", SCALARS)
def test_numbers_stand_beside_lists(encoding: str, tmp_path: Path) -> None:
    dtype, rows = np.dtype(SCALARS[encoding]), ids(50)
    samples = [sample(np.array(n, dtype).tobytes(), array(row, "<u2")) for n, row in enumerate(rows)]
    write_mds(tmp_path, [samples], {"ids": ("ndarray:uint16", None), "number": (encoding, dtype.itemsize)})
    assert read(tmp_path)["train"] == {"ids": rows, "number": [*range(50)]}


def test_values_of_all_sizes_are_read_with_any_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, kinds = ids(), [("u1", 8), ("<i2", 17), ("<i8", 65)]
    samples = [
        sample(
            np.array([n, 2], "<f4").tobytes(),
            array(row, *kinds[n % 3]),
            json.dumps({"n": n}).encode(),
            f"é{n}".encode(),
            np.array(row, "<i8").tobytes(),
        )
        for n, row in enumerate(rows)
    ]
    columns: dict[str, tuple[str, int | None]] = {
        "any": ("ndarray", None),
        "extra": ("json", None),
        "text": ("str", None),
        "raw": ("bytes", None),
        "pair": ("ndarray:float32:2", 8),
    }
    write_mds(tmp_path, [samples[:7], samples[7:]], columns)
    expected = {
        "any": rows,
        "extra": [{"n": n} for n in range(len(rows))],
        "text": [f"é{n}" for n in range(len(rows))],
        "raw": rows,
        "pair": [[n, 2] for n in range(len(rows))],
    }
    assert read(tmp_path, reader={"dtype": "int64"})["train"] == expected
    assert read(tmp_path)["train"]["raw"] == [np.array(row, "<i8").tobytes() for row in rows]
    monkeypatch.setattr(tokens, "BATCH_BYTES", 900)
    monkeypatch.setattr(tokens, "BATCH_ROWS", 11)
    assert read(tmp_path, reader={"dtype": "int64"})["train"] == expected


@pytest.mark.parametrize(("dtype", "code"), [("<i4", "tensor:16"), ("<i8", "tensor:18"), ("<u2", "numpy:5")])
def test_items_of_litdata_are_rows(dtype: str, code: str, tmp_path: Path) -> None:
    rows = ids()
    write_litdata(tmp_path / "train", [rows[:100], rows[100:]], dtype, code)
    write_litdata(tmp_path / "val", [rows[:3]], dtype, code)
    assert read(tmp_path) == {"train": {"input_ids": rows}, "validation": {"input_ids": rows[:3]}}
    assert read(tmp_path / "val" / "index.json", format="litdata") == {"train": {"input_ids": rows[:3]}}


def test_folders_are_splits_and_the_outer_index_of_a_merged_one_is_read(tmp_path: Path) -> None:
    rows = ids(60)
    mds_of(tmp_path / "splits" / "train", rows)
    mds_of(tmp_path / "splits" / "val", rows[:2])
    assert read(tmp_path / "splits") == {"train": {"input_ids": rows}, "validation": {"input_ids": rows[:2]}}
    mds_of(tmp_path / "merged" / "0", rows)
    index = json.loads((tmp_path / "merged" / "0" / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "0/shard.00000.mds"
    (tmp_path / "merged" / "index.json").write_text(json.dumps(index))
    assert read(tmp_path / "merged") == {"train": {"input_ids": rows}}


@pytest.mark.parametrize("kind", ["zstd", "gz:6"])
def test_compressed_shards_are_read(kind: str, tmp_path: Path) -> None:
    rows = ids()
    mds_of(tmp_path, rows)
    name = f"shard.00000.mds.{kind.partition(':')[0]}"
    content = (tmp_path / "shard.00000.mds").read_bytes()
    changed = gzip.compress(content) if kind != "zstd" else pa.compress(content, "zstd", asbytes=True)
    (tmp_path / name).write_bytes(changed)
    (tmp_path / "shard.00000.mds").unlink()
    zipped = {"basename": name, "bytes": len(changed), "hashes": {}}
    change(tmp_path, lambda shard: shard.update(compression=kind, zip_data=zipped))
    assert read(tmp_path) == {"train": {"input_ids": rows}}
    change(tmp_path, lambda shard: shard.update(compression="br"))
    with pytest.raises(SourceError, match=r"compressed with br, which is not read; only zstd, gz, bz2 are"):
        read(tmp_path)


def test_a_changed_shard_is_a_changed_source(tmp_path: Path) -> None:
    mds_of(tmp_path / "data", [[1, 2], [3]])
    store = ArtifactStore(tmp_path / "store")
    before = source_state(configured(tmp_path / "data"), store)
    shard = tmp_path / "data" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    after = source_state(configured(tmp_path / "data"), store)
    assert before.fingerprint != after.fingerprint and before.files == 2


def test_other_folders_are_not_taken_for_such(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('[{"text": "a"}]')
    (tmp_path / "model.bin").write_bytes(b"0")
    assert read(tmp_path) == {"train": {"text": ["a"]}}
    (tmp_path / "index.json").unlink()
    (tmp_path / "shard.00000.mds").write_bytes(b"0")
    with pytest.raises(ConfigError, match=r"shard\.00000\.mds is a shard .* no index\.json lists it"):
        read(tmp_path)


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit the first shard or chunk of an index."""
    index = json.loads((folder / "index.json").read_text())
    edit(next(iter(index.get("shards") or index["chunks"])))
    (folder / "index.json").write_text(json.dumps(index))


def raw(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda shard: shard["raw_data"].update(values)


def stated(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda shard: shard.update(values)


INDEX: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "parent": (raw(basename="../secret.mds"), "is not the name of a file in the folder"),
    "inner parent": (raw(basename="a/../../secret.mds"), "is not the name of a file in the folder"),
    "absolute": (raw(basename="/etc/passwd"), "is not the name of a file in the folder"),
    "url": (raw(basename="s3://bucket/a.mds"), "is not the name of a file in the folder"),
    "windows": (raw(basename="..\\secret.mds"), "is not the name of a file in the folder"),
    "line break": (raw(basename="a\n"), "is not the name of a file in the folder"),
    "missing": (raw(basename="shard.00009.mds"), r"lists shard\.00009\.mds, which is not there"),
    "negative": (stated(samples=-1), "Expected `int` >= 0 - at .*samples"),
    "huge": (stated(samples=1 << 40), "Expected `int` <= 4294967295"),
    "more": (stated(samples=4_000_000_000), "its index states 4,000,000,000"),
    "text": (stated(samples="3"), "Expected `int`, got `str`"),
    "other size": (raw(bytes=9), "in 9"),
    "version": (stated(version=1), "version"),
    "csv": (stated(format="csv"), "format"),
    "one column less": (stated(column_names=[]), "differ in number"),
    "names": (
        stated(column_names=["a"] * 2, column_encodings=["int"] * 2, column_sizes=[8] * 2),
        "equal names",
    ),
    "pickle": (stated(column_encodings=["pkl"]), "input_ids has the encoding pkl, which is not read"),
    "image": (stated(column_encodings=["jpeg"]), "input_ids has the encoding jpeg, which is not read"),
    "axes": (stated(column_encodings=["ndarray:int32:2,2"]), "which is not read"),
    "objects": (stated(column_encodings=["ndarray:object"]), "which is not read"),
    "states no size": (stated(column_encodings=["int"]), "is int, but states None bytes"),
    "huge size": (stated(column_sizes=[1 << 31]), "but states 2147483648 bytes"),
    "bytes of a huge array": (
        stated(column_encodings=["ndarray:int64:99999999"], column_sizes=[8 * 99999999]),
        "do not add up",
    ),
    "other dtype": (stated(column_encodings=["ndarray:int64"]), "not those of its shape"),
    "no dtype": (stated(column_encodings=["ndarray"]), "cannot be read: an array"),
    "json": (stated(column_encodings=["json"]), "a sample cannot be read"),
    "many columns": (
        stated(column_names=[*map(str, range(99999))], column_encodings=["str"] * 99999, column_sizes=[0] * 99999),
        "at most",
    ),
}


@pytest.mark.parametrize("case", INDEX)
def test_an_index_that_is_not_so_is_refused(case: str, tmp_path: Path) -> None:
    edit, message = INDEX[case]
    mds_of(tmp_path / "data", [[1, 2, 3], [4], [5, 6]])
    (tmp_path / "secret.mds").write_bytes((tmp_path / "data" / "shard.00000.mds").read_bytes())
    change(tmp_path / "data", edit)
    with pytest.raises(SourceError, match=message) as raised:
        read(tmp_path / "data")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


LITDATA: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "parent": ({"filename": "../a.bin"}, {}, "is not the name of a file in the folder"),
    "huge": ({"dim": 1 << 60}, {}, "its index states 2"),
    "negative": ({"dim": -1}, {}, "its index states 2"),
    "several": ({}, {"data_format": ["int", "str"]}, "its items are int, str, not arrays of integers"),
    "floats": ({}, {"data_format": ["no_header_tensor:1"]}, "its items are no_header_tensor:1"),
    "pickle": ({}, {"data_format": ["pickle"]}, "its items are pickle"),
    "objects": ({"dim": None}, {}, "its items are no_header_tensor:16, not arrays"),
    "loader": ({}, {"item_loader": "PyTreeLoader"}, "TokensLoader"),
    "compressed": ({}, {"compression": "zstd"}, "written with zstd"),
    "encrypted": ({}, {"encryption": {"algorithm": "fernet"}}, "written with encryption"),
    "odd": ({}, {"data_format": ["no_header_tensor:18"]}, "its index states 2 in 32"),
}


@pytest.mark.parametrize("case", LITDATA)
def test_chunks_of_another_kind_are_refused(case: str, tmp_path: Path) -> None:
    chunk, config, message = LITDATA[case]
    write_litdata(tmp_path, [[[1], [2]]])
    index = json.loads((tmp_path / "index.json").read_text())
    index["chunks"][0].update(chunk)
    index["config"].update(config)
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=message) as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


def replaced(at: int, *values: int) -> Callable[[bytes], bytes]:
    new = np.array(values, "<u4").tobytes()
    return lambda data: data[:at] + new + data[at + len(new) :]


SHARD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "shorter": (lambda data: data[:-1], "its index states"),
    "longer": (lambda data: data + b"\0", "its index states"),
    "other number": (replaced(0, 9), "has 9 samples"),
    "inside the bounds": (replaced(4, 8), "not one after the other"),
    "descending": (replaced(8, 1), "not one after the other"),
    "past the end": (replaced(16, 1 << 31), "samples end at 2,147,483,648"),
    "before the end": (lambda data: replaced(16, len(data) - 4)(data), "samples end at"),
}


@pytest.mark.parametrize("case", SHARD)
def test_a_damaged_shard_is_refused(case: str, tmp_path: Path) -> None:
    damage, message = SHARD[case]
    mds_of(tmp_path, [[1, 2, 3], [4], [5, 6]])
    shard = tmp_path / "shard.00000.mds"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(SourceError, match=message):
        read(tmp_path)


SAMPLES: dict[str, tuple[str, bytes, str]] = {
    "no sizes": ("str", b"\0\0", "shorter than the sizes"),
    "size past the end": ("str", b"\xff\xff\xff\xffab", "do not add up"),
    "left over": ("str", b"\1\0\0\0ab", "do not add up"),
    "empty array": ("ndarray", sample(b"", b""), "shorter than its description"),
    "unknown dtype": ("ndarray", sample(b"", b"\7\4\0"), "unknown dtype"),
    "two axes": ("ndarray:uint8", sample(b"", b"\x08\1\1\0"), "has not one axis"),
    "cut axis": ("ndarray:uint8", sample(b"", b"\7\1\1"), "shorter than its description"),
    "huge axis": ("ndarray:int32", sample(b"", b"\7" + (1 << 62).to_bytes(8, "little")), "not those of its shape"),
    "odd bytes": ("ndarray:int32", sample(b"", b"\4\1\0\0\0\0\0"), "not those of its shape"),
    "not JSON": ("json", sample(b"", b"{"), "cannot be read"),
    "deep JSON": ("json", sample(b"", b"[" * 100_000), "cannot be read"),
    "deep valid JSON": ("json", sample(b"", b"[" * 900 + b"]" * 900), "more than 64 levels deep"),
    "not UTF-8": ("json", sample(b"", b'"\xff"'), "cannot be read"),
    "huge number": ("json", sample(b"", b"9" * 30), "cannot be read"),
}


@pytest.mark.parametrize("case", SAMPLES)
def test_a_damaged_sample_is_refused(case: str, tmp_path: Path) -> None:
    encoding, content, message = SAMPLES[case]
    write_mds(tmp_path, [[content]], {"a": (encoding, None)})
    with pytest.raises(SourceError, match=message) as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


NO_INDEX = (b"[" * 1_000_000, b"{", b"\xff", b"[]", b'{"shards": {}}', b'{"shards": [{}]}', b"")


@pytest.mark.parametrize("content", NO_INDEX)
def test_what_is_no_index_is_refused(content: bytes, tmp_path: Path) -> None:
    mds_of(tmp_path, [[1]])
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(SourceError, match=r"index\.json: is not an index of mds") as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


def test_large_indices_and_samples_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 8 + 4 + (1 << 31)
    mds_of(tmp_path, [[1]])
    with (tmp_path / "shard.00000.mds").open("r+b") as opened:
        opened.write(np.array([1, 12, size], "<u4").tobytes())
        opened.truncate(size)
    change(tmp_path, raw(bytes=size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match=r"sample 0 has 2,147,483,648 bytes, more than .*max_record_bytes"):
        read(tmp_path)
    monkeypatch.setattr(shard_index, "LARGEST_INDEX", 1 << 20)
    with (tmp_path / "index.json").open("ab") as opened:
        opened.truncate(1 << 30)
    with pytest.raises(SourceError, match="is larger than 1 MiB"):
        read(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


MANY = 1_500_000
FAULTS = {
    "sizes": b'{"shards":[{"column_sizes":[' + b"-1," * MANY + b"-1]}]}",
    "names": b'{"shards":[{"column_names":[' + b"1," * MANY + b"1]}]}",
    "shards": b'{"shards":[' + b"{}," * MANY + b"{}]}",
    "shards of other kinds": b'{"shards":[' + b"[]," * MANY + b"[]]}",
}


def test_an_index_with_a_million_faults_takes_no_more_memory_than_one(tmp_path: Path) -> None:
    for name, content in FAULTS.items():
        mds_of(tmp_path / name, [[1]])
        (tmp_path / name / "index.json").write_bytes(content)
    write_litdata(tmp_path / "litdata", [[[1]]])
    (tmp_path / "litdata" / "index.json").write_bytes(b'{"config":{},"chunks":[' + b"{}," * MANY + b"{}]}")
    for outcome in read_in_children([{"name": str(folder)} for folder in sorted(tmp_path.iterdir())]):
        assert "is not an index of" in outcome.error and len(outcome.error) < 400, outcome
        assert outcome.peak < 200 << 20, outcome


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_compressed_shard_is_unpacked_to_its_stated_size_at_most(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    class Spool(io.BytesIO):
        def write(self, data: Any) -> int:
            nonlocal written
            written += len(data)
            return super().write(data)

    monkeypatch.setattr(source_file.tempfile, "TemporaryFile", lambda **_: Spool())
    mds_of(tmp_path, [[1]])
    shard = tmp_path / "shard.00000.mds"
    ending = "gz" if pack is gzip.compress else "bz2"
    packed_file = tmp_path / f"shard.00000.mds.{ending}"
    packed_file.write_bytes(pack(shard.read_bytes() + bytes(20 * source_file.BLOCK_BYTES)))
    shard.unlink()
    change(tmp_path, stated(compression=ending, zip_data={"basename": packed_file.name, "bytes": 1}))
    with pytest.raises(SourceError, match=r"unpacks to more than the .* bytes that are stated"):
        read(tmp_path)
    assert 0 < written <= source_file.BLOCK_BYTES


def test_a_compressed_table_is_unpacked_to_a_multiple_of_its_size_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "_UNPACKED", 1 << 20)
    for name in ("x.parquet.bz2", "x.arrow.bz2", "token_ids_part_0.npy.bz2", "x.idx.bz2"):
        kind = {"x.idx.bz2": "megatron", "token_ids_part_0.npy.bz2": "flat_tokens"}.get(name, "auto")
        (tmp_path / name).write_bytes(bz2.compress(bytes(10 << 20)))
        with pytest.raises(SourceError, match=rf"{name}: unpacks to more than 1,000 times its size; unpack it"):
            read(tmp_path / name, format=kind)


@pytest.mark.parametrize("file", ["index.json", "shard.00000.mds"])
def test_any_damage_gives_rows_or_a_sentence(file: str, tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"a": ("ndarray", None), "n": ("int", 8)}
    samples = [sample(np.int64(n).tobytes(), array([n] * n, "<i4", 33)) for n in range(6)]
    write_mds(tmp_path, [samples], columns)
    path, draw = tmp_path / file, random.Random(0)
    data = path.read_bytes()
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        path.write_bytes(broken[: draw.choice([len(broken), draw.randrange(len(broken))])])
        try:
            read(tmp_path)
        except TokenloomError as error:
            assert "\n" not in str(error)
