"""Pre-tokenized rows in canonical form: ids without padding, the weight of each token, and documents; or a reject."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.assets.columns.tokens import MASKED
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.tables.json_text import rows_table

Row = dict[str, Any]


def canonical(rows: Any, **token_columns: Any) -> ChunkOutput:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    table = table.append_column(ROW, pa.array(range(table.num_rows), pa.int32()))
    roles = {name: name for name in table.column_names if name not in (ROW, "logprobs", "unrelated")}
    return to_canonical(table, ColumnMapping("tokens", roles, **token_columns))


def rows_out(output: ChunkOutput) -> list[tuple[int, list[int], list[float], list[int]]]:
    return [(row[ROW], row["input_ids"], row["weights"], row["lengths"]) for row in output.table.to_pylist()]


def codes(output: ChunkOutput) -> dict[int, str]:
    return {reject[ROW]: reject["code"] for reject in output.rejects.to_pylist()}


def made(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(300) for _ in range(draw.randrange(1, 30))] for _ in range(count)]


def masks(ids: list[list[int]], seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2) for _ in row] for row in ids]


IDS = made(40)
ONE, TWO = masks(IDS, 1), masks(IDS, 2)
HALF = [[mask / 2 for mask in row] for row in TWO]
PROMPTS = [len(row) // 3 for row in IDS]


def columns(**values: list[Any]) -> list[Row]:
    names = ["input_ids", *values]
    return [dict(zip(names, row, strict=True)) for row in zip(IDS, *values.values(), strict=True)]


SOURCES: dict[str, tuple[list[Row], Any]] = {
    "nothing": (columns(), [[1.0] * len(row) for row in IDS]),
    "labels": (
        columns(labels=[[i if m else -100 for i, m in zip(*row, strict=True)] for row in zip(IDS, ONE, strict=True)]),
        ONE,
    ),
    "loss_mask": (columns(loss_mask=ONE), ONE),
    "floats": (columns(loss_mask=[[float(m) for m in row] for row in ONE]), ONE),
    "flags": (columns(completion_mask=[[bool(m) for m in row] for row in ONE]), ONE),
    "both masks": (
        columns(completion_mask=ONE, assistant_masks=TWO),
        [[a * b for a, b in zip(*row, strict=True)] for row in zip(ONE, TWO, strict=True)],
    ),
    "weights": (columns(weights=HALF), HALF),
    "prompt_length": (
        columns(prompt_length=PROMPTS),
        [[float(at >= prompt) for at in range(len(row))] for row, prompt in zip(IDS, PROMPTS, strict=True)],
    ),
    "num_actions": (
        columns(num_actions=[len(row) - prompt for row, prompt in zip(IDS, PROMPTS, strict=True)]),
        [[float(at >= prompt) for at in range(len(row))] for row, prompt in zip(IDS, PROMPTS, strict=True)],
    ),
    "window": (
        columns(
            num_actions=[len(row) - prompt for row, prompt in zip(IDS, PROMPTS, strict=True)],
            loss_mask=[mask[prompt:] for mask, prompt in zip(ONE, PROMPTS, strict=True)],
        ),
        [[0] * prompt + mask[prompt:] for mask, prompt in zip(ONE, PROMPTS, strict=True)],
    ),
}


@pytest.mark.parametrize("layout", ["int64", "uint16", "large", "json"])
@pytest.mark.parametrize("source", SOURCES)
def test_weights_are_those_that_the_source_says(source: str, layout: str) -> None:
    rows, weights = SOURCES[source]
    table = rows_table(rows) if layout == "json" else pa.Table.from_pylist(rows)
    if layout in ("uint16", "large"):
        kind = pa.list_(pa.uint16()) if layout == "uint16" else pa.large_list(pa.int32())
        table = table.set_column(0, "input_ids", table["input_ids"].cast(kind))
    output = canonical(table)
    assert output.rejects.num_rows == 0
    assert rows_out(output) == [(n, ids, weights[n], [len(ids)]) for n, ids in enumerate(IDS)]


def test_padding_on_either_side_is_removed() -> None:
    left = {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1], "labels": [-100, -100, -100, 6]}
    right = {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": [5, 6, -100, -100]}
    rows = [left | {"logprobs": [0, 0, 1, 2]}, right | {"logprobs": [3, 4, 0, 0]}]
    output = canonical(rows, token_columns=("logprobs",))
    assert rows_out(output) == [(0, [5, 6], [0, 1], [2]), (1, [5, 6], [1, 1], [2])]
    assert output.table["token:logprobs"].to_pylist() == [[1, 2], [3, 4]]


def test_packed_rows_keep_their_documents() -> None:
    ids = [[7, 8, 9, 7, 8], [1, 2]]
    by_length = [{"input_ids": row, "seq_lengths": sizes} for row, sizes in zip(ids, [[3, 2], [2]], strict=True)]
    positions = [[0, 1, 2, 0, 1], [0, 1]]
    by_position = [{"input_ids": row, "position_ids": at} for row, at in zip(ids, positions, strict=True)]
    both = [first | second for first, second in zip(by_length, by_position, strict=True)]
    for rows in (by_length, by_position, both):
        assert [row[3] for row in rows_out(canonical(rows))] == [[3, 2], [2]]


def test_values_of_the_last_tokens_alone_are_placed_there() -> None:
    rows = [{"input_ids": [1, 2, 3], "num_actions": 2, "loss_mask": [1, 0], "logprobs": [-1.5, -2.5]}]
    assert canonical(rows, token_columns=("logprobs",)).table["token:logprobs"].to_pylist() == [[0, -1.5, -2.5]]


WRONG: dict[str, tuple[Row, str]] = {
    "null": ({"input_ids": None}, "not_token_ids"),
    "null id": ({"input_ids": [1, None]}, "not_token_ids"),
    "negative id": ({"input_ids": [1, -1]}, "not_token_ids"),
    "huge id": ({"input_ids": [1, 1 << 32]}, "not_token_ids"),
    "text": ({"input_ids": "1 2"}, "not_token_ids"),
    "fraction": ({"input_ids": [1.5]}, "not_token_ids"),
    "empty": ({"input_ids": [], "labels": []}, "no_tokens"),
    "all padding": ({"input_ids": [1, 2], "attention_mask": [0, 0]}, "no_tokens"),
    "short labels": ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "unequal_lengths"),
    "no mask": ({"input_ids": [1, 2, 3], "loss_mask": None}, "unequal_lengths"),
    "other labels": ({"input_ids": [1, 2, 3], "labels": [1, 9, 3]}, "other_label"),
    "ignored otherwise": ({"input_ids": [1, 2, 3], "labels": [-1, -1, 3]}, "other_label"),
    "shifted": ({"input_ids": [1, 2, 3, 4], "labels": [-100, 3, 4, -100]}, "shifted_labels"),
    "mask of 2": ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "not_a_mask"),
    "negative weight": ({"input_ids": [1, 2], "weights": [0, -1]}, "invalid_weight"),
    "infinite weight": ({"input_ids": [1, 2], "weights": [0, float("inf")]}, "invalid_weight"),
    "NaN weight": ({"input_ids": [1, 2], "weights": [0, float("nan")]}, "invalid_weight"),
    "long prompt": ({"input_ids": [1, 2], "prompt_length": 3}, "invalid_length"),
    "negative prompt": ({"input_ids": [1, 2], "prompt_length": -1}, "invalid_length"),
    "many actions": ({"input_ids": [1, 2], "num_actions": 3}, "invalid_length"),
    "wrong window": ({"input_ids": [1, 2, 3], "num_actions": 2, "loss_mask": [1]}, "unequal_lengths"),
    "inner padding": ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "inner_padding"),
    "document numbers": ({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 2]}, "not_a_mask"),
    "short documents": ({"input_ids": [1, 2, 3], "seq_lengths": [2]}, "invalid_documents"),
    "empty document": ({"input_ids": [1, 2, 3], "seq_lengths": [3, 0]}, "invalid_documents"),
    "later positions": ({"input_ids": [1, 2, 3], "position_ids": [1, 2, 3]}, "invalid_documents"),
    "a gap": ({"input_ids": [1, 2, 3], "position_ids": [0, 1, 3]}, "invalid_documents"),
    "two divisions": ({"input_ids": [1, 2, 3], "position_ids": [0, 1, 0], "seq_lengths": [3]}, "invalid_documents"),
    "no log-probability": ({"input_ids": [1, 2], "logprobs": [0.0, float("nan")]}, "not_a_number"),
}


def arrow(rows: list[Row]) -> pa.Table:
    """Rows as a table, with JSON columns where their types differ."""
    try:
        return pa.Table.from_pylist(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return rows_table(rows)


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_row_is_rejected_and_its_neighbours_are_not(case: str) -> None:
    bad, code = WRONG[case]
    good = {"input_ids": [4, 5, 6], "labels": [-100, 5, 6], "loss_mask": [0, 1, 1], "weights": [0.0, 1.0, 1.0]}
    good |= {"attention_mask": [1, 1, 1], "seq_lengths": [1, 2], "position_ids": [0, 0, 1], "logprobs": [0.0, 1.0, 2.0]}
    good |= {"prompt_length": 1, "num_actions": 2}
    good = {name: good[name] for name in bad}
    table = arrow([good, bad, good])
    output = canonical(table, token_columns=("logprobs",) if "logprobs" in bad else ())
    assert codes(output) == {1: code}
    alone = canonical(arrow([good]), token_columns=("logprobs",) if "logprobs" in bad else ())
    assert [row[1:] for row in rows_out(output)] == [row[1:] for row in rows_out(alone)] * 2


def test_a_reject_shows_the_first_place() -> None:
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 9, 8]}]
    assert canonical(rows).rejects.to_pylist()[0]["excerpt"] == "token 1: 9"
    assert str(MASKED) in canonical(rows).rejects.to_pylist()[0]["message"]


def resolved(rows: list[Row], **settings: Any) -> ColumnMapping:
    config = PipelineConfig.from_mapping({"name": "made", "dataset": {"name": "x"}, **settings})
    return resolve(config, merge([sketch(pa.Table.from_pylist(rows))]))


TRAINED = {"input_ids": [1, 2, 3], "labels": [1, 2, 3]}


def test_columns_are_found_by_their_names() -> None:
    assert resolved([TRAINED | {"attention_mask": [1, 1], "id": "a"}]).roles == {
        name: name for name in ("input_ids", "labels", "attention_mask")
    }
    other = {"token_ids": [1], "loss_mask": [1], "num_actions": 1}
    assert resolved([other]).roles == {"input_ids": "token_ids", "loss_mask": "loss_mask", "num_actions": "num_actions"}


def test_texts_are_read_before_ids_unless_the_yaml_says_so() -> None:
    rows = [TRAINED | {"text": "A sentence with several words in it."}]
    assert resolved(rows).form == "text"
    assert resolved(rows, prompt_template={"format_type": "tokens"}).form == "tokens"
    mapped = {"dataset": {"name": "x", "column_mapping": {"input_ids": "input_ids"}}}
    assert resolved(rows, **mapped).form == "tokens"


def test_a_mapped_source_replaces_those_that_are_found() -> None:
    rows = [TRAINED | {"mine": [1, 0], "seq_lengths": [2]}]
    dataset = {"name": "x", "column_mapping": {"loss_mask": "mine"}}
    assert resolved(rows, dataset=dataset).roles == {
        "input_ids": "input_ids",
        "loss_mask": "mine",
        "seq_lengths": "seq_lengths",
    }


REFUSED: dict[str, tuple[Row, dict[str, Any], str]] = {
    "two sources": (TRAINED | {"loss_mask": [1, 1]}, {}, "labels and loss_mask both say what is trained"),
    "pairs": ({"chosen_ids": [1], "rejected_ids": [2]}, {}, "chosen_ids and rejected_ids hold token ids"),
    "no ids": ({"text": "a"}, {"prompt_template": {"format_type": "tokens"}}, "no column has token ids"),
    "no list": (
        TRAINED | {"n": 1},
        {"dataset": {"name": "x", "column_mapping": {"labels": "n"}}},
        "labels needs a list of numbers",
    ),
    "Bridge": (
        {"input_ids": [1], "loss_mask": [1], "seq_start_id": [0]},
        {"prompt_template": {"format_type": "tokens"}},
        "loss_mask belongs to the next token",
    ),
    "columns of texts": (
        {"text": "A sentence with several words in it.", "logprobs": [1.0]},
        {"dataset": {"name": "x", "token_columns": ["logprobs"]}},
        "it is for pre-tokenized rows",
    ),
    "no such column": (
        TRAINED,
        {"dataset": {"name": "x", "token_columns": ["logprob"]}},
        "no column logprob",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(case: str) -> None:
    row, settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        resolved([row], **settings)


def test_a_mapping_survives_its_json() -> None:
    mapping = ColumnMapping("tokens", {"input_ids": "a"}, token_columns=("logprobs",))
    assert ColumnMapping.from_json(json.loads(json.dumps(mapping.to_json()))) == mapping
    assert "token_columns" not in ColumnMapping("text", {"text": "a"}).to_json()
