"""Data modules: any kind of data becomes training and validation batches."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

from support.foreign_datasets import CodePoints, Counting, Noise, Numbers, as_list
from support.loaded_rows import settings, write_rows
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, LoaderStateError
from tokenloom.loaders import (
    DataModuleProtocol,
    DefaultCollator,
    TaskSpec,
    TextCollator,
    TokenDataset,
    TokenLoader,
    UniversalDataModule,
    VisionCollator,
    batch_digest,
)
from tokenloom.resources.store import ArtifactStore

TEXTS = ["", "one two three", "   ", "grüße", "\n", "a longer text than all of the others, longer still", "x y", "four"]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


def flat(batches: Any) -> list[Any]:
    return list(chain.from_iterable(batches))


def rows_in(loader: Any) -> list[tuple[int, ...]]:
    """Return the rows of batches without padding."""
    rows = []
    for batch in loader:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
            assert labels[mask == 1].tolist() == ids[mask == 1].tolist() and (labels[mask == 0] == -100).all()
            rows.append(tuple(ids[mask == 1].tolist()))
    return rows


def of_numbers(**options: Any) -> UniversalDataModule:
    return UniversalDataModule(Numbers(50), **{"collator": as_list, "batch_size": 4, **options})


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_a_split_is_disjoint_complete_and_chosen_by_the_seed(share: float) -> None:
    module = of_numbers(val_split=share)
    training, validation = flat(module.train_dataloader()), flat(module.val_dataloader())
    assert sorted(training + validation) == list(range(50))
    assert len(validation) == max(int(50 * share), 1)
    assert validation == sorted(validation)
    assert flat(of_numbers(val_split=share).val_dataloader()) == validation
    assert flat(of_numbers(val_split=share, seed=43).val_dataloader()) != validation


def test_data_for_validation_are_taken_as_they_are() -> None:
    module = of_numbers(val_data=Numbers(7), val_split=0.4)
    assert flat(module.val_dataloader()) == flat(module.val_dataloader()) == list(range(7))
    assert sorted(flat(module.train_dataloader())) == list(range(50))
    assert of_numbers(val_split=0.0).val_dataloader() is None


def test_the_same_seed_gives_the_same_batches_and_epochs_differ() -> None:
    first, second = of_numbers(), of_numbers()
    epochs = [list(first.train_dataloader()) for _ in range(2)]
    assert epochs == [list(second.train_dataloader()) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert list(of_numbers(seed=1).train_dataloader()) != epochs[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_module_goes_on_from_its_state(workers: int) -> None:
    def module(seed: int = 3) -> UniversalDataModule:
        return UniversalDataModule(Noise(50), collator=as_list, batch_size=4, seed=seed, num_workers=workers)

    loader = module().train_dataloader()
    expected = [*loader, *loader]
    stopped = module()
    loader = stopped.train_dataloader()
    begun = list(islice(chain(loader, loader), 15))
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = module(state["seed"])
    resumed.load_state_dict(state)
    assert begun + list(resumed.train_dataloader()) == expected
    with pytest.raises(LoaderStateError, match="seed is 3 in the state, 4 here"):
        module(seed=4).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="lacks 'train'"):
        resumed.load_state_dict({})


def texts_as(kind: str) -> Any:
    return {
        "hub": datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "text": TEXTS}),
        "texts": TEXTS,
        "dicts": [{"text": text} for text in TEXTS],
    }[kind]


@pytest.mark.parametrize("kind", ["hub", "texts", "dicts"])
@pytest.mark.parametrize("workers", [0, 2])
def test_raw_text_is_tokenized_and_blank_rows_are_left_out(kind: str, workers: int, tokenizer: Any) -> None:
    module = UniversalDataModule(
        texts_as(kind),
        val_split=0,
        task_spec=TaskSpec.lm_tiny(),
        tokenizer=tokenizer,
        batch_size=2,
        num_workers=workers,
        max_length=12,
    )
    expected = [tuple(tokenizer.encode(text)[:12]) for text in TEXTS if text.strip()]
    assert max(map(len, expected)) == 12
    assert sorted(rows_in(module.train_dataloader())) == sorted(expected)
    assert module.train_dataset.__getitems__([]) == []


def test_tokenizers_of_any_kind_encode_raw_text(bos_tokenizer_folder: Path) -> None:
    bare = Tokenizer.from_file(str(bos_tokenizer_folder / "tokenizer.json"))
    for tokenizer, encode in ((bare, lambda text: bare.encode(text).ids), (CodePoints("dict"), CodePoints().encode)):
        module = UniversalDataModule(TEXTS, val_split=0, tokenizer=tokenizer, collator=as_list)
        found = [tuple(sample["input_ids"].tolist()) for sample in flat(module.train_dataloader())]
        assert sorted(found) == sorted(tuple(encode(text)) for text in TEXTS if text.strip())


def test_tokenized_rows_are_left_to_the_collator(tokenizer: Any) -> None:
    ids = [[1, 2, 3], [4], [5, 6]]
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "input_ids": ids}).remove_columns("text")
    module = UniversalDataModule(data, val_split=0, tokenizer=tokenizer)
    assert isinstance(module.collator, TextCollator)
    assert sorted(rows_in(module.train_dataloader())) == sorted(map(tuple, ids))


def test_an_error_names_the_row_of_what_was_given(tokenizer: Any) -> None:
    texts = ["", "one", "", "two", "three", "four", "", "five"]

    class Refusing:
        def encode(self, text: str) -> list[int]:
            if text == "four":
                raise ValueError("refused")
            return [1]

    module = UniversalDataModule(texts, val_split=0.2, tokenizer=Refusing(), collator=as_list, batch_size=8)
    loader = module.val_dataloader()
    assert loader is not None
    with pytest.raises(ValueError, match="in row 5 of the dataset"):
        list(module.train_dataloader())
        list(loader)


def test_tensors_of_token_ids_are_rows_of_input_ids_and_labels() -> None:
    tensors = [torch.randint(0, 1000, (12,)) for _ in range(20)]
    module = UniversalDataModule(tensors, batch_size=5, val_split=0.25)
    batches = [*module.train_dataloader(), *(module.val_dataloader() or [])]
    assert all(torch.equal(batch["input_ids"], batch["labels"]) for batch in batches)
    found = flat([batch["input_ids"].tolist() for batch in batches])
    assert sorted(found) == sorted(tensor.tolist() for tensor in tensors)
    pixels = UniversalDataModule([torch.rand(3, 4, 4) for _ in range(4)], val_split=0, task_spec=TaskSpec.vision_tiny())
    assert next(iter(pixels.train_dataloader()))["pixel_values"].shape == (4, 3, 4, 4)


def test_the_task_chooses_the_collator(tokenizer: Any) -> None:
    for task, given, kind in (
        (TaskSpec.lm_tiny(), tokenizer, TextCollator),
        (TaskSpec.vision_tiny(), None, VisionCollator),
        (TaskSpec("sound", modality="no such one"), None, DefaultCollator),
        (None, tokenizer, TextCollator),
        (None, None, DefaultCollator),
    ):
        module = UniversalDataModule(Numbers(9), task_spec=task, tokenizer=given)
        assert isinstance(module.collator, kind)
        assert module.train_dataloader().collate_fn is module.collator


def test_hidden_tokens_are_the_same_after_resuming(tokenizer: Any) -> None:
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.add_special_tokens({"mask_token": "<mask>"})

    def module() -> UniversalDataModule:
        rows = [{"input_ids": list(range(20, 60))} for _ in range(12)]
        return UniversalDataModule(
            rows, val_split=0, task_spec=TaskSpec.mlm_tiny(), tokenizer=tokenizer, batch_size=3, num_workers=0
        )

    expected = [batch_digest(batch) for batch in module().train_dataloader()]
    assert len(set(expected)) == len(expected)
    stopped, resumed = module(), module()
    list(islice(stopped.train_dataloader(), 2))
    resumed.load_state_dict(stopped.state_dict())
    assert [batch_digest(batch) for batch in resumed.train_dataloader()] == expected[2:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path], tokenizer_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("module")
    write_rows(path / "rows.jsonl", 30)
    file = write_config(path, dataset={"name": "rows.jsonl", "val_split": 0.3}, **settings(tokenizer_folder))
    list(Build(PipelineConfig.from_file(file), ArtifactStore(path / "store")).run_all())
    return path / "store"


def test_built_datasets_make_their_own_batches(built: Path) -> None:
    train: TokenDataset = open_dataset("data", store=built)
    validation = open_dataset("data", "validation", store=built)
    module = UniversalDataModule(train, validation, batch_size=4, seed=1)
    assert isinstance(module.train_dataloader(), TokenLoader)
    expected = [batch_digest(batch) for batch in TokenLoader(train, 4, seed=1)]
    assert [batch_digest(batch) for batch in module.train_dataloader()] == expected
    in_order = [batch_digest(batch) for batch in TokenLoader(validation, 4, shuffle=False)]
    assert [batch_digest(batch) for batch in module.val_dataloader() or []] == in_order
    with pytest.raises(ConfigError, match=r"dataset\.val_split"):
        UniversalDataModule(train)


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        ({"train": [], "test": []}, {}, r"several splits \(train, test\)"),
        (TEXTS, {}, "pass a tokenizer"),
        (object(), {}, "__len__"),
        (Counting(5), {}, "val_split=0"),
    ],
)
def test_data_that_cannot_be_read_are_told(data: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        UniversalDataModule(data, **options)


def test_iterable_data_are_read_without_a_state() -> None:
    module = UniversalDataModule(Counting(5), val_split=0, collator=as_list, batch_size=2)
    assert list(module.train_dataloader()) == [[0, 1], [2, 3], [4]]
    with pytest.raises(ConfigError, match="no position"):
        module.state_dict()
    with pytest.raises(ValueError, match=r"val_split must be .* got 1\.5"):
        UniversalDataModule(Numbers(5), val_split=1.5)
    with pytest.raises(ValueError, match="at least 2 rows, got 1"):
        UniversalDataModule(Numbers(1))


def test_ranks_share_the_training_rows() -> None:
    parts = [flat(of_numbers(val_split=0, rank=rank, world_size=2).train_dataloader()) for rank in (0, 1)]
    assert sorted(flat(parts)) == list(range(50))


def test_the_protocol_is_met_by_whatever_has_both_methods() -> None:
    class Own:
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Numbers(4))

        def val_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Numbers(4))

    class Half:
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Numbers(4))

    own: DataModuleProtocol = Own()
    universal: DataModuleProtocol = of_numbers()
    assert isinstance(own, DataModuleProtocol) and isinstance(universal, DataModuleProtocol)
    assert not isinstance(Half(), DataModuleProtocol)
