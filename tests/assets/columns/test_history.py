"""Earlier turns beside a prompt and an answer: the messages that LLaMA-Factory makes of them, for any rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canonical_tables import CHATML
from support.columns_stage import MAYBE, TEXT, Row, as_json, canonical, codes, kept, mapped, table_of
from support.small_tokenizers import CONTROL, byte_level
from tokenloom.assets.building.build import Build
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import ColumnMapping
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

ROLES = {"prompt": "instruction", "context": "input", "completion": "output", "system": "system", "history": "history"}
TURNS = st.one_of(st.none(), st.lists(st.tuples(TEXT, TEXT).map(list), max_size=3))
ROW_OF_ALPACA = st.fixed_dictionaries(
    {"instruction": TEXT, "input": MAYBE, "output": MAYBE, "system": MAYBE, "history": TURNS}
)


def spoken(row: Row) -> list[tuple[str, str]]:
    """Return a row as LLaMA-Factory's AlpacaDatasetConverter reads it, with this project's blank line."""
    system = [("system", row["system"])] if (row["system"] or "").strip() else []
    earlier = [pair for asked, said in row["history"] or [] for pair in (("user", asked), ("assistant", said))]
    question = row["instruction"] + (f"\n\n{row['input']}" if row["input"] else "")
    return [*system, *earlier, ("user", question), ("assistant", row["output"])]


def said(messages: list[Row]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


@given(st.lists(ROW_OF_ALPACA, min_size=1, max_size=6))
def test_history_becomes_earlier_turns_in_typed_and_json_columns(rows: list[Row]) -> None:
    columns = dict.fromkeys(ROLES.values(), pa.string()) | {"history": pa.list_(pa.list_(pa.string()))}
    expected = [spoken(row) for row in rows if (row["output"] or "").strip()]
    for table in (pa.Table.from_pylist(rows, pa.schema(columns)), as_json(*rows)):
        out = canonical(table, **mapped(ROLES))
        assert [said(row["messages"]) for row in kept(out)] == expected
        assert set(codes(out).values()) <= {"empty_answer"}


UNFIT = [["only one"], [["a"]], [["a", "b", "c"]], [["a", None]], [["a", ["b"]]], "text", 3, {"a": "b"}]


@pytest.mark.parametrize("history", UNFIT, ids=json.dumps)
def test_what_is_not_a_turn_is_rejected_alone(history: Any) -> None:
    good = {"prompt": "q", "completion": "a", "history": [["x", "y"]]}
    table = table_of(as_json(good, {**good, "history": history}, {**good, "history": []}))
    out = to_canonical(table, ColumnMapping("messages", {name: name for name in good}))
    assert [said(row["messages"])[:-2] for row in kept(out)] == [[("user", "x"), ("assistant", "y")], []]
    assert out.rejects["code"].to_pylist() == ["not_turns"]


def test_history_of_messages_keeps_their_weights() -> None:
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "train": False}]
    rows = as_json(*({"prompt": "q", "completion": "a", "history": turns} for turns in (history, [["v", "w"]], None)))
    first, second, third = kept(canonical(rows))
    assert said(first["messages"])[:2] == [("user", "x"), ("assistant", "y")]
    assert [message["weight"] for message in first["messages"]] == [None, 0.0, None, None]
    assert said(second["messages"])[:2] == [("user", "v"), ("assistant", "w")]
    assert said(third["messages"]) == [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize("form", ["preference", "kto", "prompt_only"])
def test_history_is_part_of_the_prompt_of_rated_answers(form: str) -> None:
    row: Row = {"prompt": "q", "history": [["x", "y"]], "system": "s"}
    row |= {"preference": {"chosen": "a", "rejected": "b"}, "kto": {"completion": "a", "label": True}}.get(form, {})
    (out,) = kept(canonical(as_json(row), form=form))
    assert said(out["prompt"]) == [("system", "s"), ("user", "x"), ("assistant", "y"), ("user", "q")]


def built(folder: Path, rows: list[Row], **sections: Any) -> list[Row]:
    """Return the rendered rows of a JSONL file."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not (folder / "tokenizer.json").exists():
        byte_level(CONTROL).save(str(folder / "tokenizer.json"))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    dataset = {"name": str(folder / "rows.jsonl"), **sections.pop("dataset", {})}
    tokenizer = {"name_or_path": str(folder), **sections.pop("tokenizer", {"chat_template": CHATML})}
    config = PipelineConfig.from_mapping({"dataset": dataset, "tokenizer": tokenizer, **sections})
    build = Build(config, ArtifactStore(folder / "store"))
    for stage in ("raw", "schema", "columns", "prompts"):
        build.run(stage)
    return [
        row for chunk in build.manifest("prompts").chunks for row in build.store.objects.get(chunk.output).to_pylist()
    ]


def trained(row: Row) -> list[str]:
    """Return the trained parts of a text."""
    parts, data = [""], row["text"].encode()
    for span in row["spans"]:
        parts = (
            [*parts[:-1], parts[-1] + data[span["start"] : span["end"]].decode()] if span["weight"] else [*parts, ""]
        )
    return [part for part in parts if part]


ROWS = [
    {
        "instruction": f"What is {n} plus 1, and why?",
        "input": "",
        "output": f"It is {n + 1}, of course.",
        "history": [[f"Hello {n}", "Hi."]] * (n % 3),
    }
    for n in range(12)
]


def test_every_answer_is_trained_unless_only_the_last_is_asked_for(tmp_path: Path) -> None:
    template = jinja2.Template(CHATML)
    for settings, all_turns in (({}, True), ({"prompt_template": {"train_on": "last"}}, False)):
        for row, found in zip(ROWS, built(tmp_path, ROWS, **settings), strict=True):
            messages = spoken({**row, "system": None})
            assert found["text"] == template.render(messages=[{"role": r, "content": c} for r, c in messages])
            answers = [f"{content}<|im_end|>" for role, content in messages if role == "assistant"]
            assert trained(found) == (answers if all_turns else answers[-1:])


def test_a_row_without_history_is_rendered_as_without_the_column(tmp_path: Path) -> None:
    short = [{name: value for name, value in row.items() if name != "history"} for row in ROWS]
    with_column, without = built(tmp_path, ROWS), built(tmp_path, short)
    for row, one, other in zip(ROWS, with_column, without, strict=True):
        if not row["history"]:
            assert (one["text"], trained(one)) == (other["text"], trained(other))
    empty = [{**row, "history": []} for row in short]
    assert built(tmp_path, empty) == without


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer": {}}, "no chat template; .*, or omit history with dataset.columns"),
        ({"prompt_template": {"format_type": "completion"}}, "earlier turns, which need a chat template"),
    ],
)
def test_history_without_a_chat_template_is_an_error(tmp_path: Path, settings: Row, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, ROWS, **settings)


def test_history_beside_messages_or_that_is_text_is_an_error(tmp_path: Path) -> None:
    roles = {"prompt": "p", "completion": "c", "history": "h"}
    talk = [{"role": "user", "content": "q"}]
    for row, message in (
        ({"p": talk, "c": "a", "h": [["x", "y"]]}, "history is added to texts, but prompt holds messages"),
        ({"p": "q", "c": "a", "h": "x"}, r"column h is string; history needs a list of \[question, answer\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            built(tmp_path, [row] * 3, dataset={"column_mapping": roles})
