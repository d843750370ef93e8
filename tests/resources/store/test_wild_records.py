"""Records and manifests with right digests and wild values count as damaged: no other error, no wild value is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokenloom.errors import DatasetNotFoundError, StoreError
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.store.actions import Action, Certificate, decode_record, encode_record
from tokenloom.resources.store.known_files import KnownChunk, KnownFiles
from tokenloom.resources.store.objects import encode_table
from tokenloom.resources.store.verify import verify

A, B = "a" * 64, "b" * 64
WILD: tuple[Any, ...] = (-1, 1 << 70, 1.5, True, "x", "../../../x", "", [], [[]], {}, {"a": [1]}, [None] * 9)
COUNTS: dict[str, Any] = {"rows_in": 3, "rows_out": 3, "rejected": 0, "filtered": 0, "tokens": 9, "table_rows": 3}
ACTION = Action(output=A, bytes=9, rejects=None, **COUNTS, counters={"x": 1})
CHUNK = ManifestChunk(
    split="train", runs=(Run("a", 0, 0),), unit="row", input=B, key=B, output=A, bytes=9, rejects=None, **COUNTS
)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    opened = ArtifactStore(tmp_path / "store")
    opened.prepare()
    return opened


def put(store: ArtifactStore, name: str, content: Any) -> None:
    store.blobs.write(name, encode_record(name, content))


def wild(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the content with a wild value in each field, without it, and with another field."""
    for name, value in content.items():
        for other in (*WILD, None):
            if not (type(other) is type(value) and other == value):
                yield f"{name}: {other}", {**content, name: other}
        yield f"no {name}", {key: value for key, value in content.items() if key != name}
    yield "more", {**content, "more": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"content":' + b'{"a":' * 200_000,
        b"\xff\xfe{\x00}\x00",
        b'{"content":1,"content":1,"digest":"x"}',
        b'{"content":' + b"1" * 6000 + b',"digest":"x"}',
        b'{"content":NaN,"digest":"x"}',
        b'{"content":"\\ud800","digest":"x"}',
        b"",
        b"null",
    ],
)
def test_records_that_are_no_json_of_ours_are_damaged(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_record("x", data)


def test_a_record_has_exactly_one_form() -> None:
    data = encode_record("x", {"a": 1, "b": [2]})
    assert decode_record("x", data) == {"a": 1, "b": [2]}
    for other in (data + b"\n", data.replace(b":", b": ", 1), data.replace(b'{"a":1,', b'{"a":1,"a":1,'), b" " + data):
        with pytest.raises(ValueError, match="damaged"):
            decode_record("x", other)


def test_wild_actions_are_misses(store: ArtifactStore) -> None:
    name = store.actions.blob(B)
    put(store, name, asdict(ACTION))
    assert store.actions.get(B) == ACTION
    accepted = set()
    for what, content in wild(asdict(ACTION)):
        put(store, name, content)
        if (found := store.actions.get(B)) is not None:
            accepted.add(what)
            assert store.find_action(B) is None
            assert found == Action(**content)
    assert accepted <= {"blocks: ", "engine: ", "counters: {}", "no lengths", "no counters", "no engine", "no blocks"}
    with pytest.raises(StoreError, match="not a valid key"):
        store.actions.get("../../../../etc/x")


def test_wild_manifests_raise_a_store_error(store: ArtifactStore) -> None:
    manifest = Manifest("d", "sequences", (CHUNK,), {"columns": []}, {"n": 1}, {"sidecars": A}, {"stage": "x"})
    table = manifest.to_table()
    assert Manifest.from_table(table) == manifest
    row, head = table.to_pylist()[0], json.loads(table.schema.metadata[b"tokenloom"])

    def refused(other: pa.Table) -> bool:
        digest = store.objects.put(encode_table(other, True))
        try:
            found = store.manifest_at(digest)
        except StoreError as error:
            assert "\n" not in str(error)
            return True
        assert found.to_table() == other
        return False

    wild_bytes = (b"", b"x", b"x" * 16, b"x" * 32, b"{}")
    for name in row:
        kind = table.schema.field(name).type
        values: tuple[Any, ...] = (-1, 1 << 40, 1 << 62) if kind == pa.int64() else wild_bytes
        for value in (None, *values):
            if name == "runs":
                continue
            if kind == pa.string() and value is not None:
                value = value.decode()
            other = table.set_column(table.column_names.index(name), name, pa.array([value], kind))
            valid = {
                **dict.fromkeys(("rejects", "lengths"), value is None or value == b"x" * 32),
                **dict.fromkeys(("input", "key", "output"), value == b"x" * 32),
                "engine": value in (b"", b"x" * 32),
                "blocks": value in (b"", b"x" * 16, b"x" * 32),
                "counters": True,  # checked when the chunk is built
                **dict.fromkeys(("bytes", "tokens"), value == 1 << 40),
            }
            assert refused(other) != valid.get(name, isinstance(value, str)), (name, value)
        assert refused(table.drop_columns([name])), name
        assert refused(table.append_column(name, table[name])), name
        assert refused(table.set_column(table.column_names.index(name), name, pa.array([b"x"]))), name
    for counters in (b"", b"x", b"[]", b'{"a":1.5}', b'{"a":true}', b"[" * 100_000, b"1" * 6000, b"\xff"):
        stored = pa.array([counters], pa.large_binary())
        found = Manifest.from_table(table.set_column(table.column_names.index("counters"), "counters", stored))
        with pytest.raises(StoreError, match="counters that are not valid"):
            _ = found.chunks[0]
    begin = {"source": "a", "first": 0, "offset": 0}
    falling = [begin, {**begin, "first": 2}, {**begin, "first": 1}]
    for runs in ([], [{**begin, "first": 1}], [{**begin, "source": None}], [{**begin, "offset": -2}], [None], falling):
        assert refused(table.set_column(1, "runs", pa.array([runs], table.schema.field("runs").type))), runs
    for what, content in wild(head):
        other = table.replace_schema_metadata({"tokenloom": json.dumps(content)})
        field = what.partition(":")[0]
        is_free = field in ("dataset", "stage") and isinstance(content[field], str)
        if not (
            what == "more"
            or is_free
            or content.get(field) == {}
            or (field in ("facts", "parts", "notes") and "{" in what)
        ):
            assert refused(other), what
    for text in (b"[" * 100_000, b"\xff", b"null", b"[]", b"1" * 6000, b""):
        assert refused(table.replace_schema_metadata({"tokenloom": text})), text[:20]
    for notes in ({"sidecars": "x"}, {"sidecars": 5}, {"manifests": []}, {"manifests": {"a": "../x"}}):
        assert refused(table.replace_schema_metadata({"tokenloom": json.dumps({**head, "notes": notes})})), notes


def test_wild_pointers_and_versions_are_damaged(store: ArtifactStore) -> None:
    pointer, version = "datasets/d/sequences.json", "versions/d/20260101T000000.000000Z-aaaaaaaaaaaaaaaa.json"
    for _, content in wild({"manifest": A}):
        put(store, pointer, content)
        if content.get("manifest") == A:
            continue
        assert store.latest("d", "sequences") is None
        with pytest.raises(StoreError, match="damaged"):
            store.manifest("d")
        assert [one.blob for one in verify(store, remove=False).findings] == [pointer]
    put(store, version, {"digest": A, "stages": {"sequences": A}})
    assert [found.digest for found in store.versions.of("d")] == [A]
    stages = ({"stages": {"sequences": value}} for value in WILD)
    for _, content in [*wild({"digest": A, "stages": {}}), *(("", {"digest": A, **one}) for one in stages)]:
        put(store, version, content)
        for found in store.versions.of("d"):
            assert (found.digest, found.stages) == (content["digest"], content["stages"])
        with pytest.raises((StoreError, DatasetNotFoundError)):
            store.manifest("d", version="aaaa")


def test_wild_certificates_and_file_entries_are_unknown(store: ArtifactStore, tmp_path: Path) -> None:
    name = f"certificates/{A}/{'0' * 32}.json"
    for ranges in (
        [[0, 10**12]],
        [[-5, 3]],
        [[9, 3]],
        [[1, 2, 3]],
        ["ab"],
        [[1.0, 2.0]],
        [[True, True]],
        5,
        [[5, 6], [1, 2]],
    ):
        put(store, name, {"agreed": ranges, "disputed": [], "refused": ""})
        assert store.certificates.read(A) == Certificate()
        assert [one.blob for one in verify(store, remove=False).findings] == [name]
    data = tmp_path / "data.jsonl"
    data.write_text("x")
    files = KnownFiles(store.blobs, {})
    entry = {"stamp": [1], "chunks": [KnownChunk(A, "train", 0, "line", 5)], "found": {"encoding": "utf-8"}}
    blob = files._blob(str(data))
    put(store, blob, entry)
    assert files.find(str(data)) is not None
    for what, content in wild(entry):
        put(store, blob, content)
        if not (what.startswith("stamp") or what in ("chunks: []", "found: {}", "more")):
            assert files.find(str(data)) is None, what
    for field in range(5):
        for value in (None, -7, [], {}, 1.5):
            chunk: list[Any] = [A, "train", 0, "line", 5]
            chunk[field] = value
            put(store, blob, {**entry, "chunks": [chunk]})
            assert files.find(str(data)) is None


def test_a_damaged_part_of_a_certificate_withdraws_what_the_others_agree_on(store: ArtifactStore) -> None:
    certificates = store.certificates
    certificates.add(A, Certificate(((65, 90),)))
    (agreed,) = (blob.name for blob in store.blobs.below(f"certificates/{A}"))
    data = store.blobs.read(agreed)
    certificates.add(A, Certificate((), ((70, 70),)))
    (disputed,) = (blob.name for blob in store.blobs.below(f"certificates/{A}"))
    store.blobs.write(agreed, data)  # as a concurrent build leaves them
    assert certificates.read(A) == Certificate(((65, 69), (71, 90)), ((70, 70),))
    content = store.blobs.read(disputed)
    for place in range(len(content)):
        store.blobs.write(disputed, content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :])
        assert certificates.read(A) == Certificate()
        assert [one.blob for one in verify(store, remove=False).findings] == [disputed]
    certificates.add(A, Certificate(((65, 66),)))
    assert certificates.read(A) == Certificate(((65, 66),))
    assert verify(store).findings == []


@pytest.mark.parametrize("name", ["../outside.json", "/etc/x", "..", "a/../../b", "", ".", "a\\b", "a\0b"])
def test_names_in_a_crafted_store_lead_nowhere_else(store: ArtifactStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        store.publish_tokenizer(A, {name: b"x"})
    with pytest.raises(StoreError):
        store.tokenizer_folder(name)
    if name not in ("", "."):
        for action in (
            store.blobs.read,
            store.blobs.delete,
            store.blobs.local,
            lambda blob: store.blobs.write(blob, b""),
        ):
            with pytest.raises(StoreError, match="not a valid name"):
                action(name)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
