"""Loaders: padding and labels compared with a per-row oracle, order over ranks and workers, opening."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.loaded_rows import IGNORED, LONGEST, rows_of, settings, write_rows
from support.processes import run
from tokenloom import DataPipeline, open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import DatasetNotFoundError
from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.resources.store import ArtifactStore

SIZE = ChunkSize(target=2048, maximum=8192)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A folder with a YAML and a store with `data` (two splits, many chunks) and `packed`."""
    path = tmp_path_factory.mktemp("loaders")
    write_rows(path / "rows.jsonl", 203)
    dataset = {"name": "rows.jsonl", "val_split": 0.2}
    store = ArtifactStore(path / "store")
    for name, length in (("data", {}), ("packed", {"packing": "concat"})):
        config = PipelineConfig.from_file(
            write_config(path, name, dataset=dataset, length=length, **settings(tokenizer_folder))
        )
        list(Build(config, store, chunk_size=SIZE).run_all())
    return path


@pytest.fixture(scope="module")
def dataset(folder: Path) -> TokenDataset:
    return open_dataset("data", "train", folder / "store")


@pytest.fixture(scope="module")
def stored(folder: Path) -> list[dict[str, Any]]:
    """The rows of the `train` split, as stored."""
    store = ArtifactStore(folder / "store")
    chunks = store.manifest("data").of_split("train")
    assert len(chunks) > 3
    return [row for chunk in chunks for row in store.objects.get(chunk.output).to_pylist()]


def lists(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def padded(rows: list[dict[str, Any]], padding: Any, side: str, pad: int) -> dict[str, Any]:
    """Build a batch row by row."""
    longest = max(len(row["input_ids"]) for row in rows)
    width = LONGEST if padding == "max_length" else longest
    while isinstance(padding, int) and width % padding:
        width += 1
    batch: dict[str, Any] = {"input_ids": [], "attention_mask": [], "labels": []}
    for row in rows:
        ids, blank = row["input_ids"], width - len(row["input_ids"])
        labels = [token if trained else IGNORED for token, trained in zip(ids, row["trained"], strict=True)]
        for name, values, fill in (
            ("input_ids", ids, pad),
            ("attention_mask", [1] * len(ids), 0),
            ("labels", labels, IGNORED),
        ):
            batch[name].append([fill] * blank + values if side == "left" else values + [fill] * blank)
    return batch


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", ["max_length", "longest", 1, 7, 16])
def test_batches_are_rows_padded_one_by_one(
    dataset: TokenDataset, stored: list[dict[str, Any]], padding: Any, side: Any
) -> None:
    loader = TokenLoader(dataset, batch_size=5, shuffle="none", padding=padding, padding_side=side)
    found = list(loader)
    assert len(found) == len(loader) == -(-len(stored) // 5)
    for index, batch in enumerate(found):
        assert lists(batch) == padded(stored[5 * index : 5 * index + 5], padding, side, dataset.pad_token_id)
        assert {value.dtype for value in batch.values()} == {torch.int64}


def test_a_dataset_gives_single_rows_unpadded(dataset: TokenDataset, stored: list[dict[str, Any]]) -> None:
    assert len(dataset) == len(stored)
    for index in (0, 1, len(stored) - 1, -1):
        row = stored[index]
        expected = padded([row], "longest", "right", 0)
        assert lists(dataset[index]) == {name: values[0] for name, values in expected.items()}
    for beyond in (len(stored), -len(stored) - 1):
        with pytest.raises(IndexError):
            dataset[beyond]


def test_every_row_trains_its_answer_and_eos_alone(dataset: TokenDataset) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    rows = write_rows(Path(dataset._store.address).parent / "rows.jsonl", 203)
    answers = {f"{row['q']}\n{row['a']}</s>": f"{row['a']}</s>" for row in rows}
    whole = 0
    for ids, labels in rows_of(
        [{name: value[None] for name, value in dataset[n].items()} for n in range(len(dataset))]
    ):
        text, answer = (tokenizer.decode([t for t in part if t != IGNORED]) for part in (ids, labels))
        if text.endswith("</s>"):
            whole += 1
            assert answers[text] == answer.lstrip("\n")
    assert whole > len(dataset) / 2


def test_the_example_of_the_readme_has_the_shape_it_promises(folder: Path) -> None:
    pipeline = DataPipeline.from_config(folder / "data.yaml", store=folder / "store").unwrap()
    batch = next(iter(pipeline.get_dataloader("train", shuffle=True).unwrap()))
    assert list(batch["input_ids"].shape) == [8, LONGEST]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_loaders_of_all_ranks_together_hold_every_row_once(
    dataset: TokenDataset, stored: list[dict[str, Any]], world: int
) -> None:
    loaders = [TokenLoader(dataset, batch_size=7, seed=3, rank=rank, world_size=world) for rank in range(world)]
    found = [list(loader) for loader in loaders]
    assert len({len(batches) for batches in found}) == 1
    flat = [row for batches in found for row in rows_of(batches)]
    assert Counter(flat) == Counter(rows_of([tensors(padded(stored, "longest", "right", 0))]))
    step = [row for batches in zip(*found, strict=True) for row in rows_of(batches)]
    assert step == rows_of(TokenLoader(dataset, batch_size=7 * world, seed=3))
    for batch in (batch for batches in found for batch in batches):
        empty = batch["attention_mask"].sum(1) == 0
        assert (batch["labels"][empty] == IGNORED).all()


def tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values) for name, values in batch.items()}


def test_a_loader_moves_on_to_the_next_epoch_and_can_be_set_back(dataset: TokenDataset) -> None:
    loader = TokenLoader(dataset, batch_size=16, seed=1)
    first, second = rows_of(loader), rows_of(loader)
    assert first != second
    assert Counter(first) == Counter(second)
    loader.set_epoch(0)
    assert rows_of(loader) == first


@pytest.mark.parametrize("name", ["data", "packed"])
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_worker_processes_change_no_batch(folder: Path, name: str, context: str) -> None:
    opened = open_dataset(name, "train", folder / "store")
    alone = TokenLoader(opened, batch_size=16, seed=2)
    shared = TokenLoader(opened, batch_size=16, seed=2, num_workers=2, persistent_workers=False)
    shared.multiprocessing_context = context
    for _ in range(1 if context == "forkserver" else 2):
        assert [lists(batch) for batch in shared] == [lists(batch) for batch in alone]


@pytest.mark.parametrize("read_first", [False, True])
def test_a_pickled_dataset_is_the_same_dataset(folder: Path, read_first: bool) -> None:
    opened = open_dataset("data", "train", folder / "store")
    first = lists(opened[0]) if read_first else None
    data = pickle.dumps(opened)
    copy = pickle.loads(data)
    assert len(data) < 20_000
    assert (copy.name, copy.split, copy.digest, len(copy)) == ("data", "train", opened.digest, len(opened))
    assert lists(copy[0]) == (first or lists(opened[0]))


def test_packed_batches_carry_positions_and_document_bounds(folder: Path) -> None:
    opened = open_dataset("packed", "train", folder / "store")
    assert opened.packed
    for batch in TokenLoader(opened, batch_size=4):
        assert {name: str(value.dtype) for name, value in batch.items() if name != "max_seqlen"} == {
            "input_ids": "torch.int64",
            "attention_mask": "torch.int64",
            "labels": "torch.int64",
            "position_ids": "torch.int64",
            "cu_seqlens": "torch.int32",
        }
        bounds = batch["cu_seqlens"].tolist()
        assert batch["max_seqlen"] == int(np.diff(bounds).max())
        positions, mask = batch["position_ids"].reshape(-1), batch["attention_mask"].reshape(-1)
        for begin, end in pairwise(bounds):
            if mask[begin]:
                assert positions[begin:end].tolist() == list(range(end - begin))
                assert batch["labels"].reshape(-1)[begin] == IGNORED
            else:
                assert not mask[begin:end].any()


def test_opening_what_is_not_there_lists_what_is(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"datasets: data, packed\); did you mean data\?"):
        open_dataset("dta", "train", folder / "store")
    with pytest.raises(DatasetNotFoundError, match=r"train, validation; did you mean validation\?"):
        open_dataset("data", "valid", folder / "store")
    with pytest.raises(DatasetNotFoundError, match=r"no store found at .*nowhere"):
        open_dataset("data", "train", tmp_path / "nowhere")
    for name in ("../data", "", ".."):
        with pytest.raises(DatasetNotFoundError):
            open_dataset(name, "train", folder / "store")
    assert list(tmp_path.iterdir()) == []


def test_importing_loaders_loads_no_pipeline_library() -> None:
    heavy = ("dagster", "datasets", "transformers", "pandera", "polars", "tokenizers", "jinja2")
    script = f"import sys, tokenloom, tokenloom.loaders; print([name for name in {heavy} if name in sys.modules])"
    done = run([sys.executable, "-c", script], check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["data", "packed"])
def test_a_first_batch_loads_neither_pandas_nor_compute_kernels(folder: Path, name: str) -> None:
    """Importing them would take longer than the batch."""
    heavy = ("pandas", "pyarrow.compute")
    script = f"""
import sys
from tokenloom.loaders import TokenLoader, open_dataset
next(iter(TokenLoader(open_dataset({name!r}, store={str(folder / "store")!r}))))
print([name for name in {heavy} if name in sys.modules])
"""
    done = run([sys.executable, "-c", script], check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_that_is_let_go_takes_its_workers_along(dataset: TokenDataset, persistent: bool) -> None:
    """Immediately: the garbage collector would end them later, and wait seconds for each."""
    before = {process.pid for process in multiprocessing.active_children()}
    gc.disable()
    try:
        loader = TokenLoader(dataset, num_workers=2, persistent_workers=persistent)
        batches = iter(loader)
        next(batches)
        assert len({process.pid for process in multiprocessing.active_children()} - before) == 2
        del batches, loader
        assert not {process.pid for process in multiprocessing.active_children()} - before
    finally:
        gc.enable()


def test_rank_and_world_size_are_checked(dataset: TokenDataset) -> None:
    with pytest.raises(ValueError, match="together"):
        TokenLoader(dataset, rank=1)
    with pytest.raises(ValueError, match="world_size 2"):
        TokenLoader(dataset, rank=2, world_size=2)


@pytest.mark.parametrize(
    ("given", "shuffled"), [(True, True), ("full", True), ("block", True), (False, False), ("none", False)]
)
def test_shuffle_is_a_word_or_a_truth_value(
    dataset: TokenDataset, stored: list[dict[str, Any]], given: Any, shuffled: bool
) -> None:
    found = rows_of(TokenLoader(dataset, batch_size=4, shuffle=given))
    plain = rows_of([tensors(padded(stored, "longest", "right", 0))])
    assert (found != plain) == shuffled
    assert Counter(found) == Counter(plain)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shuffle": "fulll"},
        {"token_budget": 0},
        {"batch_size": 0},
        {"padding": "longst"},
        {"padding": 0},
        {"padding_side": "lft"},
        {"rank": 0},
        {"rank": 2, "world_size": 2},
    ],
)
def test_a_wrong_argument_is_refused_by_name(dataset: TokenDataset, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[_ ]")):
        TokenLoader(dataset, **wrong)
