"""Loaders of datasets with `length.document_multiple`: widths, budgets, mixtures, rows on the fly, and the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.datasets_on_disk import rows, write_dataset
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError
from tokenloom.exporters.hub_folder import _pushed_rows
from tokenloom.loaders import MixedDataset, TokenLoader, context_slice, create_preprocessed_dataset, open_dataset
from tokenloom.loaders.datasets.hub import stored_rows
from tokenloom.pipeline import DataPipeline
from tokenloom.resources.store.objects import digest_table
from tokenloom.resources.tables.sequence_schema import SequenceFacts

LONGEST = 192
DATASETS = {
    "eight": {"packing": "best_fit", "document_multiple": 8},
    "twelve": {"packing": "best_fit", "document_multiple": 12},
    "plain": {"packing": "best_fit"},
    "alone": {"document_multiple": 8},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("padded")
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": LONGEST}
    for seed, (name, length) in enumerate(DATASETS.items()):
        path = write_dataset(folder, 150, name, seed, length=length, tokenizer=tokenizer)
        assert main(["build", str(path), "--store", str(folder / "store")]) == 0
    return folder


def opened(home: Path, name: str) -> Any:
    return open_dataset(name, store=home / "store")


@pytest.mark.parametrize("name", ["eight", "alone"])
@pytest.mark.parametrize(
    "options", [{"padding": "longest"}, {"padding": 48}, {"padding": 4}, {"token_budget": 500}, {}]
)
def test_every_batch_can_be_cut_for_four_ranks(home: Path, name: str, options: dict[str, Any]) -> None:
    """Also those of padding rows alone, which complete the last step of all ranks."""
    given = {"batch_size": 4, **options} if "token_budget" not in options else {**options, "padding": "longest"}
    widths = set[int]()
    for rank in range(3):
        for batch in TokenLoader(opened(home, name), rank=rank, world_size=3, **given):
            widths.add(batch["input_ids"].shape[1])
            for split in ("zigzag", "contiguous"):
                assert context_slice(batch, 1, 4, split)["input_ids"].shape[1] * 4 == batch["input_ids"].shape[1]
            if "token_budget" in options:
                assert batch["input_ids"].numel() <= 500
    assert all(width % 8 == 0 for width in widths)
    if options.get("padding") == "longest":
        assert len(widths) > 1
    if "token_budget" in options:
        assert 8 in widths or name == "alone"


def test_a_padding_that_breaks_the_multiple_is_refused_when_a_loader_is_created(home: Path) -> None:
    with pytest.raises(
        ValueError, match=r"padding 12 is not a multiple of length\.document_multiple 8 .* set it to 16"
    ):
        TokenLoader(opened(home, "eight"), padding=12)


def test_mixtures(home: Path) -> None:
    """Of different multiples, each document keeps its own; with a dataset that is not padded, they are refused."""
    eight, twelve = opened(home, "eight"), opened(home, "twelve")
    mixed = MixedDataset({"eight": eight, "twelve": twelve}, by="size")
    seen = set[int]()
    for batch in TokenLoader(mixed, batch_size=4, padding="longest"):
        lengths = np.diff(batch["cu_seqlens"].numpy())
        assert not (lengths % 4).any()
        seen |= {*lengths.tolist()}
        context_slice(batch, 0, 2)
    assert any(length % 8 for length in seen) and any(length % 12 for length in seen)
    with pytest.raises(ValueError, match=r"of eight and plain, only eight has length\.document_multiple"):
        MixedDataset({"eight": eight, "plain": opened(home, "plain")}, by="size")


@pytest.mark.parametrize("name", ["eight", "alone"])
def test_rows_on_the_fly_are_those_of_the_build(home: Path, name: str) -> None:
    """Rows without padding; batches of a stream with it."""
    dataset, config = opened(home, name), PipelineConfig.from_file(home / f"{name}.yaml")
    if name == "alone":
        made = create_preprocessed_dataset(rows(150, [*DATASETS].index(name)), PromptEngine(config))
        assert [row["input_ids"].tolist() for row in made] == [row["input_ids"].tolist() for row in dataset]
    settings = {**config.model_dump(exclude_unset=True), "dataloader": {"batch_size": 4, "shuffle": "none"}}
    settings["dataset"] = {"name": str(home / f"{name}.jsonl"), "streaming": True}
    settings["tokenizer"] = {**settings["tokenizer"], "padding": "longest"}
    stream = DataPipeline(PipelineConfig.from_mapping(settings)).get_dataloader("train").unwrap()
    expected = TokenLoader(dataset, 4, "none", padding="longest")
    for found, batch in zip(stream, expected, strict=True):
        assert found.keys() == batch.keys()
        for key, value in batch.items():
            assert (found[key] == value) if isinstance(value, int) else found[key].equal(value)


class Padded:
    """An engine whose `padding` lacks a document."""

    def encode(self, table: pa.Table) -> pa.Table:
        count = table.num_rows
        empty = pa.array([[]] * count, pa.list_(pa.int32()))
        return pa.table({"input_ids": [[1, 2]] * count, "padding": empty})


def test_an_engine_that_counts_padding_wrongly_is_refused() -> None:
    with pytest.raises(DataValidationError, match="padding differs in length from document_lengths"):
        create_preprocessed_dataset([{"text": "a"}], Padded())[0]


@pytest.mark.parametrize("name", ["eight", "alone"])
def test_chunks_come_back_from_the_rows_of_a_push(home: Path, name: str) -> None:
    """Rows have no padding; the chunk has the same bytes again."""
    dataset = opened(home, name)
    facts = SequenceFacts(*(getattr(dataset._facts, field) for field in SequenceFacts.__dataclass_fields__))
    table = _pushed_rows(dataset, 0, 0)
    padding = dataset.chunk_table(0)["padding"].combine_chunks().values.to_numpy()
    assert padding.sum() > 0
    stored, pushed = (len(each["input_ids"].combine_chunks().values) for each in (dataset.chunk_table(0), table))
    assert pushed == stored - padding.sum()
    names = dataset.chunk_table(0).column_names
    assert digest_table(stored_rows(table, facts, names)) == dataset.chunks[0].output


def test_the_values_of_token_columns_are_zero_in_padding(tmp_path: Path, tokenizer_folder: Path) -> None:
    lines = [{"input_ids": [5] * (n + 1), "trained": [1] * (n + 1), "score": [0.5] * (n + 1)} for n in range(20)]
    source = {"name": str(tmp_path / "ids.jsonl"), "token_columns": ["score"]}
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = {"name_or_path": str(tokenizer_folder), "max_length": 64}
    length = {"packing": "best_fit", "document_multiple": 8, "strategy": "truncate_right"}
    path = write_dataset(tmp_path, 0, dataset=source, tokenizer=tokenizer, length=length, prompt_template={})
    assert main(["build", str(path), "--store", str(tmp_path / "store")]) == 0
    batch = next(iter(TokenLoader(open_dataset("small", store=tmp_path / "store"), 50, padding="longest")))
    assert batch["score"].tolist() == (0.5 * batch["attention_mask"]).tolist()
    assert int(batch["attention_mask"].sum()) == sum(range(1, 21))
    part = context_slice(batch, 1, 4)
    assert part["score"].tolist() == (0.5 * part["attention_mask"]).tolist()
