"""The builder and the factory: every setting reaches the loader, and settings that do not fit are refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from support.foreign_datasets import (
    Counting,
    Noise,
    Numbers,
    Stream,
    as_list,
    fails_at_seven,
    negated,
    negative,
    noisy,
)
from support.loaded_rows import rows_of, settings, write_rows
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DatasetNotFoundError, DataValidationError, LoaderStateError
from tokenloom.loaders import (
    DataLoaderBuilder,
    DataLoaderConfig,
    DataLoaderFactory,
    MapLoader,
    MixedDataset,
    TokenDataset,
    TokenLoader,
    batch_digest,
)
from tokenloom.resources.store import ArtifactStore

ROWS = 41


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    """A store with `data` and `packed`."""
    path = tmp_path_factory.mktemp("builder")
    write_rows(path / "rows.jsonl", ROWS)
    for name, length in (("data", {}), ("packed", {"packing": "concat"})):
        file = write_config(path, name, dataset={"name": "rows.jsonl"}, length=length, **settings(tokenizer_folder))
        list(Build(PipelineConfig.from_file(file), ArtifactStore(path / "store")).run_all())
    return path / "store"


@pytest.fixture(scope="module")
def dataset(store: Path) -> TokenDataset:
    return open_dataset("data", store=store)


def digests(loader: Any) -> list[str]:
    return [batch_digest(batch) for batch in loader]


def flat(batches: Any) -> list[Any]:
    return list(chain.from_iterable(batches))


def of_numbers(rows: int = ROWS) -> DataLoaderBuilder:
    return DataLoaderBuilder().with_dataset(Numbers(rows)).with_batch_size(4).with_collate(as_list)


def test_a_built_dataset_is_read_by_a_token_loader_with_all_settings(dataset: TokenDataset) -> None:
    builder = DataLoaderBuilder().with_dataset(dataset).with_seed(7).with_shuffle("block").with_drop_last()
    builder.with_padding(8, "left").with_distributed(rank=1, world_size=2).with_prefetch(3)
    loader = builder.with_batch_size(3).build()
    assert type(loader) is TokenLoader
    options: dict[str, Any] = {"seed": 7, "shuffle": "block", "drop_last": True, "padding": 8, "padding_side": "left"}
    expected = TokenLoader(dataset, 3, rank=1, world_size=2, **options)
    assert loader.state_dict() == expected.state_dict()
    assert digests(loader) == digests(expected)


def test_a_builder_without_settings_gives_the_loaders_own_defaults(dataset: TokenDataset) -> None:
    assert digests(DataLoaderBuilder().with_dataset(dataset).build()) == digests(TokenLoader(dataset))


def test_mixtures_token_budgets_and_workers_pass_through(dataset: TokenDataset, store: Path) -> None:
    mixed = MixedDataset({"a": dataset, "b": dataset}, {"a": 0.5, "b": 0.5}, by="rows")
    built = DataLoaderBuilder().with_dataset(mixed).with_token_budget(192).with_padding("longest").with_workers(2)
    loader = built.build()
    assert loader.num_workers == 2
    found = list(loader)
    assert [batch_digest(batch) for batch in found] == digests(TokenLoader(mixed, token_budget=192, padding="longest"))
    assert max(batch["input_ids"].numel() for batch in found) <= 192


def test_a_builder_goes_on_from_a_state(dataset: TokenDataset) -> None:
    for builder in (DataLoaderBuilder().with_dataset(dataset).with_batch_size(4), of_numbers()):
        whole: Any = builder.with_state().build()
        expected = list(whole)
        stopped: Any = builder.build()
        list(islice(stopped, 3))
        rest = list(builder.with_state(stopped.state_dict()).build())
        if isinstance(whole, TokenLoader):
            assert [batch_digest(batch) for batch in rest] == [batch_digest(batch) for batch in expected[3:]]
        else:
            assert rest == expected[3:]
        with pytest.raises(LoaderStateError, match="seed is 0 in the state, 1 here"):
            builder.with_seed(1).build()


def test_packing_is_held_and_what_is_missing_is_said(store: Path, dataset: TokenDataset) -> None:
    packed = open_dataset("packed", store=store)
    batch = next(iter(DataLoaderBuilder().with_dataset(packed).with_packing().build()))
    assert "cu_seqlens" in batch
    for data in (dataset, MixedDataset({"a": dataset}, {"a": 1.0})):
        with pytest.raises(ConfigError, match=r"'data' is not packed; add `length: \{packing: concat\}`"):
            DataLoaderBuilder().with_dataset(data).with_packing().build()
    with pytest.raises(ConfigError, match="a Numbers is never packed"):
        of_numbers().with_packing().build()


def test_a_transform_changes_batches_of_tokens_and_is_repeated_after_resuming(dataset: TokenDataset) -> None:
    builder = DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).with_transform(negated)
    plain = list(DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).build())
    loader: Any = builder.build()
    found = list(loader)
    for batch, before in zip(found, plain, strict=True):
        assert torch.equal(batch["input_ids"], -before["input_ids"])
    assert len({batch["noise"] for batch in found}) == len(found)
    stopped: Any = builder.with_workers(1).build()
    list(islice(stopped, 2))
    resumed: Any = builder.with_workers(0).with_state(stopped.state_dict()).build()
    assert [batch["noise"] for batch in resumed] == [batch["noise"] for batch in found[2:]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_changes_samples_with_random_numbers_of_their_batch(workers: int) -> None:
    assert sorted(flat(of_numbers().with_transform(negative).build())) == sorted(-row for row in range(ROWS))
    found = flat(of_numbers().with_transform(noisy).with_workers(workers).build())
    assert found == flat(of_numbers().with_transform(noisy).build())
    assert len({noise for _, noise in found}) == ROWS
    with pytest.raises(ValueError, match="in the transform of row 7 of the dataset"):
        list(of_numbers().with_transform(fails_at_seven).with_workers(workers).build())


def test_a_collate_fn_gets_the_rows_of_a_built_dataset_in_the_same_order(dataset: TokenDataset) -> None:
    loader = DataLoaderBuilder().with_dataset(dataset).with_batch_size(4).with_collate(as_list).build()
    assert isinstance(loader, MapLoader)
    samples = flat(loader)
    expected = rows_of(TokenLoader(dataset, 4))
    assert [(tuple(s["input_ids"].tolist()), tuple(s["labels"].tolist())) for s in samples] == expected


def test_distributed_ranks_partition_a_foreign_dataset() -> None:
    loaders = [of_numbers(48).with_distributed(rank=rank, world_size=3).build() for rank in range(3)]
    assert all(isinstance(loader.sampler, DistributedSampler) for loader in loaders)
    epochs = [[flat(loader) for loader in loaders] for _ in range(2)]
    for parts in epochs:
        assert sorted(flat(parts)) == list(range(48))
    assert epochs[0] != epochs[1]


def test_iterable_datasets_come_in_batches_and_refuse_what_they_cannot() -> None:
    builder = DataLoaderBuilder().with_dataset(Counting(10)).with_batch_size(4).with_collate(as_list)
    assert list(builder.with_transform(negative).build()) == [[0, -1, -2, -3], [-4, -5, -6, -7], [-8, -9]]
    with pytest.raises(ConfigError, match="no position to resume at"):
        builder.with_state().build()
    with pytest.raises(ConfigError, match="shards itself"):
        DataLoaderBuilder().with_dataset(Counting(10)).with_distributed(0, 2).build()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda builder: builder.with_dataset(None), "with_dataset"),
        (lambda builder: builder.with_token_budget(64), "with_batch_size"),
        (lambda builder: builder.with_padding("longest"), "with_padding"),
        (lambda builder: builder.with_prefetch(1, device="cuda"), r"with_prefetch\(device=…\)"),
    ],
)
def test_settings_that_do_not_go_together_are_told(change: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        change(of_numbers()).build()


def test_a_mixture_has_no_samples_to_collate(dataset: TokenDataset) -> None:
    with pytest.raises(ConfigError, match="with_transform"):
        DataLoaderBuilder().with_dataset(MixedDataset({"a": dataset}, {"a": 1.0})).with_collate(as_list).build()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_seed_gives_the_same_batches_and_random_numbers(workers: int) -> None:
    def made(seed: int | None, workers: int) -> list[Any]:
        config = DataLoaderConfig(batch_size=4, seed=seed, num_workers=workers, collate_fn=as_list)
        return list(DataLoaderFactory().create_dataloader(Noise(ROWS), config))

    assert made(42, workers) == made(42, 0) != made(43, workers)
    torch.manual_seed(0)
    assert made(None, 0) != made(None, 0)


def test_a_factory_passes_everything_on() -> None:
    config = DataLoaderConfig(4, "block", 1, False, 3, False, True, 5, as_list, 1, 2, timeout=9)
    loader = DataLoaderFactory().create_dataloader(Numbers(ROWS), config)
    assert isinstance(loader, MapLoader)
    assert (loader.batch_size, loader.num_workers, loader.pin_memory, loader.prefetch_factor) == (4, 1, False, 3)
    assert (loader.persistent_workers, loader.drop_last, loader.timeout, loader.collate_fn) == (False, True, 9, as_list)
    expected = MapLoader(Numbers(ROWS), 4, "block", 5, True, as_list, 1, 2)
    assert loader.state_dict() == expected.state_dict()
    assert list(loader) == list(expected)


def test_what_is_none_is_chosen_for_the_hardware() -> None:
    gpu = torch.cuda.is_available()
    alone = DataLoaderFactory().create_dataloader(Numbers(ROWS), DataLoaderConfig(num_workers=0, prefetch_factor=2))
    assert (alone.pin_memory, alone.persistent_workers, alone.prefetch_factor) == (gpu, False, None)
    shared = DataLoaderFactory().create_dataloader(Numbers(ROWS), DataLoaderConfig(num_workers=2))
    assert (shared.pin_memory, shared.persistent_workers, shared.prefetch_factor) == (gpu, True, 2)
    chosen = DataLoaderFactory().create_dataloader(Numbers(ROWS))
    assert (chosen.num_workers > 0) == gpu


def test_a_config_names_a_built_dataset(store: Path) -> None:
    config = DataLoaderConfig(batch_size=4, dataset_name="data", cache_dir=store, seed=3)
    loader = DataLoaderFactory().create_dataloader(config=config)
    assert digests(loader) == digests(TokenLoader(open_dataset("data", store=store), 4, seed=3))
    with pytest.raises(DatasetNotFoundError):
        DataLoaderFactory().create_dataloader(config=dataclasses.replace(config, dataset_name="none"))
    with pytest.raises(ConfigError, match="dataset_name"):
        DataLoaderFactory().create_dataloader()


def test_ranks_without_a_seed_are_refused() -> None:
    with pytest.raises(ConfigError, match="set the same seed"):
        DataLoaderFactory().create_dataloader(Numbers(ROWS), DataLoaderConfig(rank=0, world_size=2))


def test_iterable_datasets_go_through_the_factory() -> None:
    loader = DataLoaderFactory().create_dataloader(Counting(5), DataLoaderConfig(batch_size=2, num_workers=1, seed=0))
    assert isinstance(loader, DataLoader) and not hasattr(loader, "state_dict")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_tuples_of_tensors_are_stacked_as_torch_does() -> None:
    loader = DataLoaderBuilder().with_dataset(TensorDataset(torch.arange(6))).with_batch_size(6).build()
    (batch,) = list(loader)
    assert sorted(batch[0].tolist()) == list(range(6))


def ragged(rows: int = ROWS) -> list[dict[str, Any]]:
    """Rows of tokens of many lengths, as lists."""
    draw = random.Random(7)
    lengths = [draw.randint(1, 9) for _ in range(rows)]
    return [
        {
            "input_ids": draw.choices(range(5, 300), k=length),
            "labels": draw.choices((-100, 7, 8), k=length),
            "token_type_ids": draw.choices((0, 1), k=length),
        }
        for length in lengths
    ]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
@pytest.mark.parametrize("iterable", [False, True])
def test_rows_of_tokens_are_padded_as_transformers_pads_them(
    tokenizer_folder: Path, side: str, kind: Callable[[list[int]], Any], iterable: bool
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, padding_side=side)
    padded = DataCollatorForSeq2Seq(tokenizer)
    data: Any = [{name: kind(values) for name, values in row.items()} for row in ragged()]
    builder = DataLoaderBuilder().with_dataset(Stream(data) if iterable else data).with_batch_size(8)
    found = list(builder.with_shuffle(False).with_tokenizer(tokenizer).build())
    expected = [padded([dict(row) for row in ragged()[at : at + 8]]) for at in range(0, ROWS, 8)]
    assert len(found) == len(expected)
    for batch, wanted in zip(found, expected, strict=True):
        assert {name: value.tolist() for name, value in batch.items()} == {n: v.tolist() for n, v in wanted.items()}
        assert {value.dtype for value in batch.values()} == {torch.int64}


def test_rows_of_tokens_without_a_tokenizer_are_padded_with_0() -> None:
    rows = [{"input_ids": [5, 6, 7], "id": "a", "score": 0.5}, {"input_ids": [8], "id": "b", "score": 1.5}]
    for workers in (0, 1):
        builder = DataLoaderBuilder().with_dataset(rows).with_shuffle(False).with_batch_size(2).with_workers(workers)
        (batch,) = list(builder.build())
        assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
        assert (batch["id"], batch["score"].tolist()) == (["a", "b"], [0.5, 1.5])


def test_columns_that_are_not_as_long_as_the_tokens_are_stacked_as_torch_does() -> None:
    rows = [{"input_ids": torch.arange(3), "labels": torch.arange(2), "grid": torch.ones(2, 2)} for _ in range(4)]
    (batch,) = list(DataLoaderBuilder().with_dataset(rows).with_batch_size(4).build())
    stacked = default_collate(rows)
    assert {name: value.tolist() for name, value in batch.items() if name in stacked} == {
        name: value.tolist() for name, value in stacked.items()
    }
    squares = [{"input_ids": torch.ones(2, 2)}] * 2
    (batch,) = list(DataLoaderBuilder().with_dataset(squares).with_batch_size(2).build())
    assert batch["input_ids"].shape == (2, 2, 2)


def test_ragged_rows_that_nothing_can_pad_name_the_remedy() -> None:
    loader = DataLoaderBuilder().with_dataset([[1, 2], [3]]).with_batch_size(2).build()
    with pytest.raises(DataValidationError, match="pad them with create_collate_fn"):
        list(loader)
    with pytest.raises(ConfigError, match=r"with_tokenizer: the tokenizer has no pad or EOS token; set "):
        DataLoaderBuilder().with_tokenizer(object())
