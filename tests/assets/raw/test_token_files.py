"""Files of token ids: read as they were written, also by the tools they come from; damaged ones are refused."""

from __future__ import annotations

import gzip
import random
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom.assets.raw.chunks import SourceNotes, source_chunks
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, TokenloomError

EOS = 3
Documents = list[list[int]]


def documents(count: int = 300, seed: int = 0, high: int = 400) -> Documents:
    draw = random.Random(seed)
    return [[*(draw.randrange(4, high) for _ in range(draw.randrange(0, 40))), EOS] for _ in range(count)]


def read(name: Path, notes: SourceNotes | None = None, **settings: Any) -> dict[str, Any]:
    """The columns of all rows of each split, as lists."""
    dataset = {"name": str(name), **settings.pop("dataset", {})}
    config = PipelineConfig.from_mapping({"name": "made", "dataset": dataset, **settings})
    found: dict[str, Any] = {}
    for chunk in source_chunks(config, notes=notes):
        table = chunk.load().table
        for column in table.column_names[:-1]:
            found.setdefault(chunk.split, {}).setdefault(column, []).extend(table[column].to_pylist())
    return found


def write_megatron(
    prefix: Path, rows: Documents, dtype: str = "<u2", code: int = 8, sequences: list[int] | None = None
) -> None:
    """A pair as Megatron's builder writes it. `sequences` are the bounds of documents among the rows."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    lengths = np.array([len(row) for row in rows], "<i4")
    flat = np.concatenate([np.array(row, dtype) for row in rows]) if rows else np.zeros(0, dtype)
    bounds = range(len(rows) + 1) if sequences is None else sequences
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([code])
    head += np.array([len(rows), len(bounds)], "<u8").tobytes()
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * flat.itemsize
    Path(f"{prefix}.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + np.array(bounds, "<i8").tobytes())
    Path(f"{prefix}.bin").write_bytes(flat.tobytes())


@pytest.mark.parametrize(("dtype", "code"), [("u1", 1), ("<i2", 3), ("<i4", 4), ("<i8", 5), ("<u2", 8)])
def test_megatron_documents_are_rows(dtype: str, code: int, tmp_path: Path) -> None:
    rows = documents(high=120)
    write_megatron(tmp_path / "data", rows, dtype, code)
    for name in ("data.idx", "data.bin", "."):
        assert read(tmp_path / name) == {"train": {"input_ids": rows}}


def test_sequences_of_a_document_are_joined_and_empty_documents_stay(tmp_path: Path) -> None:
    rows, bounds = documents(50), [0, 0, 3, 3, 3, 20, 50, 50]
    write_megatron(tmp_path / "data", rows, sequences=bounds)
    expected = [[token for row in rows[a:b] for token in row] for a, b in pairwise(bounds)]
    assert read(tmp_path / "data.idx")["train"]["input_ids"] == expected


def test_masks_are_read_with_their_tokens_and_splits_by_name(tmp_path: Path) -> None:
    rows, others = documents(40), documents(9, 1)
    for split, part in (("train", rows), ("validation", others)):
        write_megatron(tmp_path / split, part)
        write_megatron(tmp_path / f"{split}_loss_mask", [[i % 2 for i in row] for row in part], "u1", 1)
    (tmp_path / "export.json").write_text("{}")
    (tmp_path / "README.md").write_text("How to use it.")
    assert read(tmp_path) == {
        split: {"input_ids": part, "loss_mask": [[i % 2 for i in row] for row in part]}
        for split, part in (("train", rows), ("validation", others))
    }


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenloom.assets.raw.formats import tokens

    rows, bounds = documents(60), [0, 0, 0, 1, 9, 30, 30, 31, 60]
    write_megatron(tmp_path / "data", rows, sequences=bounds)
    np.concatenate([np.array(row, "<u2") for row in rows]).tofile(tmp_path / "flat.npy")
    flat: Any = {"dataset": {"reader": {"dtype": "uint16", "eos_id": EOS}}}
    whole = read(tmp_path / "data.idx"), read(tmp_path / "flat.npy", **flat)
    monkeypatch.setattr(tokens, "BLOCK", 4)
    monkeypatch.setattr(tokens, "BATCH_BYTES", 50)
    assert (read(tmp_path / "data.idx"), read(tmp_path / "flat.npy", **flat)) == whole
    assert whole[1]["train"]["input_ids"] == rows


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64"])
def test_flat_arrays_are_cut_at_eos(dtype: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    rows, notes = [*documents(), [5, 6]], SourceNotes()  # the last one has no end
    np.concatenate(rows).astype(dtype).tofile(tmp_path / "train.bin")
    np.concatenate(rows[:5]).astype(dtype).tofile(tmp_path / "val.bin")
    dataset = {"format": "flat_tokens", "reader": {"dtype": dtype, "eos_id": EOS}}
    found = read(tmp_path, notes, dataset=dataset)
    assert found == {"train": {"input_ids": rows}, "validation": {"input_ids": rows[:5]}}
    assert any(f"read as {dtype}, documents cut after each id {EOS}" in notice for notice in notes.notices)
    if dtype == "uint16":  # what the tokenizer says: 500 ids, and </s>
        named: Any = {"tokenizer": {"name_or_path": str(tokenizer_folder), "special_tokens": {"eos": "<|endoftext|>"}}}
        assert read(tmp_path / "val.bin", dataset={"format": "flat_tokens"}, **named) == {
            "train": {"input_ids": rows[:5]}
        }


def test_numpy_files_are_flat_arrays_too(tmp_path: Path) -> None:
    rows = documents()
    np.save(tmp_path / "all.npy", np.concatenate(rows).astype(np.uint32))
    dataset = {"reader": {"dtype": "uint16", "eos_id": EOS}}  # the header says otherwise, and is right
    assert read(tmp_path / "all.npy", dataset=dataset) == {"train": {"input_ids": rows}}


@pytest.mark.parametrize("width", [1, 2, 4])
def test_olmo_arrays_have_masks_and_places(width: int, tmp_path: Path) -> None:
    rows = documents(high=200)
    flat = np.concatenate(rows)
    flat.astype(f"<u{width}").tofile(tmp_path / "token_ids_part_0000.npy")
    (flat % 2 == 1).tofile(tmp_path / "labels_mask_part_0000.npy")
    ends = np.cumsum([len(row) for row in rows])
    lines = "".join(f"{end - len(row)},{end},more\n" for end, row in zip(ends, rows, strict=True))
    (tmp_path / "token_ids_part_0000.csv.gz").write_bytes(gzip.compress(lines.encode()))
    expected = {"input_ids": rows, "loss_mask": [[token % 2 for token in row] for row in rows]}
    assert read(tmp_path) == {"train": expected}
    (tmp_path / "token_ids_part_0000.csv.gz").unlink()
    assert read(tmp_path, dataset={"reader": {"eos_id": EOS}}) == {"train": expected}
    with pytest.raises(ConfigError, match=r"dataset\.reader\.eos_id: unknown for token_ids_part_0000\.npy"):
        read(tmp_path)


def index(data: bytes, at: int, values: Any, dtype: str = "<i8") -> bytes:
    """An index with some numbers replaced."""
    new = np.array(values, dtype).tobytes()
    return data[:at] + new + data[at + len(new) :]


ROWS = [[4, 5, EOS], [6, EOS], [7, 8, 9, EOS]]
LENGTHS, POINTERS, BOUNDS = 34, 34 + 12, 34 + 12 + 24

HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "does not start with MMIDIDX"),
    "short": (lambda data: data[:20], "does not start with MMIDIDX"),
    "magic": (lambda data: b"X" + data[1:], "does not start with MMIDIDX"),
    "version": (lambda data: index(data, 9, 2), "version 2"),
    "code": (lambda data: data[:17] + b"\x63" + data[18:], "unknown dtype code 99"),
    "floats": (lambda data: data[:17] + b"\x07" + data[18:], "holds floats"),
    "huge count": (lambda data: index(data, 18, 1 << 62), "states 4,611,686,018,427,387,904 sequences"),
    "all counts": (lambda data: index(data, 18, [-1, -1], "<i8"), "states 18,446,744,073,709,551,615 sequences"),
    "no bounds": (lambda data: index(data, 26, 0), "0 document bounds"),
    "cut off": (lambda data: data[:-8], "which take"),
    "more": (lambda data: data + b"\0" * 8, "which take"),
    "modes": (lambda data: data + b"\0" * 3, "modes of multimodal sequences"),
    "negative length": (lambda data: index(data, LENGTHS, [-1], "<i4"), "negative length"),
    "huge length": (lambda data: index(data, LENGTHS + 8, [(1 << 31) - 1], "<i4"), "is cut off"),
    "pointer past the end": (lambda data: index(data, POINTERS + 16, 1 << 50), "not one after the other"),
    "negative pointer": (lambda data: index(data, POINTERS + 8, -2), "not one after the other"),
    "overlapping": (lambda data: index(data, POINTERS, [0, 0, 4]), "not one after the other"),
    "descending bounds": (lambda data: index(data, BOUNDS, [0, 2, 1, 3]), "do not ascend"),
    "negative bound": (lambda data: index(data, BOUNDS, [-1, 1, 2, 3]), "do not ascend"),
    "bound past the end": (lambda data: index(data, BOUNDS, [0, 1, 2, 9]), "do not ascend"),
    "bounds that start late": (lambda data: index(data, BOUNDS, [1, 1, 2, 3]), "do not ascend"),
    "bounds that end early": (lambda data: index(data, BOUNDS, [0, 1, 2, 2]), "sequences; write both files again"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_index_is_refused(case: str, tmp_path: Path) -> None:
    damage, message = HOSTILE[case]
    write_megatron(tmp_path / "data", ROWS)
    file = tmp_path / "data.idx"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(SourceError, match=message) as raised:
        read(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("case", ["shorter", "longer", "odd", "missing"])
def test_tokens_that_do_not_fit_their_index_are_refused(case: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", ROWS)
    file = tmp_path / "data.bin"
    data = file.read_bytes()
    file.write_bytes({"shorter": data[:-2], "longer": data + b"\0\0", "odd": data[:-1], "missing": b""}[case])
    messages = {
        "shorter": "is cut off",
        "longer": "of 10 tokens",
        "odd": "not a multiple of 2",
        "missing": "no such file",
    }
    if case == "missing":
        file.unlink()
    with pytest.raises(SourceError, match=messages[case]):
        read(tmp_path / "data.idx")


def test_a_mask_of_other_documents_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", ROWS)
    for mask, message in (([[1, 1, 1]], "has 3 values for 9 tokens"), ([[1] * 4, [1] * 5], "other documents")):
        write_megatron(tmp_path / "data_loss_mask", mask, "u1", 1)
        with pytest.raises(SourceError, match=message):
            read(tmp_path / "data.idx")


IDS, MASK, PLACES = "token_ids_part_0.npy", "labels_mask_part_0.npy", "token_ids_part_0.csv.gz"


def numpy_file(header: bytes) -> dict[str, bytes]:
    return {"a.npy": b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header}


def listed(lines: bytes) -> dict[str, bytes]:
    """Three tokens, and a list of their documents."""
    return {IDS: b"\0" * 6, PLACES: gzip.compress(lines)}


FLAT: dict[str, tuple[dict[str, bytes], str]] = {
    "odd size": ({"a.npy": b"\0\0\0"}, "not a multiple of 2"),
    "objects": (numpy_file(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"), "not one list of integers"),
    "wrong header": (numpy_file(b"{{{{\n"), "its NumPy header cannot be read"),
    "code": (numpy_file(b"__import__('os').abort()\n"), "its NumPy header cannot be read"),
    "too many": (numpy_file(b"{'descr': '<u2', 'fortran_order': False, 'shape': (1 << 62,)}\n"), "cannot be read"),
    "more": (numpy_file(b"{'descr': '<u2', 'fortran_order': False, 'shape': (99,)}\n"), "not one list of integers"),
    "short mask": ({IDS: b"\0" * 6, MASK: b"\0"}, "has 1 values for 3"),
    "gap": (listed(b"0,1\n2,3\n"), "not one after the other"),
    "past the end": (listed(b"0,9\n"), "ends at token 9"),
    "before the end": (listed(b"0,2"), "ends at token 2"),
    "descending": (listed(b"0,3\n3,1\n"), "not one after the other"),
    "nothing": (listed(b""), "ends at token 0"),
    "words": (listed(b"start,end\n0,3\n"), "is not a list of start,end"),
    "one column": (listed(b"0\n3\n"), "is not a list of start,end"),
    "not gzip": ({IDS: b"\0" * 6, PLACES: b"0,3\n"}, "cannot be read"),
    "no line ends": (listed(b"0" * (4 << 20)), "a line of more than 1 MiB"),
}


@pytest.mark.parametrize("case", FLAT)
def test_damaged_arrays_are_refused(case: str, tmp_path: Path) -> None:
    files, message = FLAT[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as raised:
        read(tmp_path / next(iter(files)), dataset={"reader": {"eos_id": EOS, "dtype": "uint16"}})
    assert "\n" not in str(raised.value)


def test_a_document_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "huge.npy"
    with file.open("wb") as opened:
        opened.truncate(1 << 30)  # zeros, and no EOS
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match=r"536,870,912 tokens, more than dataset\.reader\.max_record_bytes"):
        read(file, dataset={"reader": {"dtype": "uint16", "eos_id": EOS}})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_any_damage_gives_rows_or_a_sentence(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", ROWS)
    file, draw = tmp_path / "data.idx", random.Random(0)
    data = file.read_bytes()
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        file.write_bytes(broken[: draw.choice([len(broken), draw.randrange(len(broken))])])
        try:
            read(file)
        except TokenloomError as error:
            assert "\n" not in str(error)


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "data", ROWS)
    with pytest.raises(ConfigError, match=r"reader\.dtype: has no effect: it is for flat_tokens"):
        read(tmp_path / "data.idx", dataset={"reader": {"dtype": "uint16"}})
