"""What flags, weights, parts and ranges declare is what is trained: of a row, a message, a part, and within a text.

Expected masks are written by hand, from what axolotl, ms-swift and LLaMA-Factory document; other names mean what they
say. Each goes through a whole build; what is trained is decoded from the labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.built_prompts import built
from support.columns_stage import as_json, config_of, described, mapped
from support.soak import each
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.columns.unused import weight_questions
from tokenloom.cli.main import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, DataValidationError
from tokenloom.loaders import PreprocessedDataset, TokenLoader, open_dataset

Row = dict[str, Any]
Trained = list[tuple[str, float]]

CONTROL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "<pad>",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
THINKING = Path(__file__).parent.parent / "support/chat_templates/thinking.jinja"
TEMPLATES = {"chatml": (CHATML, "<|im_end|>"), "headers": (HEADERS, "<|eot_id|>"), "marked": (MARKED, "<|im_end|>")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token per byte, so that each mask is exact."""
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    path = tmp_path_factory.mktemp("bytes")
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(path)
    return path


def write_lines(path: Path, rows: list[Row]) -> Path:
    path = path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_structs(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path / "rows.parquet")
    return path / "rows.parquet"


def write_json_text(path: Path, rows: list[Row]) -> Path:
    """Conversations as JSON text in a column of strings."""
    return write_lines(path, [{"messages": json.dumps(row["messages"], ensure_ascii=False)} for row in rows])


WRITERS: dict[str, Callable[[Path, list[Row]], Path]] = {
    "objects": write_lines,
    "structs": write_structs,
    "texts": write_json_text,
}


def build_of(path: Path, folder: Path, template: str = CHATML, /, **sections: Any) -> Build:
    tokenizer = {"name_or_path": str(folder), "max_length": 512, "chat_template": template}
    sections = {"prompt_template": {"format_type": "chat"}, **sections}
    return built(
        path, path.parent / f"store{len(list(path.parent.iterdir()))}", "sequences", tokenizer=tokenizer, **sections
    )


def runs(build: Build, folder: Path, side: str = "") -> dict[int, Trained]:
    """The trained text of each row, each run of one weight with it."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    found: dict[int, Trained] = {}
    for chunk in build.manifest("sequences").chunks:
        for row in build.store.objects.get(chunk.output).to_pylist():
            ids, trained = row[f"{side}input_ids"], np.array(row[f"{side}trained"], float)
            weights = trained * np.array(row.get(f"{side}weights") or np.ones(len(ids)))
            pairs = groupby(zip(ids, weights.tolist(), strict=True), key=lambda pair: pair[1])
            said = [
                (tokenizer.decode([token for token, _ in some]), round(weight, 4)) for weight, some in pairs if weight
            ]
            found[row["rows"][0]] = said
    return found


def codes(build: Build) -> dict[int, str]:
    tables = (
        build.store.objects.get(chunk.rejects)
        for stage in ("columns", "prompts", "sequences")
        for chunk in build.manifest(stage).chunks
        if chunk.rejects
    )
    return {row["_row"]: row["code"] for table in tables for row in table.to_pylist()}


def asked(text: str = "q", **fields: Any) -> Row:
    return {"role": "user", "content": text, **fields}


def said(text: Any = "a", **fields: Any) -> Row:
    return {"role": "assistant", "content": text, **fields}


def spans(*bounds: tuple[int, int, Any]) -> list[Row]:
    return [{"begin_offset": begin, "end_offset": end, "train": train} for begin, end, train in bounds]


MESSAGES: dict[str, tuple[Row, float | str]] = {
    "openai weight 0": ({"weight": 0}, 0.0),
    "openai weight 1": ({"weight": 1}, 1.0),
    "mistral weight 0.0": ({"weight": 0.0}, 0.0),
    "weight 0.25": ({"weight": 0.25}, 0.25),
    "weight as text": ({"weight": "0.5"}, 0.5),
    "llama-factory loss_weight": ({"loss_weight": 0.5}, 0.5),
    "axolotl train": ({"train": False}, 0.0),
    "axolotl train true": ({"train": True}, 1.0),
    "axolotl training": ({"training": False}, 0.0),
    "train as text": ({"train": "False"}, 0.0),
    "trainable": ({"trainable": False}, 0.0),
    "is_trained": ({"is_trained": 0}, 0.0),
    "swift loss": ({"loss": False}, 0.0),
    "swift loss_scale": ({"loss_scale": 2.0}, 2.0),
    "swift loss_scale 0": ({"loss_scale": 0.0}, 0.0),
    "swift loss and loss_scale": ({"loss": True, "loss_scale": 0.5}, 0.5),
    "loss_mask 0": ({"loss_mask": 0}, 0.0),
    "loss_mask 1": ({"loss_mask": 1}, 1.0),
    "slime step_loss_mask": ({"step_loss_mask": 0}, 0.0),
    "xtuner output_with_loss": ({"output_with_loss": False}, 0.0),
    "torchtune masked": ({"masked": True}, 0.0),
    "torchtune masked false": ({"masked": False}, 1.0),
    "camel case": ({"lossWeight": 0.5}, 0.5),
    "agreeing flags": ({"train": True, "weight": 1, "masked": False}, 1.0),
    "null": ({"weight": None, "train": None}, 1.0),
    "contradiction": ({"train": True, "weight": 0}, "invalid_weight"),
    "contradiction by masked": ({"train": True, "masked": True}, "invalid_weight"),
    "two numbers": ({"weight": 0.5, "loss_scale": 2.0}, "invalid_weight"),
    "a word": ({"train": "yes"}, "invalid_weight"),
    "a list": ({"loss_mask": [0, 1]}, "invalid_weight"),
    "negative": ({"weight": -1}, "invalid_weight"),
    "not finite": ({"weight": "inf"}, "invalid_weight"),
    "too large": ({"weight": 1e30}, "invalid_weight"),
    "a flag that is a number": ({"loss": 2.31}, "invalid_weight"),
    "of two senses": ({"mask": True}, "invalid_weight"),
    "ignore": ({"ignore": True}, "invalid_weight"),
}


@pytest.mark.parametrize(("writer", "template"), each(WRITERS, TEMPLATES))
def test_flags_of_messages(writer: str, template: str, tmp_path: Path, folder: Path) -> None:
    """The second of two answers has the flags; the first, and a row without any, are trained as ever."""
    text, stop = TEMPLATES[template]
    cases = list(MESSAGES.values())
    if writer == "structs":  # a column of a struct has one type
        cases = [case for case in cases if not any(isinstance(value, str | list) for value in case[0].values())]
    rows = [{"messages": [asked(), said("A1"), asked(), said("A2", **flags)]} for flags, _ in cases]
    rows.append({"messages": [asked(), said("A1"), asked(), said("A2")]})
    build = build_of(WRITERS[writer](tmp_path, rows), folder, text)
    expected: dict[int, Trained] = {}
    for number, weight in enumerate([*(weight for _, weight in cases), 1.0]):
        if isinstance(weight, float):
            second = [(f"A2{stop}", weight)] * bool(weight)
            expected[number] = [(f"A1{stop}", 1.0), *second]
    assert runs(build, folder) == expected
    assert codes(build) == {n: weight for n, (_, weight) in enumerate(cases) if isinstance(weight, str)}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("train_on", "trained"),
    [("completions", ["A"]), ("last", ["A"]), (["assistant", "user"], ["U", "A"]), (["assistant", "tool"], ["T", "A"])],
)
def test_weights_of_other_roles_do_nothing_unless_train_on_names_them(
    train_on: Any, trained: list[str], template: str, tmp_path: Path, folder: Path
) -> None:
    if template == "marked" and isinstance(train_on, list):
        pytest.skip("marks decide only with completions and last")
    turns = [{"role": "system", "content": "S"}, asked("U"), {"role": "tool", "content": "T"}, said("A")]
    path = write_lines(tmp_path, [{"messages": [{**turn, "weight": 1} for turn in turns]}] * 2)
    text, stop = TEMPLATES[template]
    build = build_of(path, folder, text, prompt_template={"format_type": "chat", "train_on": train_on})
    expected = "".join(f"{letter}{stop}" for letter in trained)
    assert ["".join(said for said, _ in row) for row in runs(build, folder).values()] == [expected] * 2
    (notice,) = [text for report in build.run_all() for text in report.notices if "not trained, so" in text]
    assert notice.startswith(f"{2 * (4 - len(trained))} messages have a weight above 0")


def test_parts_of_other_roles_do_nothing_unless_train_on_names_them(tmp_path: Path, folder: Path) -> None:
    parts = [part("a", train=True), part("b", train=False)]
    talk = [{"role": "user", "content": parts}, {"role": "tool", "content": parts}, said("c")]
    path = write_lines(tmp_path, [{"messages": talk}])
    template = CHATML.replace(
        "m.content", "(m.content if m.content is string else m.content | map(attribute='text') | join)"
    )
    build = build_of(path, folder, template)
    assert runs(build, folder) == {0: [("c<|im_end|>", 1.0)]}
    assert any(text.startswith("2 messages have") for report in build.run_all() for text in report.notices)
    single = [{"role": "user", "content": [part("a", weight=0.5)]}, said("c")]
    (tmp_path / "both").mkdir()
    both = {"format_type": "chat", "train_on": ["user", "assistant"]}
    build = build_of(write_lines(tmp_path / "both", [{"messages": single}]), folder, template, prompt_template=both)
    assert runs(build, folder) == {0: [("a", 0.5), ("<|im_end|>", 1.0), ("c<|im_end|>", 1.0)]}


def test_a_weight_of_zero_holds_for_every_role(tmp_path: Path, folder: Path) -> None:
    path = write_lines(tmp_path, [{"messages": [asked("U", train=False), said("A"), asked("V"), said("B", weight=0)]}])
    build = build_of(path, folder, prompt_template={"format_type": "chat", "train_on": ["user", "assistant"]})
    assert runs(build, folder) == {0: [("A<|im_end|>", 1.0), ("V<|im_end|>", 1.0)]}


def test_rows_whose_flags_leave_nothing_to_train_are_filtered(tmp_path: Path, folder: Path) -> None:
    rows = [{"messages": [asked(), said("A", **flag)]} for flag in ({}, {"train": False}, {"weight": 0})]
    build = build_of(write_lines(tmp_path, rows), folder)
    assert runs(build, folder) == {0: [("A<|im_end|>", 1.0)]}
    assert (codes(build), build.manifest("prompts").total("filtered")) == ({}, 2)


def part(text: str, **flags: Any) -> Row:
    return {"type": "text", "text": text, **flags}


PARTS: dict[str, tuple[list[Row], Trained | str]] = {
    "axolotl's example": (
        [part("Let me think step by step...", train=False), part(" The answer is 4.", train=True)],
        [(" The answer is 4.⏹", 1.0)],
    ),
    "weight": ([part("no", weight=0), part(" yes", weight=1)], [(" yes⏹", 1.0)]),
    "a part without a flag inherits": (
        [part("one"), part(" two", train=False), part(" 3")],
        [("one", 1.0), (" 3⏹", 1.0)],
    ),
    "numbers": ([part("half", weight=0.5), part(" twice", weight=2)], [("half", 0.5), (" twice", 2.0), ("⏹", 1.0)]),
    "masked": ([part("x", masked=True), part("y")], [("y⏹", 1.0)]),
    "the last is masked": ([part("x"), part("y", train=False)], [("x", 1.0), ("⏹", 1.0)]),
    "letters of several bytes": (
        [part("é你", train=False), part("👍"), part("ü", train=False)],
        [("👍", 1.0), ("⏹", 1.0)],
    ),
    "an empty part": ([part("", train=False), part("y")], [("y⏹", 1.0)]),
    "all masked": ([part("x", train=False), part("y", train=False)], "filtered"),
    "no flags": ([part("x"), part("y")], [("xy⏹", 1.0)]),
    "white space that a template trims": ([part("  no", train=False), part(" yes  ", train=True)], [(" yes  ⏹", 1.0)]),
    "parts of white space that a template trims": (
        [part("half", weight=0.5), part(" " * 40, train=False), part("  ")],
        [("half", 0.5), ("  ⏹", 1.0)],
    ),
    "a contradiction": ([part("x", train=False, weight=1)], "invalid_weight"),
    "not understood": ([part("x", train="maybe"), part("y")], "invalid_weight"),
}


@pytest.mark.parametrize("template", ["chatml", "headers"])
@pytest.mark.parametrize("writer", ["objects", "texts"])
def test_flags_of_parts(writer: str, template: str, tmp_path: Path, folder: Path) -> None:
    rows = [{"messages": [asked("Hi"), said(parts)]} for parts, _ in PARTS.values()]
    text, stop = TEMPLATES[template]
    build = build_of(WRITERS[writer](tmp_path, rows), folder, text)
    expected, rejected = {}, {}
    for number, (_, wanted) in enumerate(PARTS.values()):
        if isinstance(wanted, str):
            rejected |= {number: wanted} if wanted != "filtered" else {}
        else:
            trim = template == "headers"
            expected[number] = [(s.replace("  ⏹", "⏹" if trim else "  ⏹").replace("⏹", stop), w) for s, w in wanted]
    assert runs(build, folder) == expected
    assert codes(build) == rejected


def test_flags_of_parts_in_structs(tmp_path: Path, folder: Path) -> None:
    rows = [
        {
            "messages": [
                said([part("Q", train=None)]) | {"role": "user"},
                said([part("a", train=False), part("b", train=True)]),
            ]
        }
    ]
    build = build_of(write_structs(tmp_path, rows), folder)
    assert runs(build, folder) == {0: [("b<|im_end|>", 1.0)]}


def test_parts_times_the_messages_own_weight(tmp_path: Path, folder: Path) -> None:
    parts = [part("a", train=False), part("b", weight=2), part("c")]
    flags: list[Row] = [{"weight": 0.5}, {"train": False}, {}]
    rows = [{"messages": [asked(), said(parts, **flag), asked(), said("d")]} for flag in flags]
    assert runs(build_of(write_lines(tmp_path, rows), folder), folder) == {
        0: [("b", 1.0), ("c<|im_end|>", 0.5), ("d<|im_end|>", 1.0)],
        1: [("d<|im_end|>", 1.0)],
        2: [("b", 2.0), ("c<|im_end|>", 1.0), ("d<|im_end|>", 1.0)],
    }


def test_parts_of_reasoning_and_of_messages_that_train_on_does_not_include(tmp_path: Path, folder: Path) -> None:
    """axolotl's example of `reasoning_content` as parts; and with `last`, a part of an earlier answer."""
    thought = [part("Hmm maybe 2+2=5.", train=False), part(" Wait no, 2+2=4.", train=True)]
    row = {"messages": [asked(), said([part("The answer is 4.", train=True)], reasoning_content=thought)]}
    (found,) = runs(build_of(write_lines(tmp_path, [row]), folder, THINKING.read_text()), folder).values()
    assert "Hmm" not in "".join(text for text, _ in found)
    assert [text for text, _ in found][-1] == " Wait no, 2+2=4.\n</think>\n\nThe answer is 4.<|im_end|>"
    rows = [{"messages": [asked(), said([part("a"), part("b", train=True)]), asked("Q"), said("c")]}]
    (tmp_path / "last").mkdir()
    build = build_of(
        write_lines(tmp_path / "last", rows), folder, prompt_template={"format_type": "chat", "train_on": "last"}
    )
    assert runs(build, folder) == {0: [("b<|im_end|>", 1.0), ("c<|im_end|>", 1.0)]}


MIXED: dict[str, tuple[Row, str]] = {
    "reasoning is masked": (said([{"type": "thinking", "thinking": "deep", "train": False}, part("yes")]), "yes⏹"),
    "content is masked": (said([part("no", train=False)], reasoning_content="deep"), "deep⏹"),
    "ranges mask all else": (said("abc", reasoning_content="deep", train_detail=spans((1, 1, True))), "b⏹"),
    "a part of reasoning": (
        said("yes", reasoning_content=[part("a", train=False), part("b"), part(" \n", train=False)]),
        "byes⏹",
    ),
}
"""An answer with reasoning; and its trained text, without white space and tags."""


@pytest.mark.parametrize("train_on", ["completions", "last"])
@pytest.mark.parametrize("case", MIXED)
def test_weights_of_reasoning_and_content_do_not_spill(case: str, train_on: str, tmp_path: Path, folder: Path) -> None:
    """With `last`, an earlier answer is trained only where a flag says so; ranges do."""
    message, trained = MIXED[case]
    talks = [[asked(), message], [asked(), message, asked(), said("end")], [asked(), said("x", train_detail=None)]]
    prompt = {"format_type": "chat", "train_ranges": "train_detail", "train_on": train_on}
    template = THINKING.read_text().replace("loop.index0 > asked.last and ", "")
    path = write_lines(tmp_path, [{"messages": talk} for talk in talks])
    build = build_of(path, folder, template, prompt_template=prompt)
    found = {
        row: re.sub(r"</?think>|\n", "", "".join(text for text, _ in parts))
        for row, parts in runs(build, folder).items()
    }
    once = trained.replace("⏹", "<|im_end|>")
    assert found[0] == once
    assert found[1] == once * (train_on == "completions" or "train_detail" in message) + "end<|im_end|>"


def test_reasoning_inside_a_content_of_parts(tmp_path: Path, folder: Path) -> None:
    """A template that takes `<think>` apart still gets the parts' weights where it writes their text."""
    parts = [part("<think>\nbad", train=False), part(" good\n</think>\n\nyes", train=True), part(" no", train=False)]
    build = build_of(write_lines(tmp_path, [{"messages": [asked(), said(parts)]}]), folder, THINKING.read_text())
    (found,) = runs(build, folder).values()
    text = "".join(text for text, _ in found)
    assert "bad" not in text and " no" not in text and " good\n</think>\n\nyes" in text


WELL = "I'm doing very well, thank you!"
RANGES: dict[str, tuple[str, Any, Trained | str]] = {
    "axolotl's example": (
        WELL,
        spans((0, 8, False), (9, 18, True), (19, 30, False)),
        [(" very well", 1.0), ("⏹", 1.0)],
    ),
    "gaps are masked": (WELL, spans((4, 8, True)), [("doing", 1.0), ("⏹", 1.0)]),
    "in any order": (WELL, spans((21, 25, True), (0, 2, True)), [("I'm", 1.0), ("thank", 1.0), ("⏹", 1.0)]),
    "characters, not bytes": ("é你👍ü", spans((1, 2, True)), [("你👍", 1.0), ("⏹", 1.0)]),
    "the end": ("abc", spans((1, 2, True)), [("bc⏹", 1.0)]),
    "none trained": ("abc", spans((0, 2, False)), "filtered"),
    "an empty list": ("abc", [], "filtered"),
    "null": ("abc", None, [("abc⏹", 1.0)]),
    "past the end": ("abc", spans((0, 3, True)), "invalid_ranges"),
    "negative": ("abc", spans((-1, 1, True)), "invalid_ranges"),
    "the wrong way round": ("abc", spans((2, 1, True)), "invalid_ranges"),
    "overlapping": ("abc", spans((0, 1, True), (1, 2, False)), "invalid_ranges"),
    "without a flag": ("abc", [{"begin_offset": 0, "end_offset": 1}], "invalid_ranges"),
    "not numbers": ("abc", [{"begin_offset": "0", "end_offset": 1, "train": True}], "invalid_ranges"),
    "not a list": ("abc", {"begin_offset": 0}, "invalid_ranges"),
    "another key": ("abc", [{"begin_offset": 0, "end_offset": 1, "train": True, "why": "x"}], "invalid_ranges"),
}


@pytest.mark.parametrize(("name", "template"), each(["train_detail", "marks"], TEMPLATES))
def test_ranges(name: str, template: str, tmp_path: Path, folder: Path) -> None:
    rows = [{"messages": [asked("Hi"), said(text, **{name: ranges})]} for text, ranges, _ in RANGES.values()]
    text, stop = TEMPLATES[template]
    prompt = {"format_type": "chat", "train_ranges": name}
    build = build_of(write_lines(tmp_path, rows), folder, text, prompt_template=prompt)
    wanted = {n: found for n, (_, _, found) in enumerate(RANGES.values())}
    assert runs(build, folder) == {
        n: [(text.replace("⏹", stop), weight) for text, weight in found]
        for n, found in wanted.items()
        if not isinstance(found, str)
    }
    assert codes(build) == {n: found for n, found in wanted.items() if found == "invalid_ranges"}


def test_axolotls_conversation_with_ranges(tmp_path: Path, folder: Path) -> None:
    """The row of axolotl's page; the flags of the user's messages count once `train_on` names the role."""
    turns = [
        {"from": "system", "value": "You are an AI assistant.", "train": False},
        {"from": "human", "value": "Hello", "train": False},
        {"from": "assistant", "value": "Hello", "train": True},
        {"from": "human", "value": "How are you?", "train": True},
        {"from": "assistant", "value": WELL, "train_detail": RANGES["axolotl's example"][1]},
        {"from": "human", "value": "I'm doing very well, thank you!", "train": True},
        {"from": "assistant", "value": "Hi there!", "train": True},
    ]
    end = "<|im_end|>"
    prompt = {"format_type": "chat", "train_ranges": "train_detail"}
    for writer in (write_lines, write_structs):
        path = writer(tmp_path, [{"conversations": turns}])
        (found,) = runs(build_of(path, folder, prompt_template=prompt), folder).values()
        assert [text for text, _ in found] == ["Hello" + end, " very well", end, "Hi there!" + end]
        both = {**prompt, "train_on": ["user", "assistant"]}
        (found,) = runs(build_of(path, folder, prompt_template=both), folder).values()
        told = ["Hello", "How are you?", " very well", "", WELL, "Hi there!"]
        assert "".join(text for text, _ in found) == end.join(told).replace(" very well" + end, " very well") + end


def test_ranges_that_a_template_moves_are_rejected_alone(tmp_path: Path, folder: Path) -> None:
    template = CHATML.replace("m.content }}", "m.content | upper if m.role == 'assistant' else m.content }}")
    rows = [
        {"messages": [asked(), said("abc", train_detail=spans((0, 1, True)))]},
        {"messages": [asked(), said("ABC")]},
    ]
    prompt = {"format_type": "chat", "train_ranges": "train_detail"}
    build = build_of(write_lines(tmp_path, rows), folder, template, prompt_template=prompt)
    assert runs(build, folder) == {1: [("ABC<|im_end|>", 1.0)]}
    assert list(codes(build)) == [0]


WEIGHTS: dict[str, tuple[Any, float | str]] = {
    "zero": (0, "filtered"),
    "one": (1, 1.0),
    "half": (0.5, 0.5),
    "large": (3.0, 3.0),
    "negative": (-1.0, "invalid_weight"),
    "null": (None, "invalid_weight"),
    "too large": (1e300, "invalid_weight"),
}
TALK = [asked("Q"), said("A")]
FORMS: dict[str, tuple[Row, dict[str, Any], dict[str, str], str]] = {
    "fields": ({"q": "Q", "a": "A"}, {"template": "{q}: {a}", "label_column": "a"}, {}, " A</s>"),
    "jinja": (
        {"q": "Q", "a": "A"},
        {"format_type": "jinja", "template": "{{ q }}: {{ a }}", "label_column": "a"},
        {},
        " A</s>",
    ),
    "completion": ({"q": "Q", "a": "A"}, {"format_type": "completion"}, {"prompt": "q", "completion": "a"}, "A</s>"),
    "text": ({"t": "A"}, {"format_type": "text"}, {"text": "t"}, "A</s>"),
    "messages": ({"m": TALK}, {"format_type": "chat"}, {"messages": "m"}, "A<|im_end|>"),
    "dialogue": ({"q": TALK[:1], "a": TALK[1:]}, {}, {"prompt": "q", "completion": "a"}, "A<|im_end|>"),
    "history": (
        {"q": "Q", "a": "A", "h": []},
        {"format_type": "chat"},
        {"prompt": "q", "completion": "a", "history": "h"},
        "A<|im_end|>",
    ),
    "segments": (
        {"s": [{"text": "Q", "label": False}, {"text": "A", "label": True}]},
        {"format_type": "text"},
        {"segments": "s"},
        "A",
    ),
    "kto": (
        {"q": "Q", "a": "A", "l": True},
        {"format_type": "kto"},
        {"prompt": "q", "completion": "a", "label": "l"},
        "A<|im_end|>",
    ),
}


@pytest.mark.parametrize(("form", "packing"), each(FORMS, ["none", "best_fit"]))
def test_weights_of_rows_in_every_form(form: str, packing: str, tmp_path: Path, folder: Path) -> None:
    row, prompt, roles, trained = FORMS[form]
    if (form, packing) == ("kto", "best_fit"):
        pytest.skip("kto data are not packed")
    path = write_lines(tmp_path, [{**row, "n": weight} for weight, _ in WEIGHTS.values()])
    dataset = {"column_mapping": {**roles, "weight": "n"}}
    build = build_of(path, folder, dataset=dataset, prompt_template=prompt, length={"packing": packing})
    expected = [(trained, weight) for _, weight in WEIGHTS.values() if isinstance(weight, float)]
    found = runs(build, folder)
    if packing == "none":
        assert found == {1: expected[:1], 2: expected[1:2], 3: expected[2:]}
    else:
        assert sorted(chain for said in found.values() for chain in said) == sorted(expected)
    assert codes(build) == {4: "invalid_weight", 5: "invalid_weight", 6: "invalid_weight"}
    assert build.manifest("columns").total("filtered") == 1


def test_weights_of_pairs_weigh_both_sides(tmp_path: Path, folder: Path) -> None:
    rows = [{"prompt": "Q", "chosen": "A", "rejected": "B", "weight": weight} for weight in (0.5, 1)]
    roles = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "weight": "weight"}
    build = build_of(
        write_lines(tmp_path, rows),
        folder,
        dataset={"column_mapping": roles},
        prompt_template={"format_type": "preference"},
    )
    for side, answer in (("chosen_", "A"), ("rejected_", "B")):
        assert runs(build, folder, side) == {0: [(f"{answer}<|im_end|>", 0.5)], 1: [(f"{answer}<|im_end|>", 1.0)]}


@pytest.mark.parametrize(
    ("values", "weights"),
    [(["0.5", "2"], [0.5, 2.0]), ([True, True], [1.0, 1.0]), ([False, True], [1.0]), ([2, 3], [2.0, 3.0])],
)
def test_weights_of_rows_as_text_and_flags(
    values: list[Any], weights: list[float], tmp_path: Path, folder: Path
) -> None:
    path = write_structs(tmp_path, [{"q": "Q", "a": "A", "w": value} for value in values])
    roles = {"prompt": "q", "completion": "a", "weight": "w"}
    build = build_of(path, folder, dataset={"column_mapping": roles}, prompt_template={"format_type": "completion"})
    assert [weight for said in runs(build, folder).values() for _, weight in said] == weights


def test_weights_of_rows_and_messages_multiply_through_splitting_to_the_batches(tmp_path: Path, folder: Path) -> None:
    talk = [asked("Q"), said("A", weight=0.5), asked("Q"), said("B" * 60)]
    path = write_lines(tmp_path, [{"messages": talk, "loss_weight": 4.0}, {"messages": TALK, "loss_weight": 1.0}])
    tokenizer = {"name_or_path": str(folder), "max_length": 40, "chat_template": CHATML}
    dataset = {"column_mapping": {"messages": "messages", "weight": "loss_weight"}}
    build = built(
        path,
        tmp_path / "store",
        "sequences",
        tokenizer=tokenizer,
        dataset=dataset,
        prompt_template={"format_type": "chat"},
        length={"strategy": "split"},
    )
    batches = list(TokenLoader(open_dataset(build.name, store=tmp_path / "store"), batch_size=2, shuffle=False))
    weights = torch.cat([batch["loss_weights"].flatten() for batch in batches])
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    assert ((weights > 0) == (labels != -100)).all()
    by_weight = {float(weight): int((weights == weight).sum()) for weight in weights.unique() if weight}
    assert by_weight == {2.0: 2, 4.0: 61, 1.0: 2}  # letters and stops


def test_rows_encoded_while_training_have_their_weights(folder: Path) -> None:
    """Rows with the weight 1 are between others, so that tables with and without weights are merged."""
    rows = [{"messages": TALK, "w": weight} for weight in (0.5, 2.0, 0.0, 1.0, 3.0)]
    config = {
        "dataset": {"name": "rows.jsonl", "column_mapping": {"messages": "messages", "weight": "w"}},
        "tokenizer": {"name_or_path": str(folder), "chat_template": CHATML},
        "prompt_template": {"format_type": "chat"},
    }
    engine = PromptEngine(PipelineConfig.from_mapping(config))
    dataset = PreprocessedDataset(Dataset.from_list(rows), engine)
    assert {index: float(dataset[index]["loss_weights"].max()) for index in (0, 1, 3, 4)} == {0: 0.5, 1: 2, 3: 1, 4: 3}
    with pytest.raises(DataValidationError, match="row 2: filtered"):
        dataset[2]
    assert engine.prompt_only([{"messages": TALK}]).num_rows == 1


@pytest.mark.parametrize(
    ("dataset", "prompt", "message"),
    [
        ({"weight": "q"}, {}, "column q is text; weight needs numbers from 0 on"),
        ({"weight": "tags"}, {}, "column tags is list; weight needs numbers from 0 on"),
        ({"weight": "wieght"}, {}, "no column wieght"),
        ({"weight": {"constant": -1}}, {}, "-1 is not a number from 0 to 1,000,000,000"),
        ({"weight": {"constant": 10**10}}, {}, "10000000000 is not a number from 0 to 1,000,000,000"),
        ({"prompt": "q", "weight": "n"}, {"format_type": "prompt_only"}, "prompt_only trains nothing"),
        ({}, {"train_ranges": "detail", "format_type": "completion"}, "do not go through a chat template"),
    ],
)
def test_weights_and_ranges_without_effect_are_refused(
    dataset: Row, prompt: Row, message: str, tmp_path: Path, folder: Path
) -> None:
    path = write_lines(tmp_path, [{"q": "Q?", "a": "A!", "n": 1, "tags": ["x"]}] * 3)
    roles = {"prompt": "q", "completion": "a", **dataset}
    roles = dataset if prompt.get("format_type") == "prompt_only" else roles
    with pytest.raises(ConfigError, match=message.replace("-", r"\-")):
        build_of(
            path, folder, dataset={"column_mapping": roles}, prompt_template={"format_type": "completion", **prompt}
        )


def test_ranges_of_a_field_that_no_message_has_are_refused(tmp_path: Path, folder: Path) -> None:
    path = write_lines(tmp_path, [{"messages": [asked(), said("abc", train_detail=spans((0, 1, True)))]}])
    prompt = {"format_type": "chat", "train_ranges": "train_detial"}
    with pytest.raises(ConfigError, match=r"no message has the field train_detial.*did you mean train_detail"):
        build_of(path, folder, prompt_template=prompt)


FIELDS: dict[str, tuple[Row, str | None]] = {
    "citations": ({"annotations": [{"type": "url", "title": "A page"}]}, None),
    "a refusal beside a text": ({"refusal": "I cannot"}, None),
    "a flag of another name": ({"loss_flag": False}, None),
    "a second text": ({"output": "another text"}, None),
    "reasoning in a list": ({"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, "field_ignored"),
    "thinking that is not text": ({"thinking": {"text": "hm"}}, "field_ignored"),
    "calls under another name": ({"function_calls": [{"name": "f", "arguments": {"a": "b"}}]}, "field_ignored"),
    "a refusal in place of a text": ({"refusal": "I cannot", "content": ""}, "field_ignored"),
    "audio in place of a text": ({"audio": {"transcript": "hello"}, "content": ""}, "field_ignored"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_no_template_reads_are_named_and_counted(field: str, tmp_path: Path, folder: Path) -> None:
    fields, code = FIELDS[field]
    name = next(iter(fields))
    rows = [{"messages": [asked(), said("A"), asked(), said("B") | fields]} for _ in "ab"]
    rows.append({"messages": [asked(), said("A"), asked(), said("B")]})
    build = build_of(write_lines(tmp_path, rows), folder)
    assert codes(build) == ({0: code, 1: code} if code else {})
    (notice,) = [text for report in build.run_all() for text in report.notices if "does not read" in text]
    assert f"{name} (2)" in notice
    template = CHATML.replace("{{ m.content }}", f"{{{{ m.{name} if m.{name} else m.content }}}}")
    read = build_of(write_lines(tmp_path, rows), folder, template)
    assert not [text for report in read.run_all() for text in report.notices if "does not read" in text]


def test_a_field_of_an_answer_that_is_not_trained_is_only_counted(tmp_path: Path, folder: Path) -> None:
    rows = [{"messages": [asked(), said("A", train=False, reasoning_details=[{"text": "hm"}]), asked(), said("B")]}]
    assert runs(build_of(write_lines(tmp_path, rows), folder), folder) == {0: [("B<|im_end|>", 1.0)]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize("name", ["weight", "loss_weight", "sample_weight", "importanceWeight"])
def test_inspect_asks_about_weights_of_rows(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(here, [{"prompt": f"Why {n}?", "completion": f"So {n}.", name: n / 8} for n in range(9)])
    assert main(["inspect", "rows.jsonl"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"Question: the column {name} could be the weight" in told and f"{{weight: {name}, …}}" in told
    text = (here / "rows.yaml").read_text()
    assert f"# weight: {name}" in text
    (here / "rows.yaml").write_text(text.replace("# weight:", "weight:"))
    assert main(["inspect", "rows.yaml"]) == 0
    assert "Question" not in capsys.readouterr().out
    assert main(["build", "rows.yaml", "--json"]) == 0
    assert '"filtered": 1' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "Why?", "completion": "So.", "train": False}, "the column train could be the weight"),
        ({"prompt": "Why?", "completion": "So.", "loss_weight": 0}, "the column loss_weight could be the weight"),
        ({"prompt": "Why?", "completion": "So.", "score": 0.9}, "are not used: score;"),
        ({"segments": [{"text": "A", "label": True, "weight": 0.5}]}, "not used are weight (4)"),
        (
            {"messages": [asked(), said("A", keep_loss=True)]},
            "number of messages: keep_loss (4)",
        ),
        ({"messages": [asked(weight=1), said("A", weight=1)]}, "4 messages have a weight above 0"),
    ],
)
def test_builds_name_what_they_do_not_use(row: Row, told: str, tmp_path: Path, folder: Path) -> None:
    sections = {"prompt_template": {"format_type": "text" if "segments" in row else "custom"}}
    build = build_of(write_lines(tmp_path, [row] * 4), folder, CHATML, **sections)
    assert any(told in text for report in build.run_all() for text in report.notices)


RATED: dict[str, Row] = {
    "a score from 0 to 1": {"score": 0.9},
    "stars": {"stars": 5},
    "stars in words": {"rating": "5 stars"},
    "a reward": {"reward": -0.3},
    "a class": {"judge_quality": "good"},
    "UltraFeedback": {"overall_score": 7.5},
    "HelpSteer2": {"helpfulness": 3, "correctness": 4, "coherence": 4},
}
"""Ratings beside answers; the last two are columns of openbmb/UltraFeedback and nvidia/HelpSteer2."""


@pytest.mark.parametrize("case", RATED)
def test_ratings_that_nothing_uses_are_named(case: str) -> None:
    columns = described(as_json(*({"prompt": f"Why {n}?", "completion": f"So {n}.", **RATED[case]} for n in range(9))))
    names = [*RATED[case]]
    roles = {"prompt": "prompt", "completion": "completion", "weight": {"constant": 1}}
    plain, weighed = resolve(config_of(), columns), resolve(config_of(**mapped(roles)), columns)
    (asked,) = weight_questions(plain, columns)
    assert f"could rate the answers and are not used: {', '.join(names)};" in asked
    assert weight_questions(plain, columns, names) == []
    assert weight_questions(plain, columns, filters=[f"{name} != 'x'" for name in names]) == []
    assert weight_questions(weighed, columns) == []


def test_inspect_asks_about_ratings_beside_answers_but_not_of_pairs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(here, [{"prompt": f"Why {n}?", "completion": f"So {n}.", "score": n / 9} for n in range(9)])
    assert main(["inspect", "rows.jsonl", "--json"]) == 0
    (asked,) = json.loads(capsys.readouterr().out)["questions"]
    assert "are not used: score;" in asked
    pair = {"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": 4.5, "score_rejected": 1.0}
    write_lines(here, [pair] * 9)
    assert main(["inspect", "rows.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == []


@pytest.mark.parametrize("writer", [write_lines, write_json_text])
def test_inspect_asks_about_fields_of_messages(
    writer: Callable[[Path, list[Row]], Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: list[Row] = [
        {"train_detail": spans((0, 1, True))},
        {"mask": True},
        {"refusal": "No."},
        {"keep_loss": False},
        {},
    ]
    writer(here, [{"messages": [asked("Why?"), said("Because.", **some)]} for some in fields])
    assert main(["inspect", "rows.jsonl", "--json"]) == 0
    ranges, unclear, unknown = json.loads(capsys.readouterr().out)["questions"]
    assert "1 messages have ranges" in ranges and "prompt_template.train_ranges: train_detail" in ranges
    assert "mask (1)" in unclear and "train or masked" in unclear
    assert "refusal (1), keep_loss (1)" in unknown
