"""Damaged states and arguments out of range: each loader refuses them, and the message names the field or argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from support.soak import each
from support.stored_sequences import write_numbered
from tokenloom import open_dataset
from tokenloom.errors import LoaderStateError
from tokenloom.loaders import (
    ArrayDataLoader,
    DataLoaderBuilder,
    MapLoader,
    MixedDataset,
    StreamingPreprocessedDataset,
    TextDataset,
    TokenLoader,
    UniversalDataModule,
)
from tokenloom.loaders.order.batch_plan import WINDOW_ROWS

ROWS = 24
FACTORY = Callable[..., Any]


class Words:
    """A tokenizer with one token per word."""

    pad_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


class OneToken:
    """An engine that makes one token of each row."""

    def encode(self, table: pa.Table) -> pa.Table:
        count = table.num_rows
        ids = pa.array([[7]] * count, pa.list_(pa.uint32()))
        flags = pa.array([[1]] * count, pa.list_(pa.uint8()))
        origins = pa.array([[row] for row in range(count)], pa.list_(pa.int64()))
        return pa.table({"input_ids": ids, "trained": flags, "rows": origins})


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FACTORY]:
    """Every loader with states, by name, as a function of its arguments."""
    folder = tmp_path_factory.mktemp("states")
    for name, first in (("a", 3), ("b", 9000)):
        write_numbered(folder, name, [10, 14], 9, first=first)
    (folder / "text.txt").write_text("\n".join(f"one two {n}" for n in range(ROWS)))

    def opened() -> Any:
        return open_dataset("a", store=folder)

    def mixed() -> Any:
        return MixedDataset({"a": opened(), "b": open_dataset("b", store=folder)}, {"a": 1, "b": 1}, "rows", {"a": 1})

    text: Any = TextDataset(folder / "text.txt", Words(), 8)
    samples = [torch.arange(3) for _ in range(ROWS)]
    return {
        "token": lambda **options: TokenLoader(opened(), **{"batch_size": 4, "padding": "longest", **options}),
        "budget": lambda **options: TokenLoader(opened(), **{"token_budget": 64, "padding": "longest", **options}),
        "mixture": lambda **options: TokenLoader(mixed(), **{"batch_size": 4, "padding": "longest", **options}),
        "array": lambda **options: ArrayDataLoader(dataset_name=opened(), **options),
        "raw text": lambda **options: TokenLoader(text, **{"batch_size": 4, **options}),
        "map": lambda **options: MapLoader(samples, **{"batch_size": 4, **options}),
        "builder": lambda **options: DataLoaderBuilder().with_dataset(samples).with_options(**options).build(),
        "stream": lambda **options: StreamingPreprocessedDataset(
            [{"n": n} for n in range(ROWS)], OneToken(), **options
        ),
        "module": lambda **options: UniversalDataModule(samples, val_split=0, **{"batch_size": 4, **options}),
    }


LOADERS = ["token", "budget", "mixture", "array", "raw text", "map", "builder", "stream", "module"]
POSITIONED = [name for name in LOADERS if name not in ("stream", "module")]


@pytest.mark.parametrize(
    ("name", "state"), each(LOADERS, [None, [], "epoch", 3, b"", [["epoch", 1]], {"version": [1]}, {1: 2}])
)
def test_what_is_not_a_state_is_refused(makers: dict[str, FACTORY], name: str, state: Any) -> None:
    with pytest.raises(LoaderStateError, match=r"state"):
        makers[name]().load_state_dict(state)


HOSTILE: list[Any] = [None, True, -1, 1.0, 0.5, "1", "", [1], {}, float("nan"), 1 << 62, 1 << 63, 10**400, -(1 << 63)]


@pytest.mark.parametrize("name", LOADERS)
def test_a_state_with_any_field_damaged_is_refused_by_the_name_of_the_field(
    makers: dict[str, FACTORY], name: str
) -> None:
    loader = makers[name](seed=5)
    whole = json.loads(json.dumps(loader.state_dict()))
    outer = dict(whole)
    state = whole["train"] if name == "module" else whole
    for field, value in state.items():
        for hostile in HOSTILE:
            if hostile == value and type(hostile) is type(value):
                continue
            damaged = {**state, field: hostile}
            with pytest.raises(LoaderStateError, match=r"state") as raised:
                loader.load_state_dict({**outer, "train": damaged} if name == "module" else damaged)
            assert field in str(raised.value), (field, hostile, str(raised.value))
            assert len(str(raised.value)) < 400
        missing = {key: kept for key, kept in state.items() if key != field}
        if field not in OPTIONAL:
            with pytest.raises(LoaderStateError, match=f"version|lacks {field}"):
                loader.load_state_dict({**outer, "train": missing} if name == "module" else missing)
    loader.load_state_dict(whole)


OPTIONAL = {"versions"}
"""Fields that states of earlier versions lack."""


@pytest.mark.parametrize("name", POSITIONED)
@pytest.mark.parametrize(
    "place", [{"position": 10**6}, {"position": 25}, {"batch": 10**6}, {"batch": 1, "position": 24}]
)
def test_a_place_outside_the_epoch_is_refused(makers: dict[str, FACTORY], name: str, place: dict[str, int]) -> None:
    loader = makers[name]()
    if len(loader.dataset) > ROWS and "batch" not in place:
        place = {"position": len(loader.dataset) + 1}
    with pytest.raises(LoaderStateError, match=r"position|batch"):
        loader.load_state_dict({**loader.state_dict(), **place})
    if name == "budget":
        with pytest.raises(LoaderStateError, match="position"):
            loader.load_state_dict({**loader.state_dict(), "position": min(WINDOW_ROWS, 5)})


SKIPS: list[Any] = [
    [[5, 2]], [[3, 3]], [[-1, 2]], [[0, 1 << 63]], [[1]], [[1, 2, 3]], [1, 2], ["ab"], [[0, 1.0]], {"0": 1},
    [[True, 2]], [[8, 9], [2, 3]],
]  # fmt: skip


@pytest.mark.parametrize(("name", "skips"), each(["token", "mixture", "array", "raw text"], SKIPS))
def test_skips_out_of_order_or_range_are_refused(makers: dict[str, FACTORY], name: str, skips: Any) -> None:
    loader = makers[name]()
    with pytest.raises(LoaderStateError, match="skips"):
        loader.load_state_dict({**loader.state_dict(), "skips": skips})


def test_a_stream_shorter_than_its_state_is_refused(makers: dict[str, FACTORY]) -> None:
    stream = makers["stream"](buffer_size=8)
    whole = [row["input_ids"] for row in stream]
    assert len(whole) == ROWS
    ended = stream.state_dict()
    assert list(_resumed(makers["stream"](buffer_size=8), ended)) == []
    for place in ({"window": 9}, {"window": 2, "row": 9}, {"window": 3, "row": 1}):
        with pytest.raises(LoaderStateError, match="window"):
            list(_resumed(makers["stream"](buffer_size=8), {**ended, "row": 0, **place}))


def _resumed(stream: Any, state: dict[str, Any]) -> Any:
    stream.load_state_dict(state)
    return stream


@pytest.mark.parametrize(("name", "epoch"), each(LOADERS, [-1, 1 << 62, 1 << 64, 1.5, None, "1"]))
def test_an_epoch_out_of_range_is_refused(makers: dict[str, FACTORY], name: str, epoch: Any) -> None:
    loader = makers[name]()
    loader = loader.train_dataloader() if name == "module" else loader
    with pytest.raises(ValueError, match=rf"^epoch must be an integer of at least 0.*got {re.escape(repr(epoch))}"):
        loader.set_epoch(epoch)
    sampler = getattr(loader, "sampler", None)
    if sampler is not None and hasattr(sampler, "set_epoch"):
        with pytest.raises(ValueError, match=r"^epoch must be"):
            sampler.set_epoch(epoch)
    loader.set_epoch(3)


WRONG: dict[str, list[Any]] = {
    "batch_size": [0, -1, 2.5, "8", True, 1 << 62],
    "num_workers": [-1, 1.0, "2", None],
    "prefetch_factor": [-1, 0.5, "2", True],
    "seed": [0.5, "a", [1]],
    "token_budget": [0, -3, 1.5, "9"],
    "buffer_size": [-1, 1.5, "9"],
}
TAKEN = {
    "token": ("batch_size", "num_workers", "prefetch_factor", "seed", "token_budget"),
    "array": ("batch_size", "prefetch_factor", "seed", "token_budget"),
    "map": ("batch_size", "num_workers", "prefetch_factor", "seed"),
    "builder": ("batch_size", "num_workers", "prefetch_factor", "seed"),
    "module": ("batch_size",),
    "stream": ("buffer_size", "seed"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_argument_out_of_range_is_refused_by_its_name(makers: dict[str, FACTORY], name: str) -> None:
    for argument in TAKEN[name]:
        for value in WRONG[argument]:
            with pytest.raises(ValueError, match=f"^{argument} must be an integer"):
                loader = makers[name](**{argument: value})
                if name == "module":
                    loader.train_dataloader()
    with pytest.raises(ValueError, match=r"^prefetch_factor must be an integer of at least 1"):
        makers["map"](num_workers=1, prefetch_factor=0)


@pytest.mark.parametrize("name", ["token", "budget", "mixture", "array"])
def test_a_step_out_of_range_is_refused(makers: dict[str, FACTORY], name: str) -> None:
    loader = makers[name]()
    for step in (-1, 0.5, None, "1", 1 << 62):
        with pytest.raises(ValueError, match=r"^step must be an integer"):
            loader.trace(step)
        if name != "budget":
            with pytest.raises(ValueError, match="must be an integer"):
                loader.skip(0, step)
    for rank in (-1, 1, 0.5):
        with pytest.raises(ValueError, match=r"^rank must be"):
            loader.trace(0, rank)
