"""Versions: each published state is recorded once, is found by digest or date, and opens unchanged."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets_on_disk import rows, write_dataset
from tokenloom import DataPipeline, open_dataset
from tokenloom.cli import main
from tokenloom.errors import DatasetNotFoundError
from tokenloom.resources.store import ArtifactStore, Version
from tokenloom.resources.store.actions import encode_record
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.versions import VersionStore

DIGESTS = ("ab12" * 16, "ab1f" * 16, "cd34" * 16)
TIMES = ("20260301T080000.000000Z", "20260301T203000.500000Z", "20260315T000000.000000Z")
OFFSETS = [timedelta(hours=hours) for hours in (-11, -2, 0, 1, 5.5, 13)]


def published(folder: Path, states: list[tuple[str, str]]) -> VersionStore:
    """Add versions of a dataset `d` with the given times and digests."""
    (folder / "versions" / "d").mkdir(parents=True)
    for stamp, digest in states:
        name = f"versions/d/{stamp}-{digest[:16]}.json"
        (folder / name).write_bytes(encode_record(name, {"digest": digest, "stages": {"sequences": digest}}))
    return VersionStore(Folder(folder))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> VersionStore:
    return published(tmp_path_factory.mktemp("three"), list(zip(TIMES, DIGESTS, strict=True)))


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        ("ab12", 0),
        ("AB12AB12", 0),
        (DIGESTS[1], 1),
        ("cd34cd", 2),
        ("2026-03-01", 1),
        ("2026-03-02", 1),
        ("2026-03-14", 1),
        ("2026-03-15", 2),
        ("2031-01-01", 2),
        ("2026-03-01T08:00", 0),
        ("2026-03-01 12:00:00", 0),
        ("2026-03-01T20:30:00.499999", 0),
        ("2026-03-01T20:30:00.500000", 1),
        ("2026-03-01T20:31Z", 1),
        ("2026-03-01T21:00+01:00", 0),
        ("2026-03-01T21:31+01:00", 1),
        ("2026-03-01T03:00-05:00", 0),
    ],
)
def test_a_version_is_found_by_digest_or_date(three: VersionStore, requested: str, found: int) -> None:
    assert three.find("d", requested).digest == DIGESTS[found]


@pytest.mark.parametrize(
    "requested", ["ab1", "", "ef01", "2026-02-28", "2026-03-01T08:59+01:00", "yesterday", "2026-13-01"]
)
def test_an_unknown_version_is_reported_with_the_latest_ones(three: VersionStore, requested: str) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        three.find("d", requested)
    message = str(caught.value)
    assert message.startswith(f"dataset 'd' has no version {requested!r}; ")
    assert all(f"{digest[:12]} of 2026-03-" in message for digest in DIGESTS)
    assert caught.value.exit_code == 2


def test_an_ambiguous_prefix_lists_its_versions(tmp_path: Path) -> None:
    alike = ["abcd" + "0" * 60, "abcd" + "1" * 60, "ef" * 32]
    store = published(tmp_path, list(zip(TIMES, alike, strict=True)))
    with pytest.raises(DatasetNotFoundError, match="has several versions 'abcd'") as caught:
        store.find("d", "abcd")
    assert [digest[:12] in str(caught.value) for digest in alike] == [True, True, False]
    assert store.find("d", "abcd0").digest == alike[0]


def test_a_state_published_twice_is_found_at_its_last_time(tmp_path: Path) -> None:
    store = published(tmp_path, [(TIMES[0], DIGESTS[0]), (TIMES[1], DIGESTS[1]), (TIMES[2], DIGESTS[0])])
    assert store.find("d", "ab12").published == datetime(2026, 3, 15, tzinfo=UTC)
    assert store.find("d", "2026-03-01T09:00").published == datetime(2026, 3, 1, 8, tzinfo=UTC)


def test_a_dataset_without_versions_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"no version 'abcd'; the latest are: none$"):
        published(tmp_path, []).find("d", "abcd")


def test_an_unreadable_version_is_skipped(tmp_path: Path) -> None:
    store = published(tmp_path, list(zip(TIMES, DIGESTS, strict=True)))
    folder = tmp_path / "versions" / "d"
    (folder / f"{TIMES[1]}-{DIGESTS[1][:16]}.json").write_text("{")
    (folder / "notes.json").write_text("{}")
    assert [version.digest for version in store.of("d")] == [DIGESTS[0], DIGESTS[2]]


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=8), st.integers(-5, 10**6 + 5), st.sampled_from(OFFSETS))
def test_a_moment_finds_the_last_version_until_then(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], limit: int, zone: timedelta
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    states = [((start + timedelta(seconds=at)).strftime("%Y%m%dT%H%M%S.%fZ"), f"{at:064x}") for at in seconds]
    store = published(tmp_path_factory.mktemp("moments"), states)
    moment = (start + timedelta(seconds=limit)).astimezone(timezone(zone))
    expected = max((at for at in seconds if at <= limit), default=None)
    if expected is None:
        with pytest.raises(DatasetNotFoundError):
            store.find("d", moment.isoformat())
    else:
        assert store.find("d", moment.isoformat()).digest == f"{expected:064x}"


def rewrite(folder: Path, count: int, seed: int = 0) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows(count, seed)]
    (folder / "small.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Version], list[datetime], list[list[Any]]]:
    """A dataset built as A (twice), B, A: its folder, versions, times between builds, and the rows of each state."""
    folder = tmp_path_factory.mktemp("history")
    config = write_dataset(folder, 120)
    times, found = [], []
    for count in (120, 120, 90, 120):
        rewrite(folder, count)
        pipeline = DataPipeline.from_config(config, store=folder / "store").unwrap()
        dataset = pipeline.get_dataset().unwrap()
        found.append([dataset[row]["input_ids"].tolist() for row in range(len(dataset))])
        time.sleep(0.002)
        times.append(datetime.now(UTC))
    return folder, pipeline.versions(), times, found


def test_only_a_change_of_state_adds_a_version(history: Any) -> None:
    _, versions, _, found = history
    assert len(versions) == 3
    assert versions[0].digest == versions[2].digest != versions[1].digest
    assert versions[0].stages == versions[2].stages
    assert set(versions[0].stages) == {"raw", "schema", "columns", "prompts", "tokenizer", "tokens", "sequences"}
    assert [version.published for version in versions] == sorted(version.published for version in versions)
    assert found[0] == found[1] == found[3] != found[2]


def test_an_older_version_opens_unchanged(history: Any) -> None:
    folder, versions, times, found = history
    store = folder / "store"
    for moment, expected in zip(times, found, strict=True):
        dataset = open_dataset("small", store=store, version=moment.isoformat())
        assert [dataset[row]["input_ids"].tolist() for row in range(len(dataset))] == expected
    old, latest = open_dataset("small", store=store, version=versions[1].digest[:8]), open_dataset("small", store=store)
    assert (old.version, latest.version) == (versions[1].digest, versions[2].digest)
    assert open_dataset("small", store=store, version=latest.version).digest == latest.digest
    assert (len(old), len(latest)) == (90, 120)
    assert ArtifactStore(store).manifest("small", "raw", versions[1].digest).total("rows_out") == 90


def test_an_older_version_is_opened_from_the_yaml_without_a_build(history: Any) -> None:
    folder, versions, _, found = history
    pipeline = DataPipeline.from_config(folder / "small.yaml", store=folder / "store").unwrap()
    rewrite(folder, 10, seed=5)
    old = pipeline.get_dataset(version=versions[1].digest[:8]).unwrap()
    assert [old[row]["input_ids"].tolist() for row in range(len(old))] == found[2]
    batches = list(pipeline.get_dataloader(shuffle=False, version=versions[1].digest[:8]).unwrap())
    assert sum(len(batch["input_ids"]) for batch in batches) == 90
    assert len(pipeline.versions()) == 3
    with pytest.raises(DatasetNotFoundError, match="no version 'beef'"):
        pipeline.get_dataset(version="beef").unwrap()


def test_a_version_without_the_stage_or_dataset_is_reported(history: Any) -> None:
    folder, versions, _, _ = history
    with pytest.raises(DatasetNotFoundError, match="has no mixture"):
        ArtifactStore(folder / "store").manifest("small", "mixture", versions[0].digest)
    with pytest.raises(DatasetNotFoundError, match=r"did you mean small"):
        open_dataset("smal", store=folder / "store", version="2026-01-01")


@pytest.mark.parametrize("by_config", [True, False])
def test_the_command_lists_every_version(history: Any, capsys: pytest.CaptureFixture[str], by_config: bool) -> None:
    folder, versions, _, found = history
    name = str(folder / "small.yaml") if by_config else "small"
    assert main(["versions", name, "--store", str(folder / "store"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["dataset"] == "small"
    lengths = [len(found[0]), len(found[2]), len(found[0])]
    tokens = [sum(map(len, found[0])), sum(map(len, found[2])), sum(map(len, found[0]))]
    for entry, version, length, count in zip(printed["versions"], versions, lengths, tokens, strict=True):
        assert entry == {
            "published": version.published.isoformat(),
            "digest": version.digest,
            "rows": length,
            "tokens": count,
            "chunks": 1,
            "pins": [],
        }
    assert main(["versions", name, "--store", str(folder / "store")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for version, length in zip(versions, lengths, strict=True):
        pattern = f"{version.published:%Y-%m-%d %H:%M:%S}.*{version.digest[:12]}.* {length} "
        assert any(re.search(pattern, line) for line in lines), lines


def test_the_command_reports_a_missing_dataset(history: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, *_ = history
    assert main(["versions", "smal", "--store", str(folder / "store")]) == 2
    assert "did you mean small" in capsys.readouterr().err
