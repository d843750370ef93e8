"""The Ray engine on a real cluster of two nodes: order, limits, retries and refusals."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.ray_cluster import ray_cluster
from support.soak import machine, smoke
from tokenloom.errors import (
    ClusterError,
    ClusterUnavailableError,
    ConfigError,
    DataValidationError,
    DeadlineError,
    RemovedObjectError,
    StoreUnavailableError,
)
from tokenloom.resources.engines import ray_engine
from tokenloom.resources.engines.engine import Ready
from tokenloom.resources.engines.ray_engine import RayEngine
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("cluster")

ERRORS: dict[str, Callable[[], Exception]] = {
    "config": lambda: ConfigError.at("a.yaml:3", "is wrong"),
    "data": lambda: DataValidationError("prompts: wrong"),
    "deadline": lambda: DeadlineError("a row takes too long"),
    "removed": lambda: RemovedObjectError.of("a" * 64),
    "bug": lambda: ZeroDivisionError("division by zero"),
}


@dataclass(frozen=True)
class Item:
    number: int

    @property
    def place(self) -> str:
        return f"rows.jsonl:{self.number + 1}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster whose nodes run in a folder of their own."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("nodes")
    os.chdir(folder)
    try:
        with ray_cluster() as cluster:
            os.chdir(before)
            from ray import cloudpickle

            # Workers cannot import this module.
            cloudpickle.register_pickle_by_value(sys.modules[__name__])  # pyright: ignore[reportPrivateImportUsage]
            yield cluster.address
    finally:
        os.chdir(before)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "FIRST_WAIT", 0.05)


def times(folder: Path, item: Item) -> int:
    """How often this was called for an item, with this call."""
    with (folder / str(item.number)).open("a") as file:
        file.write(".")
    return (folder / str(item.number)).stat().st_size


@smoke
def test_results_come_in_order_and_known_ones_run_nothing(address: str) -> None:
    def slow_when_even(item: Item) -> tuple[int, int]:
        time.sleep(0.05 * (item.number % 2 == 0))
        return item.number, os.getpid()

    items: list[Item | Ready[tuple[int, int]]] = list(map(Item, range(40)))
    items[::3] = [Ready((number, 0)) for number in range(0, 40, 3)]
    found = list(RayEngine(address=address).map(slow_when_even, items))
    assert [number for number, _ in found] == list(range(40))
    assert all((pid == 0) == (number % 3 == 0) for number, pid in found)
    assert os.getpid() not in {pid for _, pid in found}


def test_few_items_are_drawn_before_their_turn(address: str) -> None:
    """However slow the first one is, so that the memory of this process does not grow with their number."""

    def first_is_slow(item: Item) -> int:
        time.sleep(1.5 * (item.number == 0))
        return item.number

    drawn = []
    engine = RayEngine(workers=2, address=address)
    results = engine.map(first_is_slow, (drawn.append(number) or Item(number) for number in range(200)))
    ahead = [len(drawn) - count for count, _ in enumerate(results)]
    assert len(drawn) == 200
    assert max(ahead) <= 2 + 2 * ray_engine.AHEAD


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_its_own_type_and_the_item_is_not_tried_again(name: str, address: str, tmp_path: Path) -> None:
    expected = ERRORS[name]()

    def fail(item: Item) -> int:
        if item.number == 3:
            times(tmp_path, item)
            raise ERRORS[name]()
        return item.number

    found: list[int] = []
    with pytest.raises(type(expected), match=re.escape(str(expected))) as raised:
        found.extend(RayEngine(address=address).map(fail, map(Item, range(9))))
    assert found == [0, 1, 2]
    assert vars(raised.value) == vars(expected)
    assert (tmp_path / "3").stat().st_size == 1


@pytest.mark.parametrize("how", ["outage", "killed"])
def test_what_was_away_or_died_is_tried_again(how: str, address: str, tmp_path: Path) -> None:
    def unsteady(item: Item) -> int:
        if item.number % 4 == 1 and times(tmp_path, item) < 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StoreUnavailableError("the store is away")
        return item.number

    engine = RayEngine(address=address)
    assert list(engine.map(unsteady, map(Item, range(8)))) == list(range(8))
    assert engine.retries.count == 4
    assert re.fullmatch(r"rows\.jsonl:(2|6): .*(is away|died); trying again", engine.retries.last)


def test_an_item_that_fails_on_every_try_ends_the_run_with_its_place(address: str, tmp_path: Path) -> None:
    def deadly(item: Item) -> int:
        if item.number == 1:
            times(tmp_path, item)
            os.kill(os.getpid(), signal.SIGKILL)
        return item.number

    with pytest.raises(ClusterError, match=r"rows\.jsonl:2: failed 5 times in a row .* its worker process died"):
        list(RayEngine(address=address).map(deadly, map(Item, range(4))))
    assert (tmp_path / "1").stat().st_size == ray_engine.TRIES


def test_an_outage_that_lasts_keeps_its_type(address: str) -> None:
    def away(item: Item) -> int:
        raise StoreUnavailableError("the store is away")

    with pytest.raises(StoreUnavailableError, match="the store is away"):
        list(RayEngine(address=address).map(away, [Item(0)]))


@pytest.mark.parametrize(("exists", "message"), [(False, "no store found at"), (True, "is not the store that this")])
def test_a_store_that_a_node_does_not_reach_is_refused(
    exists: bool, message: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same path is another folder in the processes of the nodes, as on another machine."""
    where = f"folder{exists}"
    monkeypatch.chdir(tmp_path)
    store = ArtifactStore(tmp_path / where)
    store.prepare()
    store.blobs.__dict__.update(
        root=Path(f"/proc/self/cwd/{where}"),
        _prefix=f"/proc/self/cwd/{where}/",
        _scratch=Path(f"/proc/self/cwd/{where}/scratch"),
    )
    if exists:
        (there,) = RayEngine(address=address).map(lambda item: os.getcwd(), [Item(0)])  # noqa: PTH109
        ArtifactStore(Path(there) / where).prepare()
    with pytest.raises(ClusterError, match=message) as raised:
        list(RayEngine(address=address).map(lambda item: item, [Item(0)], store))
    assert "\n" not in str(raised.value)


def test_the_store_that_all_nodes_reach_is_left_as_it_was(address: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    store.prepare()
    assert len(list(RayEngine(address=address).map(lambda item: item, map(Item, range(4)), store))) == 4
    assert [blob.name for blob in store.blobs.below("")] == ["FORMAT"]


@pytest.mark.parametrize("name", ["python", "tokenloom", "pyarrow"])
def test_a_node_with_another_version_is_refused(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ray_engine.versions()
    monkeypatch.setattr(ray_engine, "versions", lambda: {**own, name: "0.0.1"})
    with pytest.raises(ClusterError, match=rf"it has {name} {re.escape(own[name])}, but .* has 0\.0\.1; all nodes"):
        list(RayEngine(address=address).map(lambda item: item, [Item(0)]))


def test_one_process_uses_one_cluster(address: str) -> None:
    assert RayEngine(address=address).workers == 2
    with pytest.raises(ConfigError, match=r"compute\.address: this process is connected to another Ray cluster"):
        _ = RayEngine(address="127.0.0.1:1").workers


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nothing_listens_is_refused_soon(prefix: str) -> None:
    with pytest.raises(
        ClusterUnavailableError, match=rf"no Ray cluster responds at {prefix}127\.0\.0\.1:1 \(Connection"
    ):
        ray_engine.check_address(f"{prefix}127.0.0.1:1")


@pytest.mark.parametrize("wrong", ["cluster", "127.0.0.1:", ":1", "ray://head", "http://head"])
def test_what_is_not_an_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"compute\.address: .* is not the address of a Ray cluster"):
        ray_engine.check_address(wrong)
