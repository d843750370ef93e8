"""Batches as arrays of JAX and TensorFlow; test_array_loader.py runs these tests in a separate process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from support.array_rows import LONGEST, Row, loader, write_datasets
from support.stored_sequences import write_sequences


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "store"


@pytest.fixture(scope="module")
def written(store: Path) -> dict[str, list[Row]]:
    return write_datasets(store)


@pytest.mark.parametrize("name", ["plain", "packed"])
@pytest.mark.parametrize(
    "arguments", [{}, {"padding": 8}, {"prefetch_factor": 0}, {"batch_size": None, "token_budget": 60}]
)
def test_jax_is_given_the_same(
    store: Path, written: dict[str, list[Row]], name: str, arguments: dict[str, Any]
) -> None:
    made, plain = (loader(store, name, **arguments, framework=framework) for framework in ("jax", "numpy"))
    for one, other in zip(made, plain, strict=True):
        assert one.keys() == other.keys()
        for column, value in other.items():
            assert np.array_equal(one[column], value)
            if column != "max_seqlen":
                assert isinstance(one[column], jax.Array) and one[column].dtype == np.int32
        assert made.state_dict() == plain.state_dict()


def test_jax_has_int64_where_it_may(store: Path, written: dict[str, list[Row]]) -> None:
    jax.config.update("jax_enable_x64", True)
    try:
        batch = next(iter(loader(store, "packed", framework="jax")))
        assert (batch["labels"].dtype, batch["cu_seqlens"].dtype) == (np.int64, np.int32)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_weights_come_along(tmp_path: Path) -> None:
    rows = write_sequences(tmp_path, "weighted", [300, 500], mean=20).rows
    batches = list(loader(tmp_path, "weighted", shuffle=False, padding="longest", framework="jax"))
    weights = [
        values[mask == 1].tolist()
        for batch in batches
        for values, mask in zip(np.asarray(batch["loss_weights"]), np.asarray(batch["attention_mask"]), strict=True)
    ]
    assert weights == [counted.tolist() for _, _, counted in rows]
    assert {batch["loss_weights"].dtype for batch in batches} == {np.dtype(np.float32)}


def test_a_jitted_step_is_compiled_once_for_batches_of_one_shape(store: Path, written: dict[str, list[Row]]) -> None:
    traced = []

    @jax.jit
    def trained(batch: dict[str, jax.Array]) -> jax.Array:
        traced.append(batch["labels"].shape)
        return (batch["labels"] != -100).sum()

    batches = loader(store, framework="jax", drop_last=True, shuffle=False)
    total = sum(int(trained(batch)) for batch in batches)
    assert total == sum(label != -100 for _, labels in written["plain"][:36] for label in labels)
    assert traced == [(4, LONGEST)]


def test_examples_and_batches_can_be_changed(store: Path, written: dict[str, list[Row]]) -> None:
    """With NumPy, before the conversion to JAX."""

    def count(examples: list[dict[str, Any]]) -> dict[str, Any]:
        assert all(type(value) is np.ndarray for example in examples for value in example.values())
        return {"length": np.array([len(example["input_ids"]) for example in examples])}

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        assert type(batch["length"]) is np.ndarray
        return {"twice": batch["length"] * 2}

    batches = list(loader(store, shuffle=False, framework="jax", collate_fn=count, transform=double))
    assert all(isinstance(batch["twice"], jax.Array) for batch in batches)
    found = [length for batch in batches for length in batch["twice"].tolist()]
    assert found == [2 * len(ids) for ids, _ in written["plain"]]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize("arguments", [{}, {"padding": "longest"}, {"batch_size": None, "token_budget": 60}])
def test_tensorflow_is_given_the_same(
    store: Path, written: dict[str, list[Row]], framework: Any, arguments: dict[str, Any]
) -> None:
    made, plain = loader(store, "packed", framework=framework, **arguments), loader(store, "packed", **arguments)
    dataset = made.to_tf_dataset()
    spec: Any = dataset.element_spec
    assert spec["input_ids"].shape == (None, None if arguments.get("padding") else LONGEST)
    for _ in range(2):
        for one, other in zip(dataset, plain, strict=True):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[name].numpy(), other[name]) for name in other)
            assert made.state_dict() == plain.state_dict()
