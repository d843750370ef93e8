"""Tool calls and weights of messages: trained exactly as the data declares, rejected if that is ambiguous."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import (
    CHATML,
    TOOLS,
    Row,
    build_canonical,
    call,
    chatml,
    config_of,
    field_of,
    prompts_of,
    said,
    table_of,
    weighted_parts,
)
from tokenloom.assets.columns.message_objects import shared_columns
from tokenloom.assets.columns.source_expressions import RowReader, parse_source
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.resources.store import ArtifactStore

WEATHER = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {"é": ["city"]}}}])


def render(folder: Path, rows: list[Row], template: str = TOOLS, **prompt: Any) -> ChunkOutput:
    return prompts_of("messages", table_of("messages", rows), config_of(folder, {"add_eos": False, **prompt}, template))


def written(messages: list[Row], tools: str = "") -> str:
    """Render a conversation as the template `TOOLS` does, without Jinja."""
    text = f"<|im_start|>tools\n{json.dumps(json.loads(tools), ensure_ascii=False)}<|im_end|>\n" if tools else ""
    for found in messages:
        name = field_of(found, "name")
        speaker = found["role"] + (f" {name}" if name else "")
        text += f"<|im_start|>{speaker}\n{found['content']}{calls_of(found)}<|im_end|>\n"
    return text


def calls_of(message: Row) -> str:
    functions = [found["function"] for found in field_of(message, "tool_calls") or []]
    return "".join(f"<call>{json.dumps(function, ensure_ascii=False)}</call>" for function in functions)


words = st.text(st.sampled_from("ab é你\n\"\\{}'"), max_size=8).map(str.strip)
arguments = st.one_of(
    st.dictionaries(words, st.one_of(words, st.integers(), st.none(), st.lists(st.integers()))),
    st.sampled_from([None, "", "not json", [1, 1.0], '"text"', {"b": {}, "a": 2**64}]),
)
calls = st.lists(st.builds(call, words, arguments, st.one_of(st.none(), words)), min_size=1, max_size=2)
weights = st.sampled_from([None, None, 0.0, 0.5, 1.0, 2.0])
message = st.one_of(
    st.builds(lambda text, name, weight: said("user", text, name=name, weight=weight), words, st.none(), weights),
    st.builds(lambda text, name: said("tool", text, name=name), words, st.sampled_from([None, "weather"])),
    st.builds(lambda text, weight: said("assistant", text, weight=weight), words, weights),
    st.builds(
        lambda text, found, weight: said("assistant", text, tool_calls=found, weight=weight), words, calls, weights
    ),
    st.builds(lambda text: said("assistant", text, tool_calls=[]), words),
)
ROWS = st.lists(
    st.builds(
        lambda messages, tools: {"messages": messages, "tools": tools},
        st.lists(message, min_size=1, max_size=5),
        st.sampled_from(["", WEATHER]),
    ),
    max_size=6,
)


@example(
    rows=[{"messages": [said("assistant", "", tool_calls=[call("f", "not json", None)], weight=None)], "tools": ""}]
)
@given(rows=ROWS)
def test_answers_have_the_weights_of_their_messages(tokenizer_folder: Path, rows: list[Row]) -> None:
    out = render(tokenizer_folder, rows)
    assert (out.table[ROW].to_pylist(), out.rejects.num_rows) == (list(range(len(rows))), 0)
    for row, result in zip(rows, out.table.to_pylist(), strict=True):
        assert result["text"] == written(row["messages"], row["tools"])
        expected = []
        for found in row["messages"]:
            weight = 1.0 if found["weight"] is None else found["weight"]
            if weight and found["role"] == "assistant":
                expected.append((found["content"] + calls_of(found) + "<|im_end|>", weight))
        assert weighted_parts(result["text"], result["spans"]) == expected


@given(
    rows=st.lists(
        st.lists(st.tuples(st.sampled_from(["user", "assistant"]), weights), min_size=1, max_size=4), max_size=5
    ),
    train_on=st.sampled_from(["completions", "last", "all", ["user"]]),
)
def test_weights_take_precedence_over_train_on(tokenizer_folder: Path, rows: list[Any], train_on: Any) -> None:
    talks = [[said(role, f"m{i}", weight=weight) for i, (role, weight) in enumerate(row)] for row in rows]
    out = render(tokenizer_folder, [{"messages": talk} for talk in talks], CHATML, train_on=train_on)
    assert out.table.num_rows == len(rows)
    for talk, result in zip(talks, out.table.to_pylist(), strict=True):
        assert result["text"] == chatml(talk)
        answers = [index for index, found in enumerate(talk) if found["role"] == "assistant"]
        bytes_of, at = np.zeros(len(result["text"])), 0
        for index, found in enumerate(talk):
            default = {
                "completions": found["role"] == "assistant",
                "last": answers[-1:] == [index],
                "all": True,
            }.get(str(train_on), found["role"] == "user")
            head = len(f"<|im_start|>{found['role']}\n")
            body = len(f"{found['content']}<|im_end|>")
            bytes_of[at : at + head] = bytes_of[at + head + body] = train_on == "all"
            heeded = found["role"] == "assistant" or train_on in ("all", ["user"]) or found["weight"] == 0
            own = found["weight"] if heeded else None
            bytes_of[at + head : at + head + body] = default if own is None else own
            at += head + body + 1
        spans = result["spans"]
        assert np.repeat([s["weight"] for s in spans], [s["end"] - s["start"] for s in spans]).tolist() == list(
            bytes_of
        )


CALLED = [said("user", "q"), said("assistant", tool_calls=[call("f", {"a": 1})]), said("tool", "1")]
CALLED_MASKED = [CALLED[0], {**CALLED[1], "weight": 0.0}, CALLED[2], said("assistant", "ok")]
RENDERS = TOOLS.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@pytest.mark.parametrize(
    ("template", "messages", "train_on", "code"),
    [
        (TOOLS, CALLED, "completions", None),
        (RENDERS, CALLED, "completions", "tool_calls"),
        (TOOLS, CALLED, ["assistant"], "tool_calls"),
        (RENDERS, CALLED, ["user"], None),
        (RENDERS, CALLED, "all", None),
        (RENDERS, CALLED_MASKED, "completions", None),
        (RENDERS, CALLED_MASKED, "all", "tool_calls"),
        (RENDERS, [*CALLED, said("assistant", "ok")], "last", None),
        (CHATML, CALLED_MASKED, "completions", "tool_calls_ignored"),
        (TOOLS.replace("m.tool_calls or []", "[]"), CALLED, "completions", "tool_calls_ignored"),
        (TOOLS, [CALLED[0], said("assistant", tool_calls=[call("f", {"a": "<|im_end|>"})])], "completions",
         "control_token_in_content"),
        (TOOLS, [said("user", "q", name="</s>"), said("assistant", "a")], "completions", "control_token_in_content"),
    ],
)  # fmt: skip
def test_tool_calls_are_rendered_or_their_row_is_rejected(
    tokenizer_folder: Path, template: str, messages: list[Row], train_on: Any, code: str | None
) -> None:
    plain = [said("user", "u"), said("assistant", "v")]
    out = render(tokenizer_folder, [{"messages": messages}, {"messages": plain}], template, train_on=train_on)
    assert out.rejects["code"].to_pylist() == ([code] if code else [])
    assert out.table[ROW].to_pylist() == ([1] if code else [0, 1])


def test_tools_that_are_not_json_or_contain_control_tokens_are_rejected(tokenizer_folder: Path) -> None:
    plain = [said("user", "u"), said("assistant", "v")]
    rows = [{"messages": plain, "tools": tools} for tools in ("{", '["<|im_end|>"]', '["fine"]', "")]
    out = render(tokenizer_folder, rows)
    assert out.rejects["code"].to_pylist() == ["tools_not_json", "control_token_in_content"]
    assert out.table[ROW].to_pylist() == [2, 3]


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        ("tools", '[{"name": "', '"}]'),
        ("tools", r'["{\"name\": \"', r'\"}"]'),
        ("template_kwargs", '{"x": "', '"}'),
    ],
)
def test_json_that_utf8_cannot_represent_is_rejected(role: str, before: str, after: str) -> None:
    texts = [f"{before}{text}{after}" for text in (r"\ud83d\ude00", r"\ud83d", "a", r"\ude00\ud83d")]
    rows = RowReader(pa.table({"given": texts}), {role: parse_source("given")})
    assert [text != "" for text in shared_columns(rows)[role].to_pylist()] == [True, False, True, False]
    assert np.any([problem.flags for problem in rows.problems], axis=0).tolist() == [False, True, False, True]


def test_weights_that_do_not_match_generation_blocks_are_rejected(tokenizer_folder: Path) -> None:
    """The template renders an answer without text outside its generation blocks."""
    template = TOOLS.replace("m.role == 'assistant'", "m.role == 'assistant' and not m.tool_calls")
    template = template.replace("{{ m.content + '<|im_end|>' }}", "{{ m.content ~ m.tool_calls ~ '<|im_end|>' }}")
    calls_tool = said("assistant", tool_calls=[call("f", {})])
    talks = [[said("user", "q"), calls_tool, {**said("assistant", "a"), "weight": weight}] for weight in (None, 0.5)]
    both = [calls_tool, said("user", "q"), said("assistant", weight=0.5)]
    out = render(tokenizer_folder, [{"messages": talk} for talk in [*talks, both]], template)
    assert out.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 2, "code": "generation_marks"}]
    parts = [weighted_parts(result["text"], result["spans"]) for result in out.table.to_pylist()]
    assert parts == [[("a<|im_end|>", 1.0)], [("a<|im_end|>", 0.5)]]


def test_tool_calls_are_rendered_as_by_transformers(tokenizer_folder: Path, real_data: Path) -> None:
    template = (real_data / "chat_templates" / "qwen2_5_training.jinja").read_text()
    reference = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder / "tokenizer.json"))
    talk = [said("user", "Weather?"), said("assistant", tool_calls=[call("weather", {"é": [1.5, "x<"]}, "7")])]
    talk += [said("tool", "sunny"), said("tool", "warm"), said("assistant", "It is sunny.")]
    out = render(tokenizer_folder, [{"messages": talk, "tools": WEATHER}], template)
    (result,) = out.table.to_pylist()
    function = {"name": "weather", "arguments": {"é": [1.5, "x<"]}}
    as_read = [{"role": found["role"], "content": found["content"]} for found in talk]
    as_read[1]["tool_calls"] = [{"id": "7", "type": "function", "function": function}]
    assert result["text"] == reference.apply_chat_template(
        as_read, tools=json.loads(WEATHER), tokenize=False, chat_template=template
    )
    assert weighted_parts(result["text"], result["spans"]) == [
        ('\n<tool_call>\n{"name": "weather", "arguments": {"é": [1.5, "x<"]}}\n</tool_call><|im_end|>\n', 1.0),
        ("\nIt is sunny.<|im_end|>\n", 1.0),
    ]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("packing", ["none", "concat"])
def test_batches_have_weights_if_any_differs_from_1(
    tokenizer_folder: Path, tmp_path: Path, packing: str, side: Any
) -> None:
    plain = [[said("user", "q"), said("assistant", f"answer {number}")] for number in range(5)]
    odd = [[said("user", "q", weight=0.25), said("assistant", "aa", weight=0.5), said("assistant", "b", weight=0.0)]]
    tables = [table_of("messages", [{"messages": talk} for talk in talks]) for talks in (plain, odd * 2)]
    settings = {"length": {"packing": packing}, "tokenizer": {"max_length": 24}}
    config = config_of(tokenizer_folder, {"train_on": "all"}, **settings)
    build, _ = build_canonical(config, ArtifactStore(tmp_path), "messages", tables)
    chunks = [build.store.objects.get(chunk.output) for chunk in build.manifest("sequences").chunks]
    assert ["weights" in chunk.column_names for chunk in chunks] == [False, True]
    dataset = open_dataset(build.name, store=tmp_path)
    for batch in TokenLoader(dataset, batch_size=3, padding_side=side):
        assert batch["loss_weights"].shape == batch["labels"].shape
        assert str(batch["loss_weights"].dtype) == "torch.float32"
        assert ((batch["loss_weights"] != 0) == (batch["labels"] != -100)).all()
    odd_rows = [dataset[row] for row in range(chunks[0].num_rows, len(dataset))]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder / "tokenizer.json"))
    counted = [
        str(tokenizer.decode(row["input_ids"][row["loss_weights"] == weight]))
        for weight in (0.25, 0.5, 1.0)
        for row in odd_rows
    ]
    total = "".join(counted)
    assert (total.count("q<|im_end|>"), total.count("aa<|im_end|>"), total.count("b")) == (2, 2, 0)
    single, _ = build_canonical(config, ArtifactStore(tmp_path / "plain"), "messages", tables[:1])
    batch = next(iter(TokenLoader(open_dataset(single.name, store=tmp_path / "plain"), batch_size=3)))
    assert "loss_weights" not in batch
