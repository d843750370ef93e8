"""`verify` finds every damaged or missing byte, and the next build recomputes only what was lost."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from support.builds import build, digests
from support.datasets_on_disk import STAGES, write_dataset
from support.soak import SOAK
from support.store_files import chunks, flip, latest, object_path, stems, versions
from support.terminal import run_here
from tokenloom import open_dataset
from tokenloom.assets.building.report import StageReport
from tokenloom.errors import DatasetNotFoundError, StoreAddressError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore, known_files
from tokenloom.resources.store.actions import Certificate
from tokenloom.resources.store.verify import Verification, verify

FLIPS, OBJECT_FLIPS = (400, 400) if SOAK else (6, 1)
"""Random positions in a record, and in each object, of which there are many."""

Built = tuple[Path, Path, dict[str, str]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A YAML, a store with its build, which has rejects in raw and columns, and the digests."""
    folder = tmp_path_factory.mktemp("whole")
    config = write_dataset(folder, 400, validation={"max_reject_fraction": 0.1})
    data = folder / "small.jsonl"
    lines = data.read_text().splitlines()
    lines[9], lines[300] = "{broken", json.dumps({"instruction": "say nothing", "input": "", "output": " "})
    data.write_text("\n".join(lines) + "\n")
    return config, folder / "store", digests(build(config, folder / "store"))


@pytest.fixture
def built(whole: Built, tmp_path: Path) -> Built:
    """The same, in a separate copy of the store."""
    shutil.copytree(whole[1], tmp_path / "store")
    return whole[0], tmp_path / "store", whole[2]


def check(store: Path, dataset: str | None = None, remove: bool = True) -> Verification:
    return verify(ArtifactStore(store), dataset, ComputeEngine(2), remove)


def computed(reports: dict[str, StageReport]) -> dict[str, int]:
    """Number of chunks computed by each stage that computed any."""
    found = {name: report.chunks - report.chunks_reused for name, report in reports.items()}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("dataset", [None, "small"])
def test_an_intact_store_has_no_findings_and_every_object_is_read(built: Built, dataset: str | None) -> None:
    _, store, _ = built
    found = check(store, dataset)
    sizes = [path.stat().st_size for path in store.glob("objects/*/*")]
    assert (found.findings, found.objects, found.bytes, found.dropped) == ([], len(sizes), sum(sizes), 0)


@pytest.mark.parametrize("dataset", [None, "small"])
def test_any_flipped_byte_of_any_object_is_found(built: Built, dataset: str | None) -> None:
    _, store, _ = built
    draw = random.Random(7)
    for path in sorted(store.glob("objects/*/*")):
        size = path.stat().st_size
        for position in {0, size - 1, *(draw.randrange(size) for _ in range(OBJECT_FLIPS))}:
            flip(path, position)
            found = check(store, dataset, remove=False).findings
            assert [(one.digest, one.problem) for one in found] == [(path.stem, "damaged")], position
            flip(path, position)
    assert check(store, dataset).findings == []


@pytest.mark.parametrize("lost", ["damaged", "missing"])
@pytest.mark.parametrize(
    ("stage", "kind"), [*((stage, "output") for stage in STAGES), ("raw", "rejects"), ("columns", "rejects")]
)
def test_the_next_build_recomputes_only_that_chunk(built: Built, stage: str, kind: str, lost: str) -> None:
    config, store, expected = built
    chunk = [one for one in chunks(store, latest(store, "small")[stage]) if one[kind]][-1]
    path = object_path(store, chunk[kind])
    flip(path, path.stat().st_size // 2) if lost == "damaged" else path.unlink()
    (finding,) = check(store, "small").findings
    assert (finding.kind, finding.problem, finding.dataset, finding.stage) == (kind, lost, "small", stage)
    run = chunk["runs"][0]
    place = f"{run['source']}:{run['offset'] + 1}" if run["offset"] >= 0 else run["source"]
    assert (finding.place, finding.digest) == (place, chunk[kind])
    assert not path.exists()
    rebuilt = build(config, store)
    assert digests(rebuilt) == expected
    assert computed(rebuilt) == {stage: 1}
    assert check(store).findings == []


@pytest.mark.parametrize("lost", ["damaged", "missing"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_lost_manifest_is_published_again(built: Built, stage: str, lost: str) -> None:
    config, store, expected = built
    path = object_path(store, latest(store, "small")[stage])
    flip(path, path.stat().st_size // 2) if lost == "damaged" else path.unlink()
    (finding,) = check(store).findings
    assert (finding.kind, finding.problem, finding.stage, finding.digest) == ("manifest", lost, stage, path.stem)
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {})
    assert check(store).findings == []
    assert len(versions(store, "small")) == 1


@pytest.mark.parametrize("content", ["", "{", '{"manifest": 5}', '{"manifest": "../../x"}'])
def test_a_damaged_pointer_is_found_and_repaired(built: Built, content: str) -> None:
    config, store, expected = built
    (store / "datasets" / "small" / "tokens.json").write_text(content)
    (finding,) = check(store, "small").findings
    assert (finding.kind, finding.blob) == ("pointer", "datasets/small/tokens.json")
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {})
    assert check(store).findings == []


def test_a_pointer_to_another_stages_manifest_is_found(built: Built) -> None:
    config, store, _ = built
    pointers = store / "datasets" / "small"
    shutil.copy(pointers / "raw.json", pointers / "sequences.json")
    assert [(one.kind, one.stage) for one in check(store).findings] == [("pointer", "sequences")]
    build(config, store)
    assert check(store).findings == []
    assert len(open_dataset("small", store=store)) > 0


def test_any_flipped_byte_of_an_action_is_found_and_its_chunk_recomputed(built: Built) -> None:
    config, store, expected = built
    draw = random.Random(3)
    key = chunks(store, latest(store, "small")["columns"])[0]["key"]
    path = store / "actions" / key[:2] / f"{key}.json"
    for position in draw.sample(range(path.stat().st_size), FLIPS):
        flip(path, position)
        assert [(one.kind, one.digest) for one in check(store, remove=False).findings] == [("action", key)], position
        flip(path, position)
    flip(path, 100)
    assert [one.kind for one in check(store, "small").findings] == ["action"]
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {"columns": 1})


def test_a_copied_action_is_found_and_its_chunk_recomputed(built: Built) -> None:
    config, store, expected = built
    first, second = (chunk["key"] for chunk in chunks(store, latest(store, "small")["columns"])[:2])
    paths = [store / "actions" / key[:2] / f"{key}.json" for key in (first, second)]
    shutil.copy(*paths)
    assert [(one.kind, one.digest) for one in check(store).findings] == [("action", second)]
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {"columns": 1})
    assert check(store).findings == []


@pytest.mark.parametrize("lost", ["damaged", "missing"])
def test_lost_row_lengths_are_recomputed_with_their_chunk(built: Built, lost: str) -> None:
    config, store, expected = built
    chunk = chunks(store, latest(store, "small")["sequences"])[0]
    path = object_path(store, chunk["lengths"])
    flip(path, path.stat().st_size // 2) if lost == "damaged" else path.unlink()
    (finding,) = check(store, "small").findings
    assert (finding.kind, finding.problem, finding.stage) == ("lengths", lost, "sequences")
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {"sequences": 1})
    assert check(store).findings == []


def put_certificates(store: Path) -> Path:
    """Add facts about one pair of engines, and withdraw those of another; returns the record of the first."""
    certificates = ArtifactStore(store).certificates
    certificates.add("agreed", Certificate(((32, 126),)))
    certificates.void("wrong", "they differ")
    return next((store / "certificates" / "agreed").iterdir())


@pytest.mark.parametrize("kind", ["certificate", "probe", "source file"])
def test_damaged_and_copied_records_are_found_and_made_again(
    built: Built, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store, expected = built
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0.0)
    build(config, store)
    put_certificates(store)
    folder = {"certificate": "certificates/agreed", "probe": "probes", "source file": "files"}[kind]
    path = min((store / folder).iterdir())
    name, content = f"{folder}/{path.name}", path.read_bytes()
    draw = random.Random(5)
    for position in draw.sample(range(len(content)), FLIPS):
        flip(path, position)
        found = check(store, remove=False).findings
        assert [(one.kind, one.problem, one.blob) for one in found] == [(kind, "damaged", name)], position
        flip(path, position)
    shutil.copy(path, path.with_name(f"{'0' * 32}.json"))
    assert [one.blob for one in check(store).findings] == [f"{folder}/{'0' * 32}.json"]
    flip(path, len(content) // 2)
    rebuilt = build(config, store)
    assert (digests(rebuilt), computed(rebuilt)) == (expected, {})
    if kind == "certificate":
        assert ArtifactStore(store).certificates.read("agreed") == Certificate()
        check(store)
    else:
        assert path.read_bytes() == content
    assert check(store).findings == []


def test_a_withdrawn_certificate_stays_withdrawn_when_its_record_is_damaged(built: Built) -> None:
    _, store, _ = built
    put_certificates(store)
    path = store / "certificates" / "wrong" / "void.json"
    flip(path, 20)
    assert [(one.kind, one.problem) for one in check(store).findings] == [("certificate", "damaged")]
    assert ArtifactStore(store).certificates.is_void("wrong")
    assert check(store).findings == []


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "objects/ab/half.arrow",
        "actions/ab/cd.json",
        "probes/old.txt",
        "files/deep/er/a.json",
        f"tokenizers/{'0' * 64}/tokenizer.json",
        "elsewhere/a/b",
    ],
)
def test_unknown_files_are_listed_and_kept(built: Built, name: str, tmp_path: Path) -> None:
    _, store, _ = built
    path = store / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    assert [(one.kind, one.problem, one.blob) for one in check(store).findings] == [("file", "unknown", name)]
    assert check(store, "small").findings == []
    assert path.read_bytes() == b"mine"
    done = run_here("verify", "--store", store, folder=tmp_path)
    assert done.returncode == 0
    assert f"file is unknown: {name}" in done.stdout
    assert "checked: none damaged or missing, 1 unknown, which nothing reads\n" in done.stdout


def test_files_in_the_folder_of_an_object_that_is_no_tokenizer_are_unknown(built: Built) -> None:
    _, store, _ = built
    digest = chunks(store, latest(store, "small")["columns"])[0]["output"]
    name = f"tokenizers/{digest}/tokenizer.json"
    (store / name).parent.mkdir()
    (store / name).write_bytes(b"mine")
    assert [(one.kind, one.problem, one.blob) for one in check(store).findings] == [("file", "unknown", name)]
    assert (store / name).read_bytes() == b"mine"


@pytest.mark.parametrize("kept", ["tokenizer.json", "tokenizer_config.json"])
def test_some_files_of_a_tokenizer_that_no_manifest_names_are_no_damage(built: Built, kept: str) -> None:
    """An interrupted build has written, or an interrupted `gc` left, one of them; another one must still be right."""
    store = built[1]
    for folder in ("datasets", "versions"):
        shutil.rmtree(store / folder)
    (folder,) = (store / "tokenizers").iterdir()
    for path in folder.iterdir():
        if path.name != kept:
            path.unlink()
    assert check(store).findings == []
    flip(folder / kept, 5)
    (finding,) = check(store, remove=False).findings
    assert (finding.kind, finding.problem, finding.place) == ("tokenizer", "damaged", kept)


@pytest.mark.parametrize("lost", ["damaged", "missing"])
def test_tokenizer_files_are_restored_from_their_object(built: Built, lost: str) -> None:
    _, store, _ = built
    (path,) = store.glob("tokenizers/*/tokenizer.json")
    content = path.read_bytes()
    flip(path, 50) if lost == "damaged" else path.unlink()
    (finding,) = check(store, "small").findings
    assert (finding.kind, finding.problem, finding.place) == ("tokenizer", lost, "tokenizer.json")
    assert path.read_bytes() == content
    assert check(store).findings == []


def test_an_earlier_version_keeps_what_can_still_be_opened(built: Built, tmp_path: Path) -> None:
    _, store, expected = built
    grown = write_dataset(tmp_path / "grown", 200)
    build(grown, store)
    first = versions(store, "small")[0]
    object_path(store, first["stages"]["prompts"]).unlink()
    (finding,) = check(store).findings
    assert (finding.kind, finding.stage, finding.latest) == ("manifest", "prompts", False)
    assert check(store).findings == []
    assert set(versions(store, "small")[0]["stages"]) == set(STAGES) - {"prompts"}
    assert ArtifactStore(store).manifest("small", version=expected["sequences"][:12]).digest == expected["sequences"]
    object_path(store, first["stages"]["sequences"]).unlink()
    assert {one.kind for one in check(store).findings} == {"manifest", "version"}
    assert len(versions(store, "small")) == 1
    assert check(store).findings == []


def test_a_damaged_version_is_found_and_recorded_by_the_next_build(built: Built) -> None:
    config, store, _ = built
    (path,) = store.glob("versions/small/*.json")
    content = path.read_bytes()
    for position in (0, 12, len(content) - 1):
        flip(path, position)
        assert check(store, remove=False).findings, position
        path.write_bytes(content)
    flip(path, 12)
    check(store)
    build(config, store)
    assert len(versions(store, "small")) == 1
    assert check(store).findings == []


def test_objects_that_nothing_names_are_checked_with_the_whole_store(built: Built) -> None:
    _, store, _ = built
    stray = object_path(store, "ab" * 32)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"stray")
    assert check(store, "small").findings == []
    assert [(one.kind, one.dataset, one.digest) for one in check(store).findings] == [("object", "", "ab" * 32)]
    assert "ab" * 32 not in stems(store, "objects")


def test_a_missing_dataset_or_store_is_reported(built: Built, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="did you mean small"):
        check(built[1], "smal")
    with pytest.raises(StoreAddressError, match="no store found"):
        check(tmp_path / "elsewhere")


def test_the_command_prints_findings_and_remedies(built: Built, tmp_path: Path) -> None:
    config, store, _ = built
    done = run_here("verify", config, folder=tmp_path)
    assert done.returncode == 0
    assert "none damaged or missing" in done.stdout
    chunk = chunks(store, latest(store, "small")["tokens"])[1]
    path = object_path(store, chunk["output"])
    flip(path, 1000)
    kept = run_here("verify", "small", "--keep-damaged", folder=tmp_path)
    assert (kept.returncode, path.exists()) == (4, True)
    place = f"{chunk['runs'][0]['source']}:{chunk['runs'][0]['offset'] + 1}"
    assert f"small/tokens: output of {place} is damaged: {chunk['output']}" in kept.stdout
    printed = run_here("verify", "--json", folder=tmp_path)
    assert printed.returncode == 4
    (finding,) = json.loads(printed.stdout)["findings"]
    assert (finding["dataset"], finding["stage"], finding["digest"]) == ("small", "tokens", chunk["output"])
    assert "build small" in printed.stderr
    again = run_here("verify", folder=tmp_path)
    assert "is missing" in again.stdout
    assert run_here("verify", "smal", folder=tmp_path).returncode == 2
    assert run_here("verify", "--store", tmp_path / "no", folder=tmp_path).returncode == 2


FORMATS: dict[str, bytes | None] = {
    "lost": None,
    "empty": b"",
    "cut off": b"tokenloom stor",
    "without its line end": b"tokenloom store 3",
    "longer": b"tokenloom store 3\n\0",
    "a flipped bit": b"tokenloom stnre 3\n",
    "zeros": bytes(18),
    "not UTF-8": b"\xff\xfe" * 9,
    "control characters": b"\x1b[2J",
}


@pytest.mark.parametrize("case", FORMATS)
def test_a_damaged_format_is_reported_and_written_again_by_verify(built: Built, case: str) -> None:
    config, store, whole = built
    format, content = store / "FORMAT", FORMATS[case]
    right = format.read_bytes()
    format.unlink()
    if content is not None:
        format.write_bytes(content)
        for command in (["versions", "small"], ["build", str(config)], ["verify", "--keep-damaged"]):
            done = run_here(*command, "--store", store, folder=store.parent)
            assert done.returncode == 4 and "FORMAT of the store" in done.stderr and "tokenloom verify" in done.stderr
            assert all(line.isprintable() for line in done.stderr.splitlines()) and "Traceback" not in done.stderr
            assert format.read_bytes() == content
    done = run_here("verify", "--json", "--store", store, folder=store.parent)
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode, [(one["problem"], one["blob"]) for one in found]) == (4, [("healed", "FORMAT")])
    assert format.read_bytes() == right
    assert run_here("verify", "--store", store, folder=store.parent).returncode == 0
    assert digests(build(config, store)) == whole


@pytest.mark.parametrize("content", [b"tokenloom store 2\n", b"tokenloom store 4\n", b"something else\n"])
def test_a_format_of_others_is_not_written_again(built: Built, tmp_path: Path, content: bytes) -> None:
    _, store, _ = built
    other = tmp_path / "other"
    other.mkdir()
    for folder in (store, other) if content.startswith(b"tokenloom") else (other,):
        (folder / "FORMAT").write_bytes(content)
        assert run_here("verify", "--store", folder, folder=tmp_path).returncode == 4
        assert (folder / "FORMAT").read_bytes() == content


def test_a_format_is_not_written_again_without_a_manifest_of_this_version(built: Built) -> None:
    _, store, _ = built
    (store / "FORMAT").write_bytes(b"tokenloom")
    for pointer in store.glob("datasets/*/*.json"):
        pointer.unlink()
    assert run_here("verify", "--store", store, folder=store.parent).returncode == 4
    assert (store / "FORMAT").read_bytes() == b"tokenloom"
