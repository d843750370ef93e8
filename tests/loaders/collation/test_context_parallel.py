"""Slices for context parallelism: those of the definition, put together the batch, and with the loss of one rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.context_parallel_ranks import VOCABULARY, Batch, model, on_this_rank, slices_by_mesh
from support.gloo_ranks import on_ranks
from support.soak import machine
from support.token_documents import Document, documents_of, table_of
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.config import LengthConfig
from tokenloom.loaders import context_slice, packed_seq_params, whole_from_slices
from tokenloom.loaders.reading.batch import PaddingPolicy, to_tensors
from tokenloom.loaders.reading.reader import SequenceReader

PAD = 1


def batch_of(documents: list[Document], longest: int, multiple: int, packed: bool, padding: Any = "longest") -> Batch:
    """Return all sequences of some documents as a batch of arrays."""
    length = LengthConfig(
        strategy="truncate_right", packing="best_fit" if packed else "none", document_multiple=multiple
    )
    table = to_sequences(table_of(documents), length, longest, pad_token_id=PAD).table
    policy = PaddingPolicy(PAD, padding, "right", longest, packed, multiple)
    return SequenceReader.of_tables([table]).batch(np.arange(table.num_rows), policy)


DOCUMENTS = st.lists(st.lists(st.booleans(), max_size=40).map(lambda flags: [*flags, True]), min_size=1, max_size=8)


def chunks_of_rank(batch: Batch, rank: int, size: int, split: str) -> list[list[int]]:
    """Return the places that a rank has of each row, by the definition."""
    rows, width = batch["input_ids"].shape
    bounds = batch["cu_seqlens"].tolist() if "cu_seqlens" in batch else [row * width for row in range(rows + 1)]
    places: list[list[int]] = [[] for _ in range(rows)]
    if split == "contiguous":
        each = width // size
        return [[row * width + rank * each + k for k in range(each)] for row in range(rows)]
    for begin, end in itertools.pairwise(bounds):
        each = (end - begin) // (2 * size)
        for chunk in (rank, 2 * size - 1 - rank):
            places[begin // width] += [begin + chunk * each + k for k in range(each)]
    return places


@pytest.mark.parametrize("split", ["zigzag", "contiguous"])
@given(DOCUMENTS, st.sampled_from([(4, 2), (8, 2), (8, 4), (16, 2), (16, 4), (16, 8)]), st.booleans(), st.booleans())
def test_slices_are_those_of_the_definition(
    split: Any, flags: list[list[bool]], sizes: tuple[int, int], packed: bool, tensors: bool
) -> None:
    multiple, size = sizes
    whole = batch_of(documents_of(flags), 4 * multiple, multiple, packed, "longest")
    batch = to_tensors(whole) if tensors else whole
    rows, width = whole["input_ids"].shape
    parts = [context_slice(batch, rank, size, split) for rank in range(size)]
    shifted = [[*row[1:], -100] for row in whole["labels"].tolist()]
    positions = whole["position_ids"].tolist() if packed else [list(range(width))] * rows
    for rank, part in enumerate(parts):
        places = chunks_of_rank(whole, rank, size, split)
        for name, values in (("shift_labels", shifted), ("position_ids", positions)):
            flat = [value for row in values for value in row]
            assert part[name].tolist() == [[flat[place] for place in row] for row in places]
        for name in ("input_ids", "attention_mask"):
            assert part[name].tolist() == [[whole[name].flat[place] for place in row] for row in places]
            assert isinstance(part[name], torch.Tensor) == tensors
        trained = sum(label != -100 for row in shifted for label in row)
        assert int(part["num_items_in_batch"]) == trained
        assert {*part} - {"cu_seqlens", "cu_seqlens_unpadded", "max_seqlen"} == {
            *("input_ids", "attention_mask", "position_ids", "shift_labels", "num_items_in_batch")
        }
        for name in {"cu_seqlens", "cu_seqlens_unpadded", "max_seqlen"} & {*whole}:
            assert part[name] is batch[name]
    for name in ("input_ids", "attention_mask"):
        joined = whole_from_slices([part[name] for part in parts], batch, split)
        assert joined.tolist() == whole[name].tolist()
    joined = whole_from_slices([part["shift_labels"] for part in parts], batch, split)
    assert joined.tolist() == shifted
    deep = whole_from_slices(
        [
            part["input_ids"][..., None].repeat(2, 2) if not tensors else part["input_ids"][..., None].expand(-1, -1, 2)
            for part in parts
        ],
        batch,
        split,
    )
    assert deep.shape == (rows, width, 2) and deep[..., 1].tolist() == whole["input_ids"].tolist()


def test_padding_rows_and_rows_of_padding_are_cut_too() -> None:
    """A width of 32 leaves padding after each row, which is a run of its own."""
    whole = batch_of(documents_of([[True] * 5, [True] * 9, [True] * 20]), 32, 8, True, "max_length")
    assert whole["input_ids"].shape[1] == 32 and (whole["attention_mask"] == 0).any()
    parts = [context_slice(whole, rank, 4) for rank in range(4)]
    assert all(part["input_ids"].shape == (len(whole["input_ids"]), 8) for part in parts)
    assert (whole_from_slices([part["input_ids"] for part in parts], whole) == whole["input_ids"]).all()


def test_weights_are_shifted_as_labels_and_summed() -> None:
    whole = batch_of(documents_of([[True] * 12]), 16, 8, False)
    weights = (np.arange(16, dtype=np.float32) / 4 * (whole["labels"] != -100)).astype(np.float32)
    parts = [context_slice({**whole, "loss_weights": weights}, rank, 2) for rank in range(2)]
    joined = whole_from_slices([part["shift_loss_weights"] for part in parts], whole)
    assert joined.tolist() == [[*weights[0, 1:].tolist(), 0.0]]
    assert all(part["num_items_in_batch"] == weights[0, 1:].sum() for part in parts)


def test_the_arguments_of_megatron() -> None:
    """The bounds with and without padding, in the fields of PackedSeqParams."""
    whole = batch_of(documents_of([[True] * 5, [True] * 8, [True] * 9]), 32, 8, True)
    params = packed_seq_params(whole)
    assert params.pop("qkv_format") == "thd"
    assert params.pop("max_seqlen_q") == params.pop("max_seqlen_kv") == 16
    padded, real = [0, 8, 16, 32], [0, 5, 13, 22]
    assert {name: value.tolist() for name, value in params.items()} == {
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": padded,
        "cu_seqlens_kv_padded": padded,
    }
    core = pytest.importorskip("megatron.core.packed_seq_params")
    core.PackedSeqParams(**packed_seq_params(to_tensors(whole)))


class Group:
    """A process group of which only rank and size are asked."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = (lambda: rank), (lambda: size)


@pytest.mark.parametrize("size", [2, 4])
def test_rows_are_cut_as_megatron_cuts_them(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = pytest.importorskip("megatron.core.utils")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    batch = to_tensors(batch_of(documents_of([[True] * size for size in (5, 16, 31)]), 32, 8, False))
    for rank in range(size):
        part = context_slice(batch, rank, size)
        given = {"tokens": batch["input_ids"], "position_ids": torch.arange(32).expand(3, -1).contiguous()}
        found = core.get_batch_on_this_cp_rank(given, Group(rank, size))
        assert found["tokens"].equal(part["input_ids"])
        assert found["position_ids"].equal(part["position_ids"])


def refused() -> list[tuple[str, dict[str, Any], dict[str, Any], str]]:
    packed = batch_of(documents_of([[True] * 5, [True] * 9]), 32, 4, True)
    rows = batch_of(documents_of([[True] * 12]), 12, 4, False)
    return [
        ("a document", packed, {"size": 4}, "a document of 12 tokens .* set length.document_multiple: 8"),
        ("a row", rows, {"size": 4}, "12 tokens cannot be cut into 8 equal chunks"),
        ("a run", rows, {"size": 5, "split": "contiguous"}, "12 tokens cannot be cut into 5 equal runs"),
        ("a split", rows, {"split": "ring"}, "split must be 'zigzag' or 'contiguous', got 'ring'"),
        ("no place", rows, {"rank": None, "size": None}, "give rank and size, or a mesh"),
        ("half a place", rows, {"rank": None}, "give rank and size, or a mesh"),
        ("a wrong rank", rows, {"rank": 2}, "less than"),
        ("a tree", {**rows, "attention_ends": rows["labels"]}, {}, "packing: tree cannot be cut"),
        ("pairs", {"chosen_input_ids": rows["input_ids"]}, {}, "pairs cannot be cut"),
        ("images", {**rows, "pixel_values": np.zeros((1, 3))}, {}, "pixel_values cannot be cut"),
    ]


@pytest.mark.parametrize("case", refused(), ids=lambda case: case[0])
def test_what_cannot_be_cut_is_refused_in_one_sentence(case: tuple[str, Batch, dict[str, Any], str]) -> None:
    _, batch, changes, message = case
    with pytest.raises(ValueError, match=message) as raised:
        context_slice(batch, **{"rank": 0, "size": 2, **changes})
    assert "\n" not in str(raised.value)


def test_rows_without_bounds_have_no_arguments_of_megatron() -> None:
    with pytest.raises(ValueError, match="no cu_seqlens; set length"):
        packed_seq_params(batch_of(documents_of([[True] * 12]), 12, 4, False))


def trained_batches() -> list[Batch]:
    """Return a packed batch, one of rows, and a packed one with weights, as tensors, with places and documents."""
    draw, batches = np.random.default_rng(5), list[Batch]()
    flags = [[*(draw.random(size) < 0.7).tolist(), True] for size in (3, 8, 14, 15, 20, 26, 27, 6)]
    for packed, weighted in ((True, False), (False, False), (True, True)):
        batch = batch_of(documents_of(flags), 40, 8, packed)
        batch["input_ids"] = batch["input_ids"] % VOCABULARY
        batch["labels"] = np.where(batch["labels"] == -100, -100, batch["labels"] % VOCABULARY)
        rows, width = batch["input_ids"].shape
        bounds = batch["cu_seqlens"].tolist() if packed else list(range(0, rows * width + 1, width))
        document = [number for number, pair in enumerate(itertools.pairwise(bounds)) for _ in range(*pair)]
        batch["document"] = np.array(document, np.float32).reshape(rows, width)
        batch["place"] = np.tile(np.arange(width, dtype=np.float32), (rows, 1))
        if weighted:
            weights = draw.integers(1, 5, batch["labels"].shape) / 4 * (batch["labels"] != -100)
            batch["loss_weights"] = weights.astype(np.float32)
        batches.append(to_tensors(batch))
    return batches


def step_of_one_rank(batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of the eager model with a mask, one document after the other."""
    trained, (rows, width) = model("eager"), batch["input_ids"].shape
    mask = torch.full((rows, 1, width, width), float("-inf"))
    for row in range(rows):
        for query in range(width):
            for key in range(query + 1):
                if batch["document"][row, query] == batch["document"][row, key]:
                    mask[row, 0, query, key] = 0.0
    positions = batch.get("position_ids", torch.arange(width).expand(rows, -1))
    logits = trained(input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions, use_cache=False).logits
    total, weight = torch.zeros(()), 0.0
    for row in range(rows):
        for place in range(1, width):
            if (label := int(batch["labels"][row, place])) != -100:
                own = float(batch["loss_weights"][row, place]) if "loss_weights" in batch else 1.0
                total = total - own * logits[row, place - 1].log_softmax(-1)[label]
                weight += own
    (total / weight).backward()
    gradients = {name: each.grad for name, each in trained.named_parameters() if each.grad is not None}
    return (total / weight).item(), gradients


@machine("ranks")
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_loss_and_the_gradients_of_one(ranks: int) -> None:
    batches = trained_batches()
    expected = [step_of_one_rank(batch) for batch in batches for _ in range(2)]
    found = on_ranks(ranks, on_this_rank, batches)
    splits: list[Any] = ["zigzag", "contiguous"]
    for case, (loss, gradients) in enumerate(expected):
        batch, split = batches[case // 2], splits[case % 2]
        assert [results[case][0] for results in found] == pytest.approx([loss] * ranks, abs=1e-5)
        own = found[0][case][1]
        assert own.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert gradient.abs().max() > 1e-4
            torch.testing.assert_close(own[name], gradient, atol=1e-5, rtol=1e-4)
        joined = whole_from_slices([results[case][2]["input_ids"] for results in found], batch, split)
        assert joined.tolist() == batch["input_ids"].tolist()


@machine("ranks")
def test_a_mesh_gives_each_rank_its_slice() -> None:
    """In a mesh of 2 × 2, the coordinate in `cp` decides; both groups of `dp` have the same slices."""
    batch = trained_batches()[0]
    found = on_ranks(4, slices_by_mesh, batch)
    assert sorted(place for place, _ in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (_, rank), part in found:
        assert part["input_ids"].tolist() == context_slice(batch, rank, 2)["input_ids"].tolist()
