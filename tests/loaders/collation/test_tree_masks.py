"""Masks of batches of trees say token by token what a layout by plain recursion says."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.tree_oracle import Row, batch_of, cut, drawn_texts, laid_out
from tokenloom.loaders import model_inputs
from tokenloom.loaders.collation.context import flattened, startend_row_indices, tree_block_mask, tree_mask

SEEDS = st.integers(0, 10**6)


def drawn(seed: int, rows: int = 2) -> list[Row]:
    draw = random.Random(seed)
    trees = [[drawn_texts(draw, 9) for _ in range(draw.randrange(1, 4))] for _ in range(rows)]
    return [laid_out(cut(of_row[0]) + of_row[1:]) for of_row in trees]


def expected(rows: list[Row], batch: dict[str, torch.Tensor], window: int | None = None) -> torch.Tensor:
    """Return the mask: a token sees the last tokens of its own text; padding sees itself."""
    count, width = batch["input_ids"].shape
    seen = torch.zeros(count, 1, width, width, dtype=torch.bool)
    for row, own in enumerate(rows):
        before = int(batch["attention_mask"][row].argmax())
        seen[row, 0] = torch.eye(width, dtype=torch.bool) & (batch["attention_mask"][row] == 0)
        for place, places in enumerate(own.seen):
            for other in places[-window:] if window else places:
                seen[row, 0, before + place, before + other] = True
    return seen


@given(SEEDS, st.sampled_from(["left", "right"]), st.sampled_from([None, 1, 2, 3, 7, 100]))
def test_a_token_sees_what_its_text_has_before_it(seed: int, side: str, window: int | None) -> None:
    rows = drawn(seed)
    batch = batch_of(rows, side)
    wanted = expected(rows, batch, window)
    places: Any = (batch["attention_ends"], batch["position_ids"], window)
    assert torch.equal(tree_mask(*places), wanted)
    added = tree_mask(*places, dtype=torch.bfloat16)
    assert torch.equal(added == 0, wanted) and (added[~wanted] == torch.finfo(torch.bfloat16).min).all()
    blocks = tree_block_mask(*places)
    width = wanted.shape[-1]
    of = torch.arange(width)
    assert torch.equal(blocks.mask_mod(torch.arange(len(rows))[:, None, None], 0, of[:, None], of)[:, None], wanted)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert blocks.shape == (len(rows), 1, width, width)


@given(SEEDS)
def test_flashmask_masks_what_is_not_seen(seed: int) -> None:
    """For causal attention, one index for each key: queries from it on do not see the key."""
    rows = drawn(seed)
    batch = batch_of(rows)
    starts = startend_row_indices(batch)
    count, width = batch["input_ids"].shape
    assert (starts.dtype, starts.shape) == (torch.int32, (count, 1, width, 1))
    seen = torch.ones(width, width, dtype=torch.bool).tril().expand(count, 1, -1, -1).clone()
    for row in range(count):
        for key in range(width):
            seen[row, 0, int(starts[row, 0, key, 0]) :, key] = False
    assert torch.equal(seen, expected(rows, batch))


@given(SEEDS, st.sampled_from(["left", "right"]), st.booleans())
def test_a_flattened_batch_is_its_trees_in_one_row(seed: int, side: str, weighted: bool) -> None:
    draw = random.Random(seed)
    trees = [[drawn_texts(draw, 9) for _ in range(draw.randrange(1, 3))] for _ in range(3)]
    batch = batch_of([laid_out(of_row) for of_row in trees], side)
    together = batch_of([laid_out([texts for of_row in trees for texts in of_row])], more=0)
    del together["attention_mask"]
    if not weighted:
        del batch["loss_weights"], together["loss_weights"]
    for each in (batch, together):  # a column of `dataset.token_columns`
        each["depth"] = each["position_ids"].float() / 7
    found = flattened(batch)
    assert found.keys() == together.keys()
    assert all(torch.equal(found[name], together[name]) for name in together)


def test_a_batch_of_trees_needs_a_model() -> None:
    batch = batch_of(drawn(0))
    del batch["loss_weights"]
    with pytest.raises(ValueError, match=r"the mask of a batch of trees depends on the model: pass model="):
        model_inputs(batch)
    with pytest.raises(ValueError, match="Linear is not a model of transformers, so its masks are not known"):
        model_inputs(batch, model=torch.nn.Linear(2, 2))


def test_a_window_needs_positions() -> None:
    with pytest.raises(ValueError, match="a sliding window of trees is counted in position_ids: pass them too"):
        tree_mask(batch_of(drawn(0))["attention_ends"], sliding_window=4)
