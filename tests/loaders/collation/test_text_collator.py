"""Text collators: tokens or texts in, labels for causal or masked language modeling out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from tokenloom.errors import DataValidationError
from tokenloom.loaders import LanguageModelingDataCollator, TaskSpec, TextCollator
from tokenloom.loaders.collation.text import TokenMasking

IGNORED = -100


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    found = AutoTokenizer.from_pretrained(tokenizer_folder)
    found.add_special_tokens({"mask_token": "<mask>"})
    return found


def drawn(count: int, tokenizer: Any, seed: int = 0) -> list[dict[str, Any]]:
    noise = np.random.default_rng(seed)
    return [{"input_ids": noise.integers(0, len(tokenizer), noise.integers(1, 60))} for _ in range(count)]


def test_causal_batches_are_those_of_transformers(tokenizer: Any) -> None:
    ordinary = [[100, 101, 102], [103], [104, 105]]
    theirs = DataCollatorForLanguageModeling(tokenizer, mlm=False)([{"input_ids": ids} for ids in ordinary])
    for rows in (ordinary, [{"input_ids": ids} for ids in ordinary], [torch.tensor(ids) for ids in ordinary]):
        batch = LanguageModelingDataCollator(tokenizer)(rows)
        assert {name: values.tolist() for name, values in batch.items()} == {
            name: values.tolist() for name, values in theirs.items()
        }


def test_labels_of_the_rows_stay_and_the_pad_token_within_a_row_is_trained(tokenizer: Any) -> None:
    collator = LanguageModelingDataCollator(pad_token_id=0)
    assert collator([{"input_ids": [4, 0]}, {"input_ids": [5]}])["labels"].tolist() == [[4, 0], [5, IGNORED]]
    labelled = collator([{"input_ids": [4, 6], "labels": [IGNORED, 6]}])
    assert labelled["labels"].tolist() == [[IGNORED, 6]]


def test_texts_are_encoded_as_the_tokenizer_does(tokenizer: Any) -> None:
    texts = ["the quick brown fox", "", "red, blue and yellow"]
    expected = [tokenizer(text)["input_ids"] for text in texts]
    for rows in (texts, [{"text": text, "id": "x"} for text in texts]):
        batch = LanguageModelingDataCollator(tokenizer)(rows)
        seen = [ids[mask == 1].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
        assert seen == expected
    short = LanguageModelingDataCollator(tokenizer, max_length=3, truncation=True)(texts)
    assert short["input_ids"].shape == (3, 3)
    with pytest.raises(DataValidationError, match="max_length is 3"):
        LanguageModelingDataCollator(tokenizer, max_length=3)(texts)
    with pytest.raises(DataValidationError, match="row 1 of the batch has a NoneType instead of a text"):
        LanguageModelingDataCollator(tokenizer)([{"text": "a"}, {"text": None}])
    with pytest.raises(DataValidationError, match="no tokenizer"):
        LanguageModelingDataCollator(pad_token_id=0)(texts)


def test_padding_is_the_tokenizers_unless_said(tokenizer: Any) -> None:
    rows = [[100, 101], [102]]
    left = AutoTokenizer.from_pretrained(tokenizer.name_or_path, padding_side="left", pad_token=None)
    left.pad_token = None
    batch = LanguageModelingDataCollator(left)(rows)
    assert batch["input_ids"].tolist() == [[100, 101], [left.eos_token_id, 102]]
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 1]]
    batch = LanguageModelingDataCollator(left, padding_side="right", pad_token_id=9, padding=4)(rows)
    assert batch["input_ids"].tolist() == [[100, 101, 9, 9], [102, 9, 9, 9]]


@given(st.integers(0, 2**32), st.floats(0, 1), st.booleans())
def test_only_ordinary_tokens_are_hidden_and_all_labels_are_what_stood_there(
    tokenizer: Any, seed: int, probability: float, flagged: bool
) -> None:
    rows = drawn(5, tokenizer, seed)
    for row in rows:
        row["attention_mask"] = np.arange(len(row["input_ids"])) % 5 != 0
        if flagged:
            row["special_tokens_mask"] = np.arange(len(row["input_ids"])) % 3 == 0
    plain = LanguageModelingDataCollator(tokenizer)(rows)
    collator = LanguageModelingDataCollator(tokenizer, mlm=True, mlm_probability=probability, seed=seed)
    batch = collator(rows)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    chosen = batch["labels"] != IGNORED
    assert torch.equal(batch["labels"][chosen], plain["input_ids"][chosen])
    assert torch.equal(batch["input_ids"][~chosen], plain["input_ids"][~chosen])
    assert not torch.isin(batch["labels"][chosen], torch.tensor(tokenizer.all_special_ids)).any()
    assert (batch["attention_mask"][chosen] == 1).all()
    hidden = batch["input_ids"][chosen]
    known = torch.isin(hidden, torch.tensor(tokenizer.all_special_ids))
    assert (hidden[known] == tokenizer.mask_token_id).all()
    if flagged:
        assert not chosen[:, ::3].any()
    if probability == 0:
        assert not chosen.any()


def test_shares_of_what_is_hidden_are_80_10_10_of_15_percent() -> None:
    """Four standard deviations of a binomial."""
    ids = np.random.default_rng(0).integers(0, 1000, (400, 500))
    masking = TokenMasking(mask_token_id=5, vocab_size=1000, special_ids=(0, 1, 2, 999))
    seen = ids.copy()
    chosen = masking.hide(seen, np.ones(ids.shape, bool), np.random.default_rng(1))
    ordinary = ~np.isin(ids, [0, 1, 2, 5, 999])

    def near(found: np.ndarray, share: float) -> bool:
        return abs(found.mean() - share) < 4 * (share * (1 - share) / found.size) ** 0.5

    assert near(chosen[ordinary], 0.15) and not chosen[~ordinary].any()
    before, after = ids[chosen], seen[chosen]
    assert near(after == 5, 0.8)
    other = 995 - 1  # ordinary tokens other than the original one
    assert near((after != 5) & (after != before), 0.1 * other / 995)
    random = after[(after != 5) & (after != before)]
    assert set(np.unique(random)) <= set(range(1000)) - {0, 1, 2, 5, 999}
    assert random.min() < 20 and random.max() > 980


@given(st.integers(2, 12), st.sets(st.integers(0, 14)), st.integers(0, 11))
def test_random_tokens_are_all_that_are_not_special(size: int, special: set[int], mask: int) -> None:
    ordinary = set(range(size)) - special - {mask}
    if not ordinary:
        with pytest.raises(ValueError, match="none can be drawn"):
            TokenMasking(mask, size, tuple(special))
        return
    masking = TokenMasking(mask, size, tuple(special), 1.0, 0.0, 1.0)
    ids = np.full((1, 600), min(ordinary))
    masking.hide(ids, np.ones(ids.shape, bool), np.random.default_rng(0))
    assert set(ids.flat) == ordinary


def test_a_seed_gives_the_same_masks_and_each_call_others(tokenizer: Any) -> None:
    rows = drawn(8, tokenizer)
    one, other, third = (LanguageModelingDataCollator(tokenizer, mlm=True, seed=seed) for seed in (3, 3, 4))
    first = one(rows)["labels"]
    assert torch.equal(first, other(rows)["labels"])
    assert not torch.equal(first, third(rows)["labels"])
    assert not torch.equal(first, one(rows)["labels"])
    unseeded = LanguageModelingDataCollator(tokenizer, mlm=True)
    torch.manual_seed(1)
    second = unseeded(rows)["labels"]
    assert not torch.equal(second, unseeded(rows)["labels"])
    torch.manual_seed(1)
    assert torch.equal(second, unseeded(rows)["labels"])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_draw_masks_of_their_own_and_the_same_each_time(tokenizer: Any, method: str) -> None:
    rows = [{"input_ids": np.full(200, 100)}] * 4
    collator = LanguageModelingDataCollator(tokenizer, mlm=True, seed=5)
    collator(rows)  # numbers drawn in this process do not affect workers

    def labels() -> list[list[list[int]]]:
        loader = DataLoader(rows, 1, collate_fn=collator, num_workers=2, multiprocessing_context=method)  # type: ignore[arg-type]
        return [batch["labels"].tolist() for batch in loader]

    first = labels()
    assert len({str(found) for found in first}) == 4
    if method == "fork":
        assert labels() == first


def test_collators_can_be_pickled(tokenizer: Any) -> None:
    rows = drawn(3, tokenizer)
    for collator in (LanguageModelingDataCollator(tokenizer), TextCollator(TaskSpec.mlm_tiny(), tokenizer, seed=1)):
        copy = pickle.loads(pickle.dumps(collator))
        assert torch.equal(copy(rows)["labels"], collator(rows)["labels"])


def test_a_task_says_what_is_modeled_and_where_the_text_is(tokenizer: Any) -> None:
    rows = [{"body": "the quick brown fox", "text": "not this"}]
    task = TaskSpec("essays", task_type="masked_lm", input_fields=("body",))
    collator = TextCollator(task, tokenizer, seed=0)
    assert collator.mlm
    plain = TextCollator(TaskSpec("essays", input_fields=("body",)), tokenizer)(rows)
    assert plain["input_ids"][0].tolist() == tokenizer("the quick brown fox")["input_ids"]
    assert not TextCollator(task, tokenizer, mlm=False).mlm


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda tokenizer: LanguageModelingDataCollator(),
            "needs a tokenizer with a pad or EOS token, or pad_token_id=",
        ),
        (lambda tokenizer: LanguageModelingDataCollator(pad_token_id=0, mlm=True), "mask token"),
        (
            lambda tokenizer: LanguageModelingDataCollator(tokenizer, mlm=True, mlm_probability=1.5),
            "mlm_probability.* got 1.5",
        ),
        (
            lambda tokenizer: LanguageModelingDataCollator(tokenizer, mlm=True, random_replace_prob=0.3),
            "sum of the last two",
        ),
        (lambda tokenizer: LanguageModelingDataCollator(tokenizer, seed=-1), "seed must be .* got -1"),
        (lambda tokenizer: TextCollator(TaskSpec("t", task_type="seq2seq"), tokenizer), "'seq2seq', .*create_seq2seq"),
        (lambda tokenizer: TextCollator(TaskSpec("t", input_fields=("q", "a")), tokenizer), "several input fields"),
        (lambda tokenizer: TaskSpec("", "text"), "name of a TaskSpec"),
    ],
)
def test_wrong_arguments_are_told(tokenizer: Any, make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make(tokenizer)
