"""Batches as arrays: every written row once per epoch, for any batch size."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from support.array_rows import LONGEST, Ids, Row, loader, rows_of, write_datasets
from support.datasets_on_disk import write_dataset
from support.paths import TESTS
from support.processes import run, run_together
from support.soak import each, machine
from tokenloom import DataPipeline
from tokenloom.errors import ConfigError, DatasetNotFoundError, SourceError
from tokenloom.loaders import (
    ArrayDataLoader,
    DataLoaderConfig,
    MixedDataset,
    TokenLoader,
    create_collate_fn,
    open_dataset,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays") / "store"


@pytest.fixture(scope="module")
def written(store: Path) -> dict[str, list[Row]]:
    return write_datasets(store)


@pytest.mark.parametrize(
    ("name", "arguments"),
    each(
        ["plain", "packed"],
        [{}, {"padding": "longest", "padding_side": "left"}, {"shuffle": "block", "prefetch_factor": 0}],
    ),
)
def test_an_epoch_has_every_row_as_it_was_written(
    store: Path, written: dict[str, list[Row]], name: str, arguments: dict[str, Any]
) -> None:
    made = loader(store, name, **arguments)
    batches = list(made)
    for batch in batches:
        assert all(type(value) is np.ndarray for key, value in batch.items() if key != "max_seqlen")
        assert {batch[key].dtype for key in ("input_ids", "attention_mask", "labels")} == {np.dtype(np.int64)}
        assert arguments.get("padding") is not None or batch["input_ids"].shape[1] == LONGEST
    assert [len(batch["input_ids"]) for batch in batches] == [4] * 9 + [1]
    assert len(made) == 10
    found = list(rows_of(batches))
    assert found != written[name]
    assert sorted(found) == sorted(written[name])
    assert list(rows_of(loader(store, name, shuffle=False))) == written[name]


def test_batches_are_those_of_a_token_loader(store: Path, written: dict[str, list[Row]]) -> None:
    """Every column is equal, and each loader resumes from the other's state."""
    arguments: dict[str, Any] = {"seed": 3, "padding": 8, "drop_last": True}
    arrays, tensors = (
        loader(store, "packed", **arguments),
        TokenLoader(open_dataset("packed", store=store), 4, **arguments),
    )
    for one, other in zip(arrays, tensors, strict=True):
        assert one.keys() == other.keys() >= {"position_ids", "cu_seqlens", "max_seqlen"}
        for key, value in other.items():
            same = isinstance(value, int) or one[key].dtype == value.numpy().dtype
            assert same and np.array_equal(one[key], value), key
        assert arrays.state_dict() == tensors.state_dict()
    assert len(list(loader(store, "packed", **arguments))) == 37 // 4


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), stop=st.integers(0, 60), ahead=st.integers(0, 3))
def test_batch_sizes_may_change_at_any_step(
    store: Path, written: dict[str, list[Row]], sizes: list[int], stop: int, ahead: int
) -> None:
    """The rows of two epochs come in the order that they have at any batch size, also over a resume."""
    fixed = loader(store, batch_size=1, seed=5)
    expected = [list(rows_of(fixed)) for _ in range(2)]
    made, found, given = loader(store, batch_size=sizes[0], seed=5, prefetch_factor=ahead), list[list[Row]](), 0
    size = sizes[0]
    while len(found) < 2:
        found.append([])
        resumed = True
        while resumed:
            resumed = False
            for batch in made:
                rows = list(rows_of([batch]))
                assert len(rows) == min(size, 37 - len(found[-1]))
                found[-1] += rows
                given += 1
                if given == stop:
                    state = json.loads(json.dumps(made.state_dict()))
                    made = loader(store, batch_size=size, seed=5, prefetch_factor=ahead)
                    made.load_state_dict(state)
                    resumed = True
                    break
                size = sizes[given % len(sizes)]
                made.set_batch_size(size)
    assert found == expected
    assert made.state_dict()["epoch"] == 2


def test_len_and_state_follow_the_batch_size(store: Path, written: dict[str, list[Row]]) -> None:
    made = loader(store, batch_size=4)
    made.set_batch_size(10)
    assert (len(made), made.state_dict()["batch_size"]) == (4, 10)
    with pytest.raises(ValueError, match="at least 1"):
        made.set_batch_size(0)
    with pytest.raises(ValueError, match="token_budget"):
        loader(store, batch_size=None, token_budget=60).set_batch_size(4)


def test_a_token_budget_bounds_every_batch(store: Path, written: dict[str, list[Row]]) -> None:
    batches = list(loader(store, batch_size=None, token_budget=40, padding="longest"))
    assert sorted(rows_of(batches)) == sorted(written["plain"])
    assert all(batch["input_ids"].size <= 40 for batch in batches)
    assert len({len(batch["input_ids"]) for batch in batches}) > 2


def test_ranks_share_an_epoch(store: Path, written: dict[str, list[Row]]) -> None:
    ranks = [list(loader(store, rank=rank, world_size=3)) for rank in range(3)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(row for batches in ranks for row in rows_of(batches)) == sorted(written["plain"])


PROCESS = """
import json, sys
import jax
from tokenloom.loaders import ArrayDataLoader
store, port, rank = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(rank))
loader = ArrayDataLoader({"cache_dir": store}, None, "plain", 4, framework="jax")
rows = [row[mask == 1].tolist() for batch in loader for row, mask in zip(batch["input_ids"], batch["attention_mask"])]
print(json.dumps([loader.rank, loader.world_size, [row for row in rows if row]]))
"""


@machine("trainer")
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax_is_given_the_same() -> None:
    """Runs in a separate process: a process with JAX cannot be forked, which other tests do."""
    cases = TESTS / "support" / "array_framework_cases.py"
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cases], cwd=TESTS)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


@machine("ranks")
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_processes_of_jax_share_an_epoch(store: Path, written: dict[str, list[Row]], free_port: int) -> None:
    command = [sys.executable, "-c", PROCESS, store, free_port]
    ended = run_together([[*command, rank] for rank in range(2)])
    found = [json.loads(done.stdout.splitlines()[-1]) for done in ended if done.stdout or pytest.fail(done.stderr)]
    assert [(rank, world) for rank, world, _ in found] == [(0, 2), (1, 2)]
    assert sorted(found[0][2] + found[1][2]) == sorted(ids for ids, _ in written["plain"])


def test_a_mixture_may_be_given(store: Path, written: dict[str, list[Row]]) -> None:
    part = open_dataset("plain", store=store)
    mixed = MixedDataset({"a": part, "b": part}, {"a": 1, "b": 3}, by="rows")
    found = list(rows_of(loader(store, mixed, padding="longest")))
    assert len(found) == len(mixed) == 74
    assert all(row in written["plain"] for row in found)


def test_examples_and_batches_can_be_changed(store: Path, written: dict[str, list[Row]]) -> None:
    """`collate_fn` gets rows without padding, and the result of `transform` is the batch."""
    given = []

    def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
        given.extend((example["input_ids"].tolist(), example["labels"].tolist()) for example in examples)
        assert all(
            (example["position_ids"] <= np.arange(LONGEST)[: len(example["labels"])]).all() for example in examples
        )
        return {"length": torch.tensor([len(example["input_ids"]) for example in examples])}

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        assert type(batch["length"]) is np.ndarray
        return {"twice": batch["length"] * 2}

    made = loader(store, "packed", shuffle=False, collate_fn=collate, transform=double)
    batches = list(made)
    assert given == written["packed"]
    assert [length for batch in batches for length in batch["twice"].tolist()] == [2 * len(ids) for ids, _ in given]
    assert all(type(batch["twice"]) is np.ndarray for batch in batches)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder)


def test_a_collator_of_single_rows_makes_the_same_batches(store: Path, written: dict[str, list[Row]]) -> None:
    collate = create_collate_fn(pad_token_id=0)
    config = DataLoaderConfig(batch_size=4, seed=2, collate_fn=collate, cache_dir=store, dataset_name="plain")
    for rank in range(3):
        ranked = replace(config, rank=rank, world_size=3)
        made = ArrayDataLoader(replace(ranked, collate_fn=None), padding="longest")
        for one, other in zip(ArrayDataLoader(ranked), made, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in ("input_ids", "attention_mask", "labels"))


def test_a_pipeline_is_built_and_its_yaml_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dataset(
        tmp_path,
        40,
        dataset={"name": "small.jsonl", "val_split": 0.3},
        dataloader={"batch_size": 6, "shuffle": "none", "seed": 4},
    )
    pipeline = DataPipeline.from_config(path, tmp_path / "store").unwrap()
    expected = list(pipeline.get_dataloader("train").unwrap())
    (tmp_path / "other").mkdir()
    pipeline = DataPipeline.from_config(path, tmp_path / "other" / "store").unwrap()
    found = list(ArrayDataLoader(pipeline))
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "other" / "store"))
    assert list(rows_of(ArrayDataLoader(pipeline.config))) == list(rows_of(expected))
    larger = list(ArrayDataLoader(pipeline, batch_size=9, split="validation"))
    assert list(rows_of(larger)) == list(rows_of(pipeline.get_dataloader("validation").unwrap()))
    assert len(larger[0]["input_ids"]) == 9


def test_what_is_given_goes_before_the_config(store: Path, written: dict[str, list[Row]]) -> None:
    config = SimpleNamespace(batch_size=5, shuffle=False, cache_dir=store, dataset_name="plain", hidden_size=12)
    assert len(next(iter(ArrayDataLoader(config)))["input_ids"]) == 5
    assert list(rows_of(ArrayDataLoader(config))) == written["plain"]
    given = ArrayDataLoader(config, None, "packed", 3, True)
    assert len(next(iter(given))["input_ids"]) == 3
    found = list(rows_of(given))
    assert found != written["packed"] and sorted(found) == sorted(written["packed"])


def test_the_store_goes_before_a_path(
    store: Path, written: dict[str, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("abc\n")
    assert len(list(rows_of(loader(store, "plain")))) == len(written["plain"])
    named = ArrayDataLoader({"cache_dir": store}, Ids(), "./plain")
    assert list(rows_of(named)) == [([97, 98, 99], [97, 98, 99])]


def test_a_tokenizer_that_is_not_the_datasets_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    path = write_dataset(tmp_path, 30)
    pipeline = DataPipeline.from_config(path, tmp_path / "store").unwrap()
    own = pipeline.get_tokenizer().unwrap()
    own.add_tokens(["<one more>"])
    assert len(ArrayDataLoader(pipeline, own)) > 0
    assert len(ArrayDataLoader(pipeline, Tokenizer.from_str(own.backend_tokenizer.to_str()))) > 0
    with pytest.raises(ConfigError, match=r"tokenizer: the dataset was built with another tokenizer \('.* has id"):
        ArrayDataLoader(pipeline, tokenizer)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dataset_name": "plian"}, DatasetNotFoundError, "no dataset or file 'plian' found; .*; did you mean plain"),
        ({"dataset_name": None}, ConfigError, "dataset_name: no dataset to read"),
        ({"dataset_name": "data.txt"}, ConfigError, "tokenizer: data.txt is raw text; pass a tokenizer"),
        ({"dataset_name": "data.txt", "tokenizer": Ids(), "split": "test"}, DatasetNotFoundError, "no split 'test'"),
        ({"dataset_name": "plain", "split": "test"}, DatasetNotFoundError, "has no split 'test'"),
        ({"dataset_name": "blank.txt", "tokenizer": Ids()}, SourceError, "blank.txt: found no text"),
        ({"dataset_name": "empty", "tokenizer": Ids()}, SourceError, "empty: the folder has no files"),
        ({"dataset_name": "bad.jsonl", "tokenizer": Ids()}, SourceError, "bad.jsonl:2: .* an object with 'texts'"),
        ({"dataset_name": "torn.jsonl", "tokenizer": Ids()}, SourceError, "torn.jsonl:1: not valid JSON"),
        ({"dataset_name": "latin.txt", "tokenizer": Ids()}, SourceError, "latin.txt: .* UTF-8"),
        ({"dataset_name": "plain", "framework": "torch"}, ConfigError, "framework: must be .* got 'torch'"),
        ({"dataset_name": "plain", "batch_size": 4, "token_budget": 9}, ConfigError, "token_budget: .* one of them"),
        ({"dataset_name": "plain", "config": "data.yaml"}, ConfigError, "config: got the path 'data.yaml'"),
        ({"dataset_name": "plain", "batch_size": 0}, ValueError, "must be an integer of at least 1"),
        ({"dataset_name": "plain", "padding": "none"}, ValueError, "padding must be .* got 'none'"),
    ],
)
def test_mistakes_are_named(
    store: Path,
    written: dict[str, list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("some text\n")
    Path("blank.txt").write_text("\n  \n")
    Path("latin.txt").write_bytes("Köln\n".encode("latin-1"))
    Path("bad.jsonl").write_text('{"text": "good"}\n{"texts": "bad"}\n')
    Path("torn.jsonl").write_text('{"text": \n')
    Path("empty").mkdir()
    with pytest.raises(error, match=message):
        ArrayDataLoader(**{"config": {"cache_dir": store}, **arguments})


@pytest.mark.parametrize(
    ("blocked", "call", "remedy"),
    [
        ("jax", "ArrayDataLoader(None, None, 'plain', framework='jax')", "pip install 'tokenloom[jax]'"),
        ("tensorflow", "ArrayDataLoader(None, None, 'plain').to_tf_dataset()", "pip install tensorflow"),
    ],
)
def test_a_missing_framework_is_named(
    store: Path, written: dict[str, list[Row]], blocked: str, call: str, remedy: str
) -> None:
    """NumPy batches need neither."""
    program = f"""
import os, sys
os.environ["TOKENLOOM_STORE"] = {str(store)!r}
sys.modules.update(jax=None, tensorflow=None)
from tokenloom.loaders import ArrayDataLoader
next(iter(ArrayDataLoader(None, None, "plain")))
try:
    {call}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    done = run([sys.executable, "-c", program], check=True)
    assert done.stdout.startswith(f"{blocked} ") and remedy in done.stdout and done.stdout.count("\n") == 1


class StandInDataset:
    """What `to_tf_dataset` uses of `tf.data.Dataset`: each pass calls the generator."""

    def __init__(self, generator: Callable[[], Iterator[dict[str, Any]]], output_signature: dict[str, Any]):
        self.generator, self.signature = generator, output_signature

    def with_options(self, options: Any) -> StandInDataset:
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.generator()


@pytest.mark.parametrize("arguments", [{}, {"batch_size": None, "token_budget": 60}])
def test_tensorflow_gets_an_epoch_of_the_loader_in_each_pass(
    store: Path, written: dict[str, list[Row]], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for TensorFlow: array_framework_cases.py has the same with TensorFlow, if it is installed."""
    data = SimpleNamespace(
        Options=lambda: SimpleNamespace(experimental_optimization=SimpleNamespace()),
        Dataset=SimpleNamespace(from_generator=StandInDataset),
    )
    tensorflow = SimpleNamespace(TensorSpec=lambda shape, dtype: (shape, dtype), data=data)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    made, plain = loader(store, "packed", **arguments), loader(store, "packed", **arguments)
    dataset: Any = made.to_tf_dataset()
    for _ in range(2):
        for one, other in zip(dataset, plain, strict=True):
            assert one.keys() == other.keys() == dataset.signature.keys()
            assert all(np.array_equal(one[name], other[name]) for name in other)
            assert made.state_dict() == plain.state_dict()


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def test_an_error_comes_with_its_batch(store: Path, written: dict[str, list[Row]]) -> None:
    """Batches prefetched before the error are yielded first."""
    token = written["plain"][13][0][0]

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if token in batch["input_ids"]:
            raise KeyError(f"token {token}")
        return batch

    given = []
    with pytest.raises(KeyError, match=f"token {token}"):
        given.extend(loader(store, shuffle=False, transform=fail, prefetch_factor=4))
    assert list(rows_of(given)) == written["plain"][:12]
