"""Collate functions compared with rows padded one by one in plain Python, for rows of all types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tokenloom.errors import DataValidationError
from tokenloom.loaders import OutputSchema, create_causal_lm_collate, create_collate_fn, create_seq2seq_collate

PAD, IGNORED, START = 7, -100, 3
Row = dict[str, list[int]]

MAKERS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda values: np.array(values, np.int64),
    "narrow array": lambda values: np.array(values, np.int16),
    "tensor": lambda values: torch.tensor(values, dtype=torch.int64),
    "narrow tensor": lambda values: torch.tensor(values, dtype=torch.int32),
    "arrow list": lambda values: pa.array([[1], values], pa.list_(pa.int32()))[1],
    "large arrow list": lambda values: pa.scalar(values, pa.large_list(pa.int64())),
    "arrow array": lambda values: pa.array(values, pa.uint16() if min(values, default=0) >= 0 else pa.int16()),
}


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Rows with input_ids and a random subset of other columns, the same for all rows."""
    found = []
    for length in draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)):
        many: dict[str, Any] = {"min_size": length, "max_size": length}
        row = {"input_ids": draw(st.lists(st.integers(0, 99), **many))}
        row["attention_mask"] = draw(st.lists(st.integers(0, 1), **many))
        row["labels"] = draw(st.lists(st.sampled_from([IGNORED, 0, 5, PAD, 99]), **many))
        row["position_ids"] = draw(st.lists(st.integers(0, 3), **many))
        found.append(row)
    names = {"input_ids", *draw(st.sets(st.sampled_from(["attention_mask", "labels", "position_ids"])))}
    return [{name: row[name] for name in row if name in names} for row in found]


def fill(values: list[int], width: int, pad: int, side: str) -> list[int]:
    blank = [pad] * (width - len(values))
    return blank + list(values) if side == "left" else list(values) + blank


def padded(given: list[Row], width: int, side: str) -> dict[str, list[list[int]]]:
    """Return the expected batch of `create_collate_fn`, built row by row and token by token."""
    batch: dict[str, list[list[int]]] = {}
    for row in given:
        mask = row.get("attention_mask", [1] * len(row["input_ids"]))
        row = {**row, "attention_mask": mask}
        if "labels" in row:
            row["labels"] = [label if seen else IGNORED for label, seen in zip(row["labels"], mask, strict=True)]
        for name, values in row.items():
            pad = {"input_ids": PAD, "labels": IGNORED}.get(name, 0)
            batch.setdefault(name, []).append(fill(values, width, pad, side))
    return batch


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in batch.items()}


def made_of(given: list[Row], makers: list[str]) -> list[dict[str, Any]]:
    return [
        {
            name: MAKERS[makers[(index + number) % len(makers)]](values)
            for index, (name, values) in enumerate(row.items())
        }
        for number, row in enumerate(given)
    ]


SIDES = st.sampled_from(["left", "right"])
KINDS = st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=4)


@given(rows(), SIDES, KINDS, st.sampled_from([None, "longest", 1, 4, 16]))
def test_rows_are_padded_as_one_by_one(given: list[Row], side: Any, kinds: list[str], padding: Any) -> None:
    longest = max(1, *(len(row["input_ids"]) for row in given))
    width = -(-longest // padding) * padding if isinstance(padding, int) else longest
    batch = create_collate_fn(PAD, padding_side=side, padding=padding)(made_of(given, kinds))
    assert plain(batch) == padded(given, width, side)
    assert {(type(values), values.dtype) for values in batch.values()} == {(torch.Tensor, torch.int64)}
    arrays = create_collate_fn(PAD, padding_side=side, padding=padding, return_tensors=False)(made_of(given, kinds))
    assert plain(arrays) == plain(batch)
    assert {(type(values), values.dtype) for values in arrays.values()} == {(np.ndarray, np.dtype(np.int64))}


@given(rows(), SIDES, st.integers(1, 12))
def test_max_length_fixes_the_width_and_longer_rows_are_cut_only_when_asked(
    given: list[Row], side: Any, most: int
) -> None:
    cut = [{name: values[:most] for name, values in row.items()} for row in given]
    assert plain(create_collate_fn(PAD, padding_side=side, max_length=most, truncation=True)(given)) == padded(
        cut, most, side
    )
    longest = max(len(row["input_ids"]) for row in given)
    dynamic = create_collate_fn(PAD, padding_side=side, max_length=most, truncation=True, padding="longest")
    assert plain(dynamic(given)) == padded(cut, max(1, min(most, longest)), side)
    strict = create_collate_fn(PAD, padding_side=side, max_length=most)
    if longest > most:
        with pytest.raises(
            DataValidationError, match=f"has {longest} tokens, but max_length is {most}; .*truncation=True"
        ):
            strict(given)
    else:
        assert plain(strict(given)) == padded(given, most, side)


@given(rows(), SIDES, st.booleans())
def test_causal_labels_are_those_of_the_next_position(given: list[Row], side: Any, weighted: bool) -> None:
    if weighted:
        given = [{**row, "loss_weights": [n / 2 for n in range(len(row["input_ids"]))]} for row in given]  # type: ignore[dict-item]
    width = max(1, *(len(row["input_ids"]) for row in given))
    labels, weights = [], []
    for row in given:
        length = len(row["input_ids"])
        mask = row.get("attention_mask", [1] * length)
        starts = [place == 0 for place in row.get("position_ids", [1] * length)]
        ahead, counts = [IGNORED] * length, [0.0] * length
        for i in range(length - 1):
            if mask[i]:
                known = (
                    row["labels"][i + 1] if "labels" in row else IGNORED if starts[i + 1] else row["input_ids"][i + 1]
                )
                ahead[i] = known if mask[i + 1] else IGNORED
                counts[i] = (i + 1) / 2
        labels.append(fill(ahead, width, IGNORED, side))
        weights.append(fill(counts, width, 0, side))  # type: ignore[arg-type]
    batch = plain(create_causal_lm_collate(PAD, padding_side=side)(given))
    assert batch.pop("labels") == labels
    if weighted:
        assert batch.pop("loss_weights") == weights
    expected = padded(given, width, side)
    assert batch == {name: expected[name] for name in batch}


def test_the_causal_loss_is_that_of_a_model_that_shifts_by_itself() -> None:
    given = [{"input_ids": [4, 5, 6, 8]}, {"input_ids": [9, 2]}]
    logits = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(0))
    shifted = create_causal_lm_collate(0)(given)["labels"]
    unshifted = torch.tensor([[4, 5, 6, 8], [9, 2, -100, -100]])
    loss = torch.nn.functional.cross_entropy
    assert torch.equal(loss(logits.transpose(1, 2), shifted), loss(logits[:, :-1].transpose(1, 2), unshifted[:, 1:]))
    assert shifted.tolist() == [[5, 6, 8, -100], [2, -100, -100, -100]]


TARGETS = st.lists(st.lists(st.sampled_from([IGNORED, 0, 5, PAD, 99]), max_size=7), min_size=6, max_size=6)


@given(rows(), TARGETS, SIDES, st.booleans(), KINDS)
def test_both_sides_of_seq2seq_rows(
    given: list[Row], drawn: list[list[int]], side: Any, masked: bool, kinds: list[str]
) -> None:
    targets = drawn[: len(given)]
    masks = [[n % 3 for n in range(len(target))] for target in targets]
    sources = [{name: values for name, values in row.items() if name != "labels"} for row in given]
    both: list[Row] = [{**row, "labels": target} for row, target in zip(sources, targets, strict=True)]
    if masked:
        both = [{**row, "decoder_attention_mask": mask} for row, mask in zip(both, masks, strict=True)]
    batch = plain(create_seq2seq_collate(PAD, padding_side=side, decoder_start_token_id=START)(made_of(both, kinds)))
    width = max(1, *map(len, targets))
    expected = padded(sources, max(1, *(len(row["input_ids"]) for row in sources)), side)
    expected["labels"], expected["decoder_input_ids"], expected["decoder_attention_mask"] = [], [], []
    for target, mask in zip(targets, masks, strict=True):
        seen = mask if masked else [1] * len(target)
        behind = [START, *(PAD if label == IGNORED else label for label in target)][: len(target)]
        kept = [label if found else IGNORED for label, found in zip(target, seen, strict=True)]
        expected["labels"].append(fill(kept, width, IGNORED, side))
        expected["decoder_input_ids"].append(fill(behind, width, PAD, side))
        expected["decoder_attention_mask"].append(fill(seen, width, 0, side))
    assert batch == expected


def test_what_seq2seq_rows_may_lack() -> None:
    collate = create_seq2seq_collate(0)
    ids = [{"input_ids": [1, 2], "decoder_input_ids": [3, 4, 5]}, {"input_ids": [1], "decoder_input_ids": []}]
    assert collate(ids)["labels"].tolist() == [[4, 5, -100], [-100, -100, -100]]
    both = [{"input_ids": [1, 2], "decoder_input_ids": [3, 4], "labels": [8, 9]}]
    batch = collate(both)
    assert (batch["decoder_input_ids"].tolist(), batch["labels"].tolist()) == ([[3, 4]], [[8, 9]])
    with pytest.raises(DataValidationError, match="decoder_start_token_id=model"):
        collate([{"input_ids": [1], "labels": [2]}])
    with pytest.raises(DataValidationError, match="need lists 'labels' or 'decoder_input_ids'"):
        collate([{"input_ids": [1]}])
    limited = create_seq2seq_collate(0, max_length=4, max_target_length=2)
    assert limited(both)["input_ids"].shape == (1, 4)
    with pytest.raises(DataValidationError, match="3 tokens, but max_target_length is 2"):
        limited(ids)


def test_the_decoder_reads_what_transformers_shifts() -> None:
    from transformers.models.bart.modeling_bart import shift_tokens_right

    given = [{"input_ids": [1], "labels": [5, 6, 2]}, {"input_ids": [1, 4], "labels": [8, 2]}]
    batch = create_seq2seq_collate(1, decoder_start_token_id=2)(given)
    theirs = shift_tokens_right(batch["labels"], 1, 2)
    seen = batch["decoder_attention_mask"] == 1
    assert torch.equal(batch["decoder_input_ids"][seen], theirs[seen])


def test_dtypes_and_further_columns_are_those_of_the_schema() -> None:
    schema = OutputSchema(
        {"input_ids": (torch.int32, PAD), "score": ("float32", -1.5), "kind": ("int8", 0), "ok": ("bool", 0)}
    )
    given = [
        {"input_ids": [1, 2], "score": [0.5, 1], "kind": 3, "ok": [True, False], "labels": 1},
        {"input_ids": [4], "score": [2.0], "kind": pa.scalar(5), "ok": [1], "labels": torch.tensor(0)},
    ]
    batch = create_collate_fn(PAD, schema=schema)(given)
    assert {name: values.dtype for name, values in batch.items()} == {
        "input_ids": torch.int32,
        "attention_mask": torch.int64,
        "labels": torch.int64,
        "score": torch.float32,
        "kind": torch.int8,
        "ok": torch.bool,
    }
    assert batch["score"].tolist() == [[0.5, 1.0], [2.0, -1.5]]
    assert batch["kind"].tolist() == [3, 5]
    assert batch["ok"].tolist() == [[True, False], [True, False]]
    assert batch["labels"].tolist() == [1, 0]


def test_a_column_of_nothing_counts_as_missing() -> None:
    batch = create_collate_fn(0)([{"input_ids": [1], "labels": None}, {"input_ids": [2], "labels": None}])
    assert set(batch) == {"input_ids", "attention_mask"}
    assert create_causal_lm_collate(0)([{"input_ids": [1, 4], "labels": None}])["labels"].tolist() == [[4, -100]]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "at least one"),
        ([[1, 2]], "row 0 of the batch must be a dict of columns, got list"),
        ([{"labels": [1]}], "a list 'input_ids', but their columns are labels"),
        ([{"input_ids": 3}], "need a list 'input_ids'"),
        ([{"input_ids": [1]}, {"input_ids": [1], "labels": [1]}], "rows 0 and 1 of the batch differ in 'labels'"),
        ([{"input_ids": [1], "text": "a"}], r"'text' is not in the schema: add it .*schema=\{'text'"),
        (
            [{"input_ids": [1]}, {"input_ids": ["a"]}],
            "'input_ids', row 1 of the batch: contains text instead of numbers",
        ),
        ([{"input_ids": [1]}, {"input_ids": None}], "row 1 of the batch: contains None"),
        ([{"input_ids": [1]}, {"input_ids": [1, None]}], "row 1 of the batch: contains None"),
        ([{"input_ids": [1.5]}], "row 0 of the batch: contains 1.5, which does not fit dtype int64"),
        ([{"input_ids": np.array([np.nan])}], "contains nan, which does not fit dtype int64"),
        ([{"input_ids": [2**63]}], "contains 9223372036854775808, which does not fit dtype int64"),
        ([{"input_ids": [[1, 2]]}], "has 2 dimensions"),
        ([{"input_ids": [1]}, {"input_ids": 1}], "row 1 of the batch: has 0 dimensions"),
        (
            [{"input_ids": [1], "labels": [1]}, {"input_ids": [1], "labels": [1, 2]}],
            "row 1 .* has 2 values in 'labels', but 1 in 'input_ids'",
        ),
    ],
)
def test_rows_that_do_not_fit_are_told_with_their_place(given: Any, told: str) -> None:
    with pytest.raises(DataValidationError, match=told):
        create_collate_fn(0)(given)


def test_whole_floats_are_taken_as_the_integers_that_they_are() -> None:
    assert create_collate_fn(0)([{"input_ids": [1.0, 2.0]}])["input_ids"].tolist() == [[1, 2]]


def test_one_label_a_row_is_no_causal_label() -> None:
    with pytest.raises(DataValidationError, match="one label each"):
        create_causal_lm_collate(0)([{"input_ids": [1, 2], "labels": 1}])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"truncation": True}, "pass max_length="),
        ({"padding": "max_length"}, "pass max_length="),
        ({"padding": 0}, "padding must be .* got 0"),
        ({"padding_side": "top"}, "padding_side must be .* got 'top'"),
        ({"schema": {"input_ids": ("int64", 5)}}, "fills 'input_ids' with 5, but pad_token_id is 0"),
        ({"schema": {"x": ("int8", 300)}}, "column 'x': pad value 300 does not fit dtype int8"),
        ({"schema": {"x": ("bool", 2)}}, "pad value 2 does not fit dtype bool"),
        ({"schema": {"x": ("int64", float("nan"))}}, "pad value nan"),
        ({"schema": {"x": ("U5", 0)}}, "a number type"),
        ({"schema": {"x": ("int46", 0)}}, "dtype must be .* got 'int46'"),
        ({"schema": {"x": (torch.bfloat16, 0)}}, "bfloat16"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        create_collate_fn(0, **arguments)


def test_a_schema_is_a_mapping_that_joins() -> None:
    schema = OutputSchema.default(1) | {"score": ("float16", 0.5)}
    assert schema["input_ids"].pad_value == 1 and schema["labels"].pad_value == IGNORED
    assert schema["score"].dtype == np.float16
    assert schema == OutputSchema.default(1) | OutputSchema({"score": (torch.float16, 0.5)})
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert len(OutputSchema.default()) + 1 == len(schema)


COLLATES = [
    create_collate_fn(0, schema={"kind": ("int32", 0)}),
    create_causal_lm_collate(0, padding=8),
    create_seq2seq_collate(0, decoder_start_token_id=1),
]


class Ragged(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of growing length."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": list(range(row)), "labels": list(range(row))}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_of_workers_are_those_of_the_process_itself(method: str) -> None:
    for collate in COLLATES if method == "fork" else COLLATES[2:]:
        alone = DataLoader(Ragged(), batch_size=3, collate_fn=collate)
        workers = DataLoader(Ragged(), batch_size=3, collate_fn=collate, num_workers=2, multiprocessing_context=method)
        assert [plain(batch) for batch in workers] == [plain(batch) for batch in alone]


def test_a_worker_tells_which_row_is_wrong() -> None:
    loader = DataLoader(Ragged(), batch_size=4, collate_fn=create_collate_fn(0, max_length=5), num_workers=1)
    with pytest.raises(DataValidationError, match="row 3 of the batch has 7 tokens"):
        list(loader)


@pytest.mark.parametrize("collate", COLLATES)
def test_collate_functions_can_be_pickled(collate: Any) -> None:
    copy = pickle.loads(pickle.dumps(collate))
    given = [Ragged()[3], Ragged()[1]]
    assert plain(copy(given)) == plain(collate(given))
