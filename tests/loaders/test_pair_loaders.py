"""Batches of preference and KTO datasets: every row once, each side padded separately, labels with their rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer

from support.canonical_tables import build_canonical, chatml
from support.gloo_ranks import on_ranks
from support.pair_rows import CHUNKS, LONGEST, config, rows_of, tables_of
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.config import PipelineConfig
from tokenloom.loaders import PaddingPolicy, StreamingDataset, StreamingLoader, TokenDataset, TokenLoader, open_dataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import resolve_tokenizer

Shown = tuple[str, str]
"""A text and its trained part, both with control tokens."""


def expected_rows(form: str) -> list[tuple[Any, ...]]:
    """Return the model's view of each row, in order: (text, trained) of each side, or that and the label."""
    found = []
    for row in rows_of(form):
        sides = ("chosen", "rejected") if form == "preference" else ("completion",)
        shown = [
            (chatml([*row["prompt"], *row[side]]).strip(), row[side][0]["content"] + "<|im_end|>") for side in sides
        ]
        found.append((*shown, *([row["label"]] if form == "kto" else [])))
    return found


@pytest.fixture(scope="module", params=["preference", "kto"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def dataset(form: str, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    store = ArtifactStore(tmp_path_factory.mktemp(form))
    build, _ = build_canonical(config(tokenizer_folder), store, form, tables_of(form))
    return open_dataset(build.name, store=Path(store.address))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))


def shown(tokenizer: Tokenizer, ids: Any, mask: Any, labels: Any) -> Shown | None:
    """Return one row of one side, or None for a padding row; check that masked tokens have no label."""
    assert (labels[mask == 0] == -100).all()
    assert (labels[(mask == 1) & (labels != -100)] == ids[(mask == 1) & (labels != -100)]).all()
    if not mask.any():
        return None
    texts = [
        tokenizer.decode(found.tolist(), skip_special_tokens=False) for found in (ids[mask == 1], ids[labels != -100])
    ]
    return texts[0].strip(), texts[1]


def rows_in(tokenizer: Tokenizer, form: str, batch: dict[str, Any], padding: Any) -> Iterator[tuple[Any, ...]]:
    names = ("input_ids", "attention_mask", "labels")
    sides = ("chosen_", "rejected_") if form == "preference" else ("",)
    wanted = {f"{side}{name}" for side in sides for name in names} | ({"label"} if form == "kto" else set())
    assert batch.keys() == wanted
    for side in sides:
        tensors = [batch[f"{side}{name}"] for name in names]
        assert {tensor.dtype for tensor in tensors} == {torch.int64}
        width = LONGEST if padding == "max_length" else int(batch[f"{side}attention_mask"].sum(1).max().clamp(min=1))
        assert {tensor.shape for tensor in tensors} == {(len(tensors[0]), width)}
    for row in range(len(batch[f"{sides[0]}input_ids"])):
        found = [shown(tokenizer, *(batch[f"{side}{name}"][row] for name in names)) for side in sides]
        label = [batch["label"][row].item()] if form == "kto" else []
        if None in found:
            assert set(found) == {None} and not any(label)
        else:
            yield (*found, *label)


@pytest.mark.parametrize("padding", ["max_length", "longest"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("world", [1, 3])
def test_every_row_comes_once_with_both_sides(
    dataset: TokenDataset, tokenizer: Tokenizer, form: str, padding: Any, side: Any, world: int
) -> None:
    found, steps = [], set()
    for rank in range(world):
        loader = TokenLoader(
            dataset, batch_size=4, padding=padding, padding_side=side, rank=rank, world_size=world, seed=3
        )
        batches = list(loader)
        steps.add(len(batches))
        if form == "kto":
            assert {batch["label"].dtype for batch in batches} == {torch.bool}
        found += [row for batch in batches for row in rows_in(tokenizer, form, batch, padding)]
    assert sorted(found) == sorted(expected_rows(form))
    assert len(steps) == 1
    assert found != expected_rows(form)


def test_single_rows_are_unpadded(dataset: TokenDataset, tokenizer: Tokenizer, form: str) -> None:
    found = []
    for number in range(len(dataset)):
        row = {name: value[None] for name, value in dataset[number].items()}
        assert all(value.all() for name, value in row.items() if name.endswith("attention_mask"))
        found += rows_in(tokenizer, form, row, "longest")
    assert found == expected_rows(form)


class Steps:
    """Turns canonical rows into sequences with the functions of the stages."""

    def __init__(self, config: PipelineConfig, form: str, folder: Path):
        spec = resolve_tokenizer(config)
        encoder = ContentEncoder((folder / "tokenizer.json").read_bytes(), spec.control, keep_control=False)
        self._steps = [
            renderer(config, {"form": form}, spec),
            in_pairs(lambda table: tokenize(table, encoder, spec.control, "split")),
            in_pairs(lambda table: to_sequences(table, config.length, config.tokenizer.max_length)),
        ]

    def encode(self, table: pa.Table) -> pa.Table:
        for step in self._steps:
            table = step(table).table
        return table


@pytest.mark.parametrize("world", [1, 2, 30])
def test_streaming_makes_the_same_rows(form: str, tokenizer_folder: Path, tokenizer: Tokenizer, world: int) -> None:
    steps = Steps(config(tokenizer_folder), form, tokenizer_folder)
    policy = PaddingPolicy(2, "longest", "right", LONGEST, packed=False)
    found = []
    for rank in range(world):
        stream = StreamingDataset(
            lambda: iter(tables_of(form)), steps, policy, batch_size=4, shuffle=True, rank=rank, world_size=world
        )
        found += [row for batch in StreamingLoader(stream) for row in rows_in(tokenizer, form, batch, "longest")]
    assert sorted(found) == sorted(expected_rows(form))


def test_ranks_of_a_stream_are_filled_with_rows_without_loss(
    form: str, tokenizer_folder: Path, tokenizer: Tokenizer
) -> None:
    def batches(tokenizer_folder: Path, form: str) -> list[dict[str, Any]]:
        steps = Steps(config(tokenizer_folder), form, tokenizer_folder)
        policy = PaddingPolicy(2, "longest", "right", LONGEST, packed=False)
        stream = StreamingDataset(lambda: iter(tables_of(form)), steps, policy, batch_size=4, whole_chunks=True)
        return list(StreamingLoader(stream))

    ranks = on_ranks(len(CHUNKS) + 1, batches, tokenizer_folder, form)
    assert [len(rank) for rank in ranks] == [3] * 4
    found = [[row for batch in rank for row in rows_in(tokenizer, form, batch, "longest")] for rank in ranks]
    assert [len(rows) for rows in found] == [*CHUNKS, 0]
    assert [row for rows in found for row in rows] == expected_rows(form)
