"""Pins: `gc` keeps what they name, and a run that names its pin or state opens the version it started with."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from gc import collect as collect_cycles
from pathlib import Path
from typing import Any

import pytest

from support.builds import build
from support.garbage import gc, states
from support.object_service import BUCKET, ObjectService, object_service
from support.soak import machine
from support.store_files import versions
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.cli.main import main
from tokenloom.errors import DatasetNotFoundError, LoaderStateError, StoreError
from tokenloom.loaders import TokenLoader, batch_digest, open_mixture
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.blobs.folder import Folder
from tokenloom.resources.store.verify import verify


@pytest.fixture
def built(tmp_path: Path, tokenizer_folder: Path) -> tuple[Path, list[Path]]:
    """A store with the first of four states of `small`, and the YAMLs of all."""
    configs = states(tmp_path, tokenizer_folder, 4)
    build(configs[0], tmp_path / "store")
    return tmp_path / "store", list(configs)


def batches(dataset: Any) -> list[str]:
    return [batch_digest(batch) for batch in TokenLoader(dataset, batch_size=3, seed=1)]


def test_a_pinned_version_survives_gc_and_resumes_and_traces(built: tuple[Path, list[Path]]) -> None:
    store, configs = built
    loader = TokenLoader(open_dataset("small", store=store, pin="run-1"), batch_size=3, seed=1)
    whole, traced = batches(open_dataset("small", store=store)), [loader.trace(step) for step in range(len(loader))]
    running = iter(loader)
    begun = [batch_digest(next(running)) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    del loader, running
    for config in configs[1:]:
        build(config, store)
    gc(store, keep=1)
    assert verify(ArtifactStore(store)).findings == []
    assert len(versions(store, "small")) == 2
    options: list[dict[str, Any]] = [{"pin": "run-1"}, {"state": state}]
    resumed: Any = None
    for given in options:
        resumed = TokenLoader(open_dataset("small", store=store, **given), batch_size=3, seed=1)
        assert [resumed.trace(step) for step in range(len(resumed))] == traced
        resumed.load_state_dict(state)
        assert begun + [batch_digest(batch) for batch in resumed] == whole
    latest = TokenLoader(open_dataset("small", store=store), batch_size=3, seed=1)
    with pytest.raises(LoaderStateError, match=f"saved with {state['versions'][0]}.*state="):
        latest.load_state_dict(state)
    del resumed, latest  # they hold locks
    collect_cycles()
    assert main(["unpin", "small", "--as", "run-1", "--store", str(store)]) == 0
    gc(store, keep=1)
    assert len(versions(store, "small")) == 1
    with pytest.raises(DatasetNotFoundError, match=r"state was saved with version .* gc .*tokenloom pin"):
        open_dataset("small", store=store, state=state)


def test_the_commands_pin_list_and_unpin(built: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    store, configs = built
    first = open_dataset("small", store=store).version
    build(configs[1], store)

    def run(*arguments: str) -> tuple[int, str, str]:
        status, (out, err) = main([*arguments, "--store", str(store)]), capsys.readouterr()
        return status, out, err

    status, out, err = run("pin", f"small@{first[:8]}", "--as", "a")
    assert (status, err) == (0, "")
    assert f"small {first[:12]}" in out
    assert run("pin", "small", "--as", "b")[0] == 0
    assert run("pin", f"small@{first[:8]}", "--as", "a")[0] == 0  # again: no change
    told = json.loads(run("versions", "small", "--json")[1])["versions"]
    assert [version["pins"] for version in told] == [["a"], ["b"]]
    assert "pinned as" in run("versions", "small")[1]
    for arguments, found in (
        (("pin", "small", "--as", "a"), "'a' already pins small"),
        (("pin", "small@ffffffff", "--as", "c"), "no version"),
        (("pin", "smal", "--as", "c"), "did you mean small"),
        (("pin", "small", "--as", "../c"), "--as: a pin's name must be"),
        (("pin", "small", "--as", ""), "--as: a pin's name must be"),
        (("unpin", "small", "--as", "c"), "no pin 'c' .pins: a, b"),
        (("unpin", "../small", "--as", "c"), "small"),
    ):
        status, _, err = run(*arguments)
        assert status == 2
        assert re.search(found, err), err
    with pytest.raises(DatasetNotFoundError, match="already pins"):
        open_dataset("small", store=store, pin="a", version=ArtifactStore(store).versions.of("small")[-1].digest)
    with pytest.raises(ValueError, match="pin"):
        open_dataset("small", store=store, pin="a/b")


def test_trace_opens_what_a_run_pinned_and_builds_nothing(
    built: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    store, configs = built
    pinned = open_dataset("small", store=store, pin="run")
    build(configs[1], store)

    def trace(*arguments: str) -> tuple[int, str, str]:
        status = main(["trace", str(configs[2]), "--step", "0", "--json", *arguments, "--store", str(store)])
        out, err = capsys.readouterr()
        return status, out, err

    for opened in (["--pin", "run"], ["--version", pinned.version[:12]]):
        status, out, _ = trace(*opened)
        (batch,) = json.loads(out)["batches"]
        assert (status, len(batch["rows"])) == (0, min(8, len(pinned)))
        for row in batch["rows"]:
            assert tuple(row["places"]) == pinned.trace(row["row"]).places
    assert len(versions(store, "small")) == 2
    for arguments, found in (
        (["--pin", "ran"], "no pin 'ran' .pins: run.; did you mean run"),
        (["--pin", "../x"], "--pin: "),
    ):
        status, _, err = trace(*arguments)
        assert status == 2
        assert re.search(found, err), err
    assert [pin.run for pin in ArtifactStore(store).pins.of("small")] == ["run"]


def test_a_damaged_pin_stops_gc(built: tuple[Path, list[Path]]) -> None:
    store, configs = built
    open_dataset("small", store=store, pin="run")
    (path,) = (store / "pins").rglob("*.json")
    path.write_bytes(path.read_bytes()[:-9])
    for config in configs[1:]:
        build(config, store)
    with pytest.raises(StoreError, match=r"pins/small/run\.json cannot be read.*unpin"):
        gc(store, keep=1)
    with pytest.raises(StoreError, match=r"pins/small/run\.json cannot be read"):
        open_dataset("small", store=store, pin="run")
    assert len(versions(store, "small")) == 4
    (finding,) = verify(ArtifactStore(store)).findings
    assert (finding.kind, finding.problem, finding.blob) == ("pin", "damaged", "pins/small/run.json")
    assert path.exists()
    assert main(["unpin", "small", "--as", "run", "--store", str(store)]) == 0
    gc(store, keep=1)


def test_a_version_removed_while_it_was_pinned_is_reported(built: tuple[Path, list[Path]]) -> None:
    store, _ = built
    opened = ArtifactStore(store)
    digest = opened.manifest_digest("small")
    opened.objects.path(digest).unlink()
    with pytest.raises(StoreError):
        opened.pin("small", "run")
    assert not (store / "pins/small").exists() or not list((store / "pins/small").iterdir())


def test_one_of_several_processes_that_pin_at_once_wins(tmp_path: Path) -> None:
    write_numbered(tmp_path, "a", [3], 5)
    blobs = Folder(tmp_path)
    created = [False] * 8

    def create(number: int) -> None:
        created[number] = blobs.create_new("pins/a/x.json", b"%d" % number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(created) == 1
    assert blobs.read("pins/a/x.json") == b"%d" % created.index(True)
    assert not list((tmp_path / "scratch").iterdir())


def mix(folder: Path, rows: int, *first: int) -> None:
    """Write the datasets `a` and `b`, with tokens from `first` on, and a mixture of them."""
    for name, token in zip("ab", first, strict=True):
        write_numbered(folder, name, [rows], 5, first=token)
    store = ArtifactStore(folder)
    manifests = {name: store.manifest_digest(name) for name in "ab"}
    facts = {"by": "rows", "datasets": [{"dataset": name, "weight": 1.0, "epochs": None} for name in "ab"]}
    store.put_manifest(Manifest("mix", "mixture", (), facts, notes={"manifests": manifests}))


def test_a_pinned_mixture_keeps_its_datasets(tmp_path: Path) -> None:
    mix(tmp_path, 9, 3, 900)
    store = ArtifactStore(tmp_path)
    mixed = open_mixture("mix", store=tmp_path, pin="run")
    state = TokenLoader(mixed, batch_size=2, seed=1).state_dict()
    assert [version.partition("@")[0] for version in state["versions"]] == ["a", "b"]
    expected = batches(mixed)
    mix(tmp_path, 12, 5000, 7000)
    gc(tmp_path, keep=1)
    assert batches(open_mixture("mix", store=tmp_path, pin="run")) == expected
    assert batches(open_mixture("mix", store=tmp_path)) != expected
    store.pins.remove("mix", "run")
    gc(tmp_path, keep=1)
    assert batches(open_mixture("mix", store=tmp_path, pin="run")) != expected


def test_a_mixture_that_is_replaced_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix(tmp_path, 9, 3, 900)
    replaced, lock = list[str](), ArtifactStore.read_lock

    def overtaken(opened: ArtifactStore, digest: str) -> Any:
        if not replaced:
            replaced.append(digest)
            mix(tmp_path, 12, 5000, 7000)
            gc(tmp_path, keep=1)
        return lock(opened, digest)

    monkeypatch.setattr(ArtifactStore, "read_lock", overtaken)
    mixed = open_mixture("mix", store=tmp_path)
    expected = {name: ArtifactStore(tmp_path).manifest(name).digest for name in "ab"}
    assert mixed.versions == expected
    assert batches(mixed)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectService]:
    with object_service(tmp_path_factory.mktemp("cache")) as service:
        yield service


@machine("bucket")
@pytest.mark.usefixtures("service")
def test_pins_of_a_bucket() -> None:
    address = f"s3://{BUCKET}/pins"
    write_numbered(address, "a", [3], 5)  # pyright: ignore[reportArgumentType]
    store = ArtifactStore(address)
    pin = store.pin("a", "run")
    assert store.pins.of("a") == [pin]
    assert store.blobs.create_new("pins/a/run.json", b"other") is False
    write_numbered(address, "a", [4], 5, first=700)  # pyright: ignore[reportArgumentType]
    assert open_dataset("a", store=address, pin="run").version == pin.digest
    store.pins.remove("a", "run")
    assert store.pins.of("a") == []
