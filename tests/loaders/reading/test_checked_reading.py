"""Damaged bytes never become rows: a reader checks bytes when it first reads them, before Arrow does."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.datasets_on_disk import write_dataset
from support.soak import SOAK, each
from support.stored_sequences import Written, write_sequences
from tokenloom import DataPipeline, open_dataset
from tokenloom.errors import StoreError
from tokenloom.loaders import TokenLoader
from tokenloom.loaders.order.batch_plan import WINDOW_ROWS
from tokenloom.loaders.reading.batch import PaddingPolicy
from tokenloom.loaders.reading.memory import MappedObject
from tokenloom.loaders.reading.reader import DEFERRED, SequenceReader
from tokenloom.resources.digest import BLOCK_SIZES
from tokenloom.resources.store import ArtifactStore, ManifestChunk, Run
from tokenloom.resources.store.verify import verify as verify_store
from tokenloom.resources.tables.ragged import list_array

MIB = 1 << 20
FLIPS = 2000 if SOAK else 60


@pytest.fixture(scope="module", params=BLOCK_SIZES[:2])
def large(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Written:
    """Objects of several MiB, one of them with weights, and one with a few rows."""
    folder = tmp_path_factory.mktemp("large")
    written = write_sequences(folder, "large", [1_400_000, 500_000, 3_000], 5_000, block=request.param)
    assert [path.stat().st_size // MIB for path in written.objects()] == [4, 3, 0]
    return written


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_sequences(tmp_path_factory.mktemp("tiny"), "tiny", [200], 20)


def test_empty_objects_hide_no_others(tmp_path: Path) -> None:
    written = write_sequences(tmp_path, "hollow", [0, 3_000, 0, 3_000])
    first, second, *_ = written.objects()
    assert read(written) == len(written.rows)
    for path in (first, second):
        for position in range(0, path.stat().st_size, 61):
            with flipped(path, position, 255), pytest.raises(StoreError, match=path.stem):
                read(written)


@contextmanager
def flipped(path: Path, position: int, mask: int) -> Iterator[None]:
    """Return the file with one byte changed."""

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ mask]))

    flip()
    try:
        yield
    finally:
        flip()


def read(written: Written, verify: bool = True, **settings: Any) -> int:
    """Read all rows, in the order of a loader; every one that comes must be what was written. Returns their number."""
    dataset = open_dataset(written.name, store=written.folder, verify=verify)
    loader = TokenLoader(dataset, batch_size=16, padding="longest", **settings)
    order, count = (step.rows for step in loader.steps()), 0
    for batch in loader:
        for at, row in enumerate(next(order).tolist()):
            ids, labels, weights = written.rows[row]
            found = {name: value[at].numpy()[: len(ids)] for name, value in batch.items()}
            assert np.array_equal(found["input_ids"], ids)
            assert np.array_equal(found["labels"], labels)
            assert np.array_equal(found.get("loss_weights", weights), weights)
            assert int(batch["attention_mask"][at].sum()) == len(ids)
            count += 1
    return count


def test_whole_objects_are_read_as_they_were_written(large: Written, tiny: Written) -> None:
    for written in (large, tiny):
        for verify in (True, False):
            assert read(written, verify) == len(written.rows)
        assert verify_store(ArtifactStore(written.folder), remove=False).findings == []


def test_a_flip_of_any_byte_of_a_small_object_is_told(tiny: Written) -> None:
    (path,) = tiny.objects()
    draw = random.Random(0)
    for position in range(0, path.stat().st_size, 1 if FLIPS > 1000 else 3):
        with flipped(path, position, draw.randrange(1, 256)), pytest.raises(StoreError, match=path.stem):
            read(tiny)


def regions(path: Path) -> dict[str, tuple[int, int]]:
    """Return the byte ranges of a file's parts, according to Arrow."""
    with pa.memory_map(str(path)) as source:
        data = source.read_buffer()
    table = pa.ipc.open_file(data).read_all()
    footer = int.from_bytes(path.read_bytes()[-10:-6], "little")
    found = {"head": (0, 1200), "footer": (data.size - 10 - footer, data.size)}
    for name in table.column_names:
        array = table[name].chunk(0)
        for part, buffer in zip(("offsets", "values"), (array.buffers()[1], array.values.buffers()[1]), strict=True):
            begin = buffer.address - data.address
            found[f"{name} {part}"] = (begin, begin + buffer.size)
            found[f"behind {name} {part}"] = (begin + buffer.size, -(-(begin + buffer.size + 1) // 64) * 64)
    return found


def test_a_flip_anywhere_in_a_large_object_is_told_before_a_wrong_row_is_returned(large: Written) -> None:
    draw, paths = random.Random(1), large.objects()
    bounds = [(path, regions(path)) for path in paths]
    for number in range(FLIPS):
        path, found = bounds[number % len(bounds)]
        begin, end = found[list(found)[number // len(bounds) % len(found)]]
        position = min(draw.randrange(begin, end), path.stat().st_size - 1)
        with flipped(path, position, draw.randrange(1, 256)), pytest.raises(StoreError, match=path.stem) as caught:
            read(large, seed=number)
        expected = f"dataset 'large': object {path.stem} is damaged in block {position // large.block}; "
        assert str(caught.value) == f"{expected}run `tokenloom verify large`, then build it again"
        assert caught.value.exit_code == 4
    assert read(large) == len(large.rows)


def test_bytes_that_no_batch_has_touched_are_not_checked(large: Written) -> None:
    first, second, third = large.objects()
    begin, end = regions(first)["input_ids values"]
    rows = len(pa.ipc.open_file(first).read_all())
    third.rename(third.with_suffix(".away"))
    try:
        with flipped(first, large.block + 5, 1), flipped(second, 5, 1):
            dataset = open_dataset("large", store=large.folder)
            for row in (0, rows - 1):
                assert dataset[row]["input_ids"].tolist() == large.rows[row][0].tolist()
            for row in (rows * large.block * 3 // 2 // (end - begin), rows, len(dataset) - 1):
                for _ in range(2):
                    with pytest.raises(StoreError, match=r"tokenloom verify large"):
                        dataset[row]
    finally:
        third.with_suffix(".away").rename(third)


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_all_batches_before_a_damaged_one_are_given(tmp_path: Path, prefetch_factor: int) -> None:
    written = write_sequences(tmp_path, "long", [6_000_000], 2_000)
    (path,) = written.objects()
    begin, _ = regions(path)["input_ids values"]
    ends = np.cumsum([len(ids) for ids, _, _ in written.rows]) * 2
    block = (begin + 5 * MIB) // written.block
    first = int(np.searchsorted(ends, block * written.block - begin, side="right"))  # row with bytes of the block
    with flipped(path, begin + 5 * MIB, 1):
        settings: dict[str, Any] = {"padding": "longest", "shuffle": "none", "prefetch_factor": prefetch_factor}
        loader = TokenLoader(open_dataset("long", store=tmp_path), batch_size=16, **settings)
        batches, count = iter(loader), 0
        with pytest.raises(StoreError, match=f"in block {block}"):
            while True:
                next(batches)
                count += 1
        assert count == first // 16 > 70
        assert loader.state_dict()["position"] == 16 * count
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("tokenloom-prefetch")]
        loader.skip(count, len(loader))
        loader.load_state_dict(loader.state_dict())
        assert not [*loader]


@pytest.mark.parametrize("budget", [100, 200])
def test_all_batches_of_a_token_budget_before_damage_are_given(tmp_path: Path, budget: int) -> None:
    written = write_sequences(tmp_path, "windows", [8 * WINDOW_ROWS, 8_000], 8)
    _, second = written.objects()
    begin, _ = regions(second)["input_ids offsets"]
    with flipped(second, begin + 4, 1):  # read for the lengths of the second window
        dataset = open_dataset("windows", store=tmp_path)
        loader = TokenLoader(dataset, token_budget=budget, padding="longest", shuffle="none")
        batches, rows = iter(loader), 0
        with pytest.raises(StoreError, match=second.stem):
            while True:
                rows += len(next(batches)["input_ids"])
        assert rows == loader.state_dict()["position"] == WINDOW_ROWS


def test_what_was_checked_is_not_checked_again(tiny: Written) -> None:
    (path,) = tiny.objects()
    dataset = open_dataset("tiny", store=tiny.folder)
    assert [dataset[row]["input_ids"].tolist() for row in range(len(dataset))] == [row[0].tolist() for row in tiny.rows]
    begin, _ = regions(path)["input_ids values"]
    with flipped(path, begin, 1):
        assert dataset[0]["input_ids"].tolist() == [tiny.rows[0][0][0] ^ 1, *tiny.rows[0][0][1:].tolist()]


class Counted(MappedObject):
    """Counts how often its rows are passed to be checked."""

    touched = 0

    def touch(self, values: Any, begins: Any, ends: Any) -> None:
        self.touched += 1
        super().touch(values, begins, ends)


@pytest.mark.parametrize("all_trained", [True, False])
def test_chunks_are_looked_at_until_all_that_batches_read_is_checked(large: Written, all_trained: bool) -> None:
    store = ArtifactStore(large.folder)
    chunk = store.manifest("large").chunks[0]
    opened = Counted(store.objects, chunk, "large", lambda _: None, DEFERRED)
    reader = SequenceReader([chunk.table_rows], lambda _: opened, False, all_trained)
    rows, policy = np.arange(chunk.table_rows), PaddingPolicy(0, "longest", "right", 1, False)
    for part in np.array_split(rows, 4):
        reader.batch(part, policy)
    before = opened.touched
    assert before > 0
    reader.batch(rows, policy)
    assert opened.touched == before


def test_weights_of_pairs_are_checked(tmp_path: Path) -> None:
    store, offsets = ArtifactStore(tmp_path), np.arange(0, 900_001, 90_000)
    store.prepare()
    columns = {"rows": list_array(np.arange(11), np.arange(10, dtype=np.int32))}
    for side in ("chosen", "rejected"):
        columns[f"{side}_input_ids"] = list_array(offsets, np.arange(900_000).astype(np.uint16))
        columns[f"{side}_trained"] = list_array(offsets, np.ones(900_000, np.uint8))
        columns[f"{side}_weights"] = list_array(offsets, np.full(900_000, 0.5, np.float32))
        columns[f"{side}_document_lengths"] = list_array(np.arange(11), np.full(10, 90_000, np.int32))
    table = pa.table(columns)
    counts = {"rows_in": 10, "rows_out": 10, "rejected": 0, "filtered": 0, "tokens": 900_000}
    action = store.put_action("0" * 64, table, table.slice(0, 0), counts, {}, compressed=False, blocks=True)
    place: dict[str, Any] = {"split": "train", "runs": (Run("pairs", offset=0),), "unit": "row"}
    chunk = ManifestChunk(**place, input="0" * 64, key="0" * 64, **vars(action))
    path, policy = store.objects.path(chunk.output), PaddingPolicy(0, "longest", "right", 1, False)
    for side in ("chosen", "rejected"):
        _, end = regions(path)[f"{side}_weights values"]
        with flipped(path, end - 90_000, 1):  # within the last row
            opened = MappedObject(store.objects, chunk, "pairs", lambda _: None, DEFERRED)
            reader = SequenceReader([10], lambda _, opened=opened: opened, True)
            assert np.array_equal(reader.batch(np.array([0]), policy)[f"{side}_loss_weights"], [[0.5] * 90_000])
            with pytest.raises(StoreError, match="damaged in block"):
                reader.batch(np.array([9]), policy)


def test_with_verify_off_nothing_is_checked(tiny: Written) -> None:
    (path,) = tiny.objects()
    begin, _ = regions(path)["input_ids values"]
    with flipped(path, begin, 1):
        dataset = open_dataset("tiny", store=tiny.folder, verify=False)
        assert dataset[0]["input_ids"].tolist() == [tiny.rows[0][0][0] ^ 1, *tiny.rows[0][0][1:].tolist()]


@pytest.mark.parametrize(("size", "verify"), each([0, 7, 100, -1, None], [True, False]))
def test_a_file_of_another_size_is_told(tmp_path: Path, verify: bool, size: int | None) -> None:
    written = write_sequences(tmp_path, "cut", [3_000])
    (path,) = written.objects()
    data = path.read_bytes()
    path.write_bytes(data + b"more" if size is None else data[:size])
    with pytest.raises(StoreError, match=f"dataset 'cut': object {path.stem} .*run `tokenloom verify cut`"):
        read(written, verify)
    path.unlink()
    with pytest.raises(StoreError, match=f"dataset 'cut': object {path.stem} is missing; run `tokenloom verify cut`"):
        read(written, verify)


def test_a_damaged_manifest_is_told_before_it_is_read(tmp_path: Path) -> None:
    written = write_sequences(tmp_path, "listed", [3_000])
    store = ArtifactStore(tmp_path)
    path = store.objects.path(store.manifest_digest("listed"))
    draw = random.Random(2)
    for position in range(0, path.stat().st_size, 1 if FLIPS > 1000 else 17):
        with (
            flipped(path, position, draw.randrange(1, 256)),
            pytest.raises(StoreError, match=f"{path.stem} is damaged"),
        ):
            open_dataset("listed", store=tmp_path)
    assert read(written) == len(written.rows)


def test_threads_that_share_a_dataset_leave_nothing_unchecked(large: Written) -> None:
    path = large.objects()[1]
    dataset = open_dataset("large", store=large.folder)
    parts = np.array_split(np.arange(len(dataset)), 4)
    with flipped(path, path.stat().st_size // 2, 1), ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            with pytest.raises(StoreError, match=path.stem):
                list(pool.map(lambda rows: [dataset[row] for row in rows.tolist()], parts))


def test_worker_processes_tell_of_damage_too(large: Written) -> None:
    path = large.objects()[0]
    begin, _ = regions(path)["trained values"]
    assert read(large, num_workers=2) == len(large.rows)
    with flipped(path, begin + MIB // 2, 1), pytest.raises(StoreError, match=path.stem):
        read(large, num_workers=2)


@pytest.mark.parametrize("form", ["text", "completion"])
def test_flags_are_read_unless_all_tokens_are_trained(tmp_path: Path, form: str) -> None:
    columns = {"text": "output"} if form == "text" else {"prompt": "instruction", "completion": "output"}
    dataset = {"name": "small.jsonl", "column_mapping": columns}
    config = write_dataset(tmp_path, dataset=dataset, prompt_template={"format_type": form})
    pipeline = DataPipeline.from_config(config, store=tmp_path / "store").unwrap()
    trained = pipeline.build().unwrap()[-1].counters["tokens_trained"]
    (chunk,) = pipeline.store.manifest("small").chunks
    path = pipeline.store.objects.path(chunk.output)
    rows = pa.ipc.open_file(path).read_all().to_pylist()
    assert trained == sum(sum(row["trained"]) for row in rows)
    assert (trained == chunk.tokens) == (form == "text")
    last = rows[-1]["input_ids"]
    begin, _ = regions(path)["trained values"]
    with flipped(path, begin + chunk.tokens - 1, 1):  # the very last token, which is trained
        labels = pipeline.get_dataset(verify=False).unwrap()[len(rows) - 1]["labels"].tolist()
    assert labels[-1] == (last[-1] if form == "text" else -100)
    assert labels[-2] == last[-2]


def test_a_built_dataset_is_checked_from_the_yaml_too(tmp_path: Path) -> None:
    pipeline = DataPipeline.from_config(write_dataset(tmp_path), store=tmp_path / "store").unwrap()
    dataset = pipeline.get_dataset().unwrap()
    rows = [dataset[row]["input_ids"].tolist() for row in range(len(dataset))]
    path = pipeline.store.objects.path(pipeline.store.manifest("small").chunks[0].output)
    begin, _ = regions(path)["input_ids values"]
    with flipped(path, begin, 1):
        with pytest.raises(StoreError, match="damaged in block 0"):
            list(pipeline.get_dataloader().unwrap())
        loader = pipeline.get_dataloader(shuffle=False, verify=False).unwrap()
        first = next(iter(loader))["input_ids"][0][: len(rows[0])].tolist()
        assert first == [rows[0][0] ^ 1, *rows[0][1:]]
        dataset = pipeline.get_dataset(verify=False).unwrap()
        assert dataset[0]["input_ids"].tolist() == first
