"""The store: objects named by their digest, written atomically, checked when read, readable by plain pyarrow."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import stat
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from support.store_files import snapshot
from support.terminal import run_here
from tokenloom import DataPipeline, open_dataset
from tokenloom.errors import DatasetNotFoundError, StoreError
from tokenloom.loaders import open_mixture
from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store import ArtifactStore, KeyParts, Manifest, ManifestChunk, Run
from tokenloom.resources.store.actions import ActionStore, decode_record, encode_record
from tokenloom.resources.store.blobs.folder import STALE_SECONDS
from tokenloom.resources.store.manifest_chunks import GatheredChunks
from tokenloom.resources.store.objects import digest_table, encode_table
from tokenloom.resources.tables.sequence_schema import read_table

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "été 🌊"]})
COUNTS = {"rows_in": 3, "rows_out": 3, "rejected": 0, "filtered": 0, "tokens": 0}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    opened = ArtifactStore(tmp_path / "store")
    opened.prepare()
    return opened


def chunk(output: str, split: str = "train") -> ManifestChunk:
    return ManifestChunk(
        split=split,
        runs=(Run("a.jsonl", offset=0),),
        unit="line",
        input="1" * 64,
        key="2" * 64,
        output=output,
        bytes=9,
        rejects=None,
        lengths=None,
        table_rows=3,
        blocks="",
        **COUNTS,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_an_object_is_named_by_its_digest_and_opens_with_plain_pyarrow(store: ArtifactStore, compressed: bool) -> None:
    digest = store.objects.put(encode_table(TABLE, compressed))
    path = store.objects.path(digest)
    assert blake3(path.read_bytes()).hexdigest() == digest
    assert pa.ipc.open_file(path).read_all() == TABLE
    assert store.objects.get(digest) == TABLE


@given(st.lists(st.integers(0, 5), max_size=6))
def test_equal_tables_with_different_chunks_give_one_object(cuts: list[int]) -> None:
    bounds = sorted({0, 5, *cuts})
    whole = pa.table({"n": pa.array(range(5)), "t": ["a", "bc", "", "d", "e"]})
    pieces = pa.concat_tables([whole.slice(a, b - a) for a, b in pairwise(bounds)])
    assert encode_table(pieces, True).equals(encode_table(whole, True))
    assert digest_table(pieces) == blake3(memoryview(encode_table(whole, False))).hexdigest()


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_or_missing_object_is_reported(store: ArtifactStore, damage: bytes | None) -> None:
    digest = store.objects.put(encode_table(TABLE, False))
    path = store.objects.path(digest)
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(StoreError, match=f"{digest} is (missing|damaged)") as caught:
        store.objects.get(digest)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "", "0" * 63])
def test_only_digests_name_objects(store: ArtifactStore, name: str) -> None:
    with pytest.raises(StoreError, match="not a valid object digest"):
        store.objects.path(name)


@pytest.mark.parametrize("name", ["..", "a/b", "", "a\\b"])
def test_dataset_names_cannot_leave_the_store(store: ArtifactStore, name: str) -> None:
    with pytest.raises(DatasetNotFoundError):
        store.manifest(name)


def test_an_action_is_a_hit_only_if_its_objects_exist(store: ArtifactStore) -> None:
    key = "ab" * 32
    action = store.put_action(key, TABLE, TABLE.slice(0, 0), COUNTS, {"n": 1}, compressed=True)
    assert store.find_action(key) == action
    store.objects.path(action.output).unlink()
    assert store.find_action(key) is None


def test_an_unreadable_action_is_computed_again(store: ArtifactStore) -> None:
    key = "cd" * 32
    store.put_action(key, TABLE, TABLE.slice(0, 0), COUNTS, {}, compressed=True)
    next((Path(store.address) / "actions").glob("*/*.json")).write_text("{")
    assert store.find_action(key) is None


def test_an_action_under_another_key_is_not_a_hit(store: ArtifactStore) -> None:
    first, second = "ab" * 32, "cd" * 32
    store.put_action(first, TABLE, TABLE.slice(0, 0), COUNTS, {}, compressed=True)
    store.put_action(second, TABLE.slice(1), TABLE.slice(0, 0), COUNTS, {}, compressed=True)
    folder = Path(store.address)
    shutil.copy(folder / ActionStore.blob(first), folder / ActionStore.blob(second))
    assert store.find_action(second) is None
    assert store.find_action(first) is not None


def test_a_record_is_read_only_under_its_name_and_with_its_bytes() -> None:
    data = encode_record("files/a.json", {"n": [1, "é"]})
    assert decode_record("files/a.json", data) == {"n": [1, "é"]}
    with pytest.raises(ValueError, match="damaged"):
        decode_record("files/b.json", data)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x01
        with pytest.raises(ValueError):
            decode_record("files/a.json", bytes(changed))


RUNS = (Run("a.csv", 0, 0), Run("b.csv", 3, 0), Run("c.csv", 4, 7), Run("d.json", 10))


@pytest.mark.parametrize(
    ("position", "place"),
    [(0, "a.csv:1"), (2, "a.csv:3"), (3, "b.csv:1"), (4, "c.csv:8"), (9, "c.csv:13"), (12, "d.json")],
)
def test_the_place_of_a_row_is_in_its_run(store: ArtifactStore, position: int, place: str) -> None:
    shared = replace(chunk("a" * 64), runs=RUNS)
    assert shared.place(position) == place
    assert Manifest.from_table(Manifest("d", "raw", (shared,)).to_table()).chunks == (shared,)


DIGEST = st.binary(min_size=32, max_size=32).map(bytes.hex)
COUNT = st.integers(0, 1 << 60)
RUN = st.builds(Run, st.text(st.characters(exclude_categories=["Cs"])), st.just(0), st.integers(-1, 1 << 60))
CHUNK = st.builds(
    ManifestChunk,
    split=st.sampled_from(["train", "validation", "", "é", "trains"]),
    runs=st.lists(RUN, min_size=1, max_size=3).map(tuple),
    unit=st.sampled_from(["line", "row"]),
    input=DIGEST,
    key=DIGEST,
    output=DIGEST,
    bytes=COUNT,
    rejects=st.none() | DIGEST,
    lengths=st.none() | DIGEST,
    rows_in=st.just(3),
    rows_out=st.just(3),
    rejected=st.just(0),
    filtered=st.just(0),
    tokens=COUNT,
    table_rows=st.integers(0, 1 << 30),
    blocks=st.binary(min_size=32, max_size=32).map(bytes.hex) | st.just(""),
    counters=st.none() | st.dictionaries(st.text("aé/"), st.integers(-(1 << 70), 1 << 70)),
    engine=st.just("") | DIGEST,
)


@given(st.lists(CHUNK, max_size=30), st.integers(-40, 40), st.integers(-40, 40))
@settings(deadline=None)
def test_the_columns_of_a_manifest_are_those_of_its_chunks(chunks: list[ManifestChunk], begin: int, end: int) -> None:
    manifest = Manifest("d", "raw", chunks, {"fact": [1, "é"]})
    for found in (manifest, Manifest.from_table(read_table(encode_table(manifest.to_table(), compressed=False)))):
        assert found == manifest
        assert list(found.chunks) == chunks
        assert found.chunks[begin:end] == chunks[begin:end]
        assert [found.chunks[number] for number in range(-len(chunks), len(chunks))] == 2 * chunks
        assert found.splits == list(dict.fromkeys(chunk.split for chunk in chunks))
        content = {"chunks": [(chunk.split, chunk.output) for chunk in chunks], "facts": {"fact": [1, "é"]}}
        assert found.digest == digest_json(content)
        assert found.total("bytes") == sum(chunk.bytes for chunk in chunks)
        for split in ("train", "validation", "é", "none"):
            expected = [chunk for chunk in chunks if chunk.split == split]
            of_split = pickle.loads(pickle.dumps(found.of_split(split)))
            assert of_split == expected
            assert of_split[begin:end] == expected[begin:end]
            assert of_split.total("tokens") == sum(chunk.tokens for chunk in expected)
            assert of_split.numbers("table_rows").tolist() == [chunk.table_rows for chunk in expected]
            assert of_split.outputs_digest == digest_json([chunk.output for chunk in expected])
            for name in ("input", "key", "output", "rejects", "lengths", "engine"):
                assert of_split.digests(name) == [getattr(chunk, name) or "" for chunk in expected]


@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
def test_however_many_chunks_are_gathered_all_become_the_manifest(count: int) -> None:
    chunks, gathered = [chunk(f"{number:064x}") for number in range(count)], GatheredChunks()
    for each in chunks:
        gathered.append(each)
    assert len(gathered) == count
    assert list(gathered.all()) == chunks


@given(st.lists(CHUNK, min_size=1, max_size=9))
@settings(deadline=None)
def test_a_chunk_has_its_action(chunks: list[ManifestChunk]) -> None:
    for chunk in Manifest.from_table(Manifest("d", "raw", chunks).to_table()).chunks:
        if chunk.counters is None:
            assert chunk.action is None
            continue
        action = chunk.action
        assert action is not None
        assert replace(chunk, **vars(action)) == chunk


@pytest.mark.parametrize("version", ["4", "6", "null", '"5"'])
def test_a_manifest_of_another_version_is_refused_with_a_remedy(version: str) -> None:
    now = Manifest("d", "raw", [chunk("a" * 64)]).to_table()
    head = now.schema.metadata[b"tokenloom"].replace(b'"version": 5', b'"version": %b' % version.encode())
    with pytest.raises(StoreError, match=r"manifest has version .*, but .* reads version 5; build the dataset again"):
        Manifest.from_table(now.replace_schema_metadata({"tokenloom": head}))


def test_every_part_of_a_key_changes_it() -> None:
    parts = [("s", "t"), (1, 2), ("p", "q"), ({"a": 1}, {"a": 2}), ({"x": "1"}, {"x": "2"}), ("c", "d")]
    base = [first for first, _ in parts]
    keys = {KeyParts(*base[:-1]).key(base[-1])}  # type: ignore[arg-type]
    for index, (_, other) in enumerate(parts):
        *parts_of, piece = [*base[:index], other, *base[index + 1 :]]
        keys.add(KeyParts(*parts_of).key(piece))  # type: ignore[arg-type]
    assert len(keys) == len(parts) + 1


def test_canonical_json_sorts_keys_and_refuses_nan() -> None:
    assert canonical_json({"b": 1, "a": {"d": 2, "c": "é"}}) == canonical_json({"a": {"c": "é", "d": 2}, "b": 1})
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


def test_a_manifest_is_read_back(store: ArtifactStore) -> None:
    digest = store.objects.put(encode_table(TABLE, False))
    manifest = Manifest("d", "sequences", (chunk(digest), chunk(digest, "validation")), {"pad_token_id": 3}, {"n": 2})
    store.put_manifest(manifest)
    found = store.manifest("d")
    assert found == manifest
    assert found.digest == manifest.digest
    assert (found.splits, found.total("rows_out")) == (["train", "validation"], 6)


def test_a_manifest_of_another_version_is_refused(store: ArtifactStore) -> None:
    table = Manifest("d", "raw", ()).to_table()
    head = table.schema.metadata[b"tokenloom"].replace(b'"version": 5', b'"version": 9')
    with pytest.raises(StoreError, match="has version 9"):
        Manifest.from_table(table.replace_schema_metadata({"tokenloom": head}))


@pytest.mark.parametrize(
    ("found", "writer"),
    [("tokenloom store 2", "tokenloom 0.1"), ("tokenloom store 99", "another version of tokenloom")],
)
def test_a_store_of_another_format_is_refused_and_kept(tmp_path: Path, found: str, writer: str) -> None:
    from support.datasets_on_disk import write_dataset

    config, store = write_dataset(tmp_path, 20), tmp_path / "old"
    for name, content in (("FORMAT", f"{found}\n"), ("objects/ab/x.arrow", "x"), ("datasets/small/raw.json", "{}")):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text(content)
    before = snapshot(store)
    remedy = f"{re.escape(str(store))} has the format '{found}', written by {writer}.*build into another.*or delete"
    for opened in (
        lambda: ArtifactStore(store),
        lambda: open_dataset("small", store=store),
        lambda: open_mixture("small", store=store),
        lambda: DataPipeline.from_config(config, store=store).unwrap().build().unwrap(),
    ):
        with pytest.raises(StoreError, match=remedy):
            opened()
    for command in (["build", config], ["gc", "--delete"], ["verify"], ["versions", "small"]):
        done = run_here(*command, "--store", store, folder=tmp_path)
        assert done.returncode == 4
        assert found in done.stderr
    assert snapshot(store) == before


def test_a_missing_dataset_is_reported_with_the_existing_ones(store: ArtifactStore) -> None:
    store.put_manifest(Manifest("alpaca", "sequences", ()))
    store.put_manifest(Manifest("failed", "raw", ()))
    with pytest.raises(DatasetNotFoundError, match=r"\(datasets: alpaca\); did you mean alpaca"):
        store.manifest("alpacca")
    with pytest.raises(DatasetNotFoundError, match="has no sequences yet"):
        store.manifest("failed")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StoreError, match="cannot write"):
        ArtifactStore(tmp_path / "store").prepare()


def test_half_written_files_are_deleted_after_a_day(store: ArtifactStore) -> None:
    scratch = Path(store.address) / "scratch"
    for name in ("old", "young"):
        (scratch / name).write_text("half")
    past = time.time() - STALE_SECONDS - 60
    os.utime(scratch / "old", (past, past))
    store.prepare()
    assert [path.name for path in scratch.iterdir()] == ["young"]


def test_threads_that_publish_the_same_object_at_once_agree(store: ArtifactStore) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.objects.put(encode_table(TABLE, True)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert store.objects.get(found[0]) == TABLE


def test_nothing_on_disk_names_a_folder_of_this_machine(tmp_path: Path) -> None:
    from support.datasets_on_disk import write_dataset
    from tokenloom.assets.building.build import Build
    from tokenloom.config import PipelineConfig

    store = ArtifactStore(tmp_path / "store")
    list(Build(PipelineConfig.from_file(write_dataset(tmp_path, 50)), store).run_all())
    for path in (path for path in Path(store.address).rglob("*") if path.is_file()):
        assert str(tmp_path).encode() not in path.read_bytes(), path
