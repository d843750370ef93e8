"""The dataset layouts of TRL, LLaMA-Factory, axolotl and OpenAI: what each row becomes, or the error that asks.

The rows are literal examples from the documentation of those projects, and what is expected of them is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.datasets_on_disk import write_dataset
from support.open_choices import choice_lines, uncommented
from tokenloom import DataPipeline
from tokenloom.assets.building.build import Build
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage.forms import FORMS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

Row = dict[str, Any]
Make = Callable[[int], Any]

COUNT = 24


def ask(n: int) -> str:
    return f"Which number comes after {n}, and why is that so?"


def right(n: int) -> str:
    return f"After {n} comes {n + 1}. That is how one counts."


def wrong(n: int) -> str:
    return f"Nobody knows what comes after {n}."


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def assistant(text: str) -> Row:
    return {"role": "assistant", "content": text}


def human(text: str) -> Row:
    return {"from": "human", "value": text}


def gpt(text: str) -> Row:
    return {"from": "gpt", "value": text}


def some(n: int, text: str) -> str:
    """Return a text in every second row, as optional columns have it."""
    return text if n % 2 else ""


def with_input(n: int) -> str:
    return f"{ask(n)}\n\nBe exact." if n % 2 else ask(n)


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

READ: dict[str, tuple[str, Make, Make]] = {
    "TRL language modeling": ("text", lambda n: {"text": right(n)}, lambda n: {"text": right(n)}),
    "TRL language modeling, conversational": (
        "messages",
        lambda n: {"messages": [user(ask(n)), assistant(right(n))]},
        lambda n: {"messages": [user(ask(n)), assistant(right(n))]},
    ),
    "TRL prompt-completion": (
        "completion",
        lambda n: {"prompt": ask(n), "completion": right(n)},
        lambda n: {"prompt": ask(n), "completion": right(n), "system": ""},
    ),
    "TRL prompt-completion, conversational": (
        "dialogue",
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))]},
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))]},
    ),
    "TRL preference": (
        "preference",
        lambda n: {"prompt": ask(n), "chosen": right(n), "rejected": wrong(n)},
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "TRL preference, conversational": (
        "preference",
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "TRL preference, conversational, implicit prompt": (
        "preference",
        lambda n: {"chosen": [user(ask(n)), assistant(right(n))], "rejected": [user(ask(n)), assistant(wrong(n))]},
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "TRL unpaired preference": (
        "kto",
        lambda n: {"prompt": ask(n), "completion": right(n), "label": n % 3 == 0},
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
    ),
    "TRL unpaired preference, conversational": (
        "kto",
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
    ),
    "messages with a label": (
        "kto",
        lambda n: {"messages": [user(ask(n)), assistant(wrong(n)), user("Sure?"), assistant(right(n))], "label": n < 9},
        lambda n: {
            "prompt": [user(ask(n)), assistant(wrong(n)), user("Sure?")],
            "completion": [assistant(right(n))],
            "label": n < 9,
        },
    ),
    "LLaMA-Factory alpaca": (
        "completion",
        lambda n: {
            "instruction": ask(n),
            "input": some(n, "Be exact."),
            "output": right(n),
            "system": "Count.",
            "history": [],
        },
        lambda n: {"prompt": with_input(n), "completion": right(n), "system": "Count."},
    ),
    "axolotl input_output": (
        "segments",
        lambda n: {"segments": [{"label": False, "text": ask(n)}, {"label": True, "text": right(n)}]},
        lambda n: {"segments": [{"text": ask(n), "weight": 0.0}, {"text": right(n), "weight": 1.0}]},
    ),
    "a prompt that repeats the first message": (
        "messages",
        lambda n: {"prompt": ask(n), "messages": [user(ask(n)), assistant(right(n))]},
        lambda n: {"messages": [user(ask(n)), assistant(right(n))]},
    ),
    "LLaMA-Factory alpaca with history": (
        "messages",
        lambda n: {"instruction": ask(n), "output": right(n), "history": [["Why?", "So."]] * (n % 2)},
        lambda n: {"messages": [*[user("Why?"), assistant("So.")] * (n % 2), user(ask(n)), assistant(right(n))]},
    ),
    "LLaMA-Factory alpaca, preference": (
        "preference",
        lambda n: {
            "instruction": ask(n),
            "input": some(n, "Be exact."),
            "chosen": right(n),
            "rejected": wrong(n),
        },
        lambda n: {
            "prompt": [user(with_input(n))],
            "chosen": [assistant(right(n))],
            "rejected": [assistant(wrong(n))],
        },
    ),
    "LLaMA-Factory alpaca, KTO": (
        "kto",
        lambda n: {
            "instruction": ask(n),
            "input": some(n, "Be exact."),
            "output": right(n),
            "kto_tag": n % 3 == 0,
        },
        lambda n: {"prompt": [user(with_input(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
    ),
    "LLaMA-Factory ShareGPT": (
        "messages",
        lambda n: {"conversations": [human(ask(n)), gpt(right(n))], "system": "Count.", "tools": ""},
        lambda n: {"messages": [{"role": "system", "content": "Count."}, user(ask(n)), assistant(right(n))]},
    ),
    "LLaMA-Factory ShareGPT, preference": (
        "preference",
        lambda n: {
            "conversations": [human(ask(n)), gpt(right(n)), human("Sure?")],
            "chosen": gpt("Yes, quite sure."),
            "rejected": gpt("No idea."),
        },
        lambda n: {
            "prompt": [user(ask(n)), assistant(right(n)), user("Sure?")],
            "chosen": [assistant("Yes, quite sure.")],
            "rejected": [assistant("No idea.")],
        },
    ),
    "LLaMA-Factory ShareGPT, KTO": (
        "kto",
        lambda n: {"conversations": [human(ask(n)), gpt(right(n))], "kto_tag": n % 3 == 0},
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
    ),
    "axolotl gpteacher": (
        "completion",
        lambda n: {"instruction": ask(n), "input": some(n, "Be exact."), "response": right(n)},
        lambda n: {"prompt": with_input(n), "completion": right(n), "system": ""},
    ),
    "axolotl oasst": (
        "completion",
        lambda n: {"INSTRUCTION": ask(n), "RESPONSE": right(n)},
        lambda n: {"prompt": ask(n), "completion": right(n), "system": ""},
    ),
    "axolotl alpaca_chat.load_qa": (
        "completion",
        lambda n: {"question": ask(n), "answer": right(n)},
        lambda n: {"prompt": ask(n), "completion": right(n), "system": ""},
    ),
    "axolotl alpaca_w_system.load_open_orca": (
        "completion",
        lambda n: {"system_prompt": "Count.", "question": ask(n), "response": right(n)},
        lambda n: {"prompt": ask(n), "completion": right(n), "system": "Count."},
    ),
    "axolotl context_qa": (
        "completion",
        lambda n: {"article": f"On {n}. " * 9, "question": ask(n), "answer": right(n)},
        lambda n: {"prompt": f"{ask(n)}\n\n{f'On {n}. ' * 9}", "completion": right(n), "system": ""},
    ),
    "axolotl explainchoice": (
        "completion",
        lambda n: {"question": ask(n), "choices": [right(n), wrong(n)], "solution": right(n)},
        lambda n: {
            "prompt": f"{ask(n)}\n\nA. {right(n)}\nB. {wrong(n)}",
            "completion": right(n),
            "system": "",
        },
    ),
    "axolotl metharme": (
        "completion",
        lambda n: {"prompt": ask(n), "generation": right(n)},
        lambda n: {"prompt": ask(n), "completion": right(n), "system": ""},
    ),
    "axolotl pygmalion": (
        "messages",
        lambda n: {"conversations": [{"role": "user", "value": ask(n)}, {"role": "assistant", "value": right(n)}]},
        lambda n: {"messages": [user(ask(n)), assistant(right(n))]},
    ),
    "axolotl chatml.argilla": (
        "preference",
        lambda n: {
            "system": "Count.",
            "instruction": ask(n),
            "chosen_response": right(n),
            "rejected_response": wrong(n),
        },
        lambda n: {
            "prompt": [{"role": "system", "content": "Count."}, user(ask(n))],
            "chosen": [assistant(right(n))],
            "rejected": [assistant(wrong(n))],
        },
    ),
    "axolotl chatml.ultra": (
        "preference",
        lambda n: {
            "prompt": ask(n),
            "chosen": [user(ask(n)), assistant(right(n))],
            "rejected": [user(ask(n)), assistant(wrong(n))],
        },
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "axolotl DPO chat_template.default": (
        "preference",
        lambda n: {"messages": [user(ask(n))], "chosen": assistant(right(n)), "rejected": assistant(wrong(n))},
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "axolotl KTO chatml.argilla_chat, labelled": (
        "kto",
        lambda n: {"completion": [user(ask(n)), assistant(right(n))], "label": n % 3 == 0},
        lambda n: {"prompt": [user(ask(n))], "completion": [assistant(right(n))], "label": n % 3 == 0},
    ),
    "OpenAI": (
        "messages",
        lambda n: {
            "messages": [user(ask(n)), {**assistant(wrong(n)), "weight": 0}, user("Sure?"), assistant(right(n))],
            "tools": [LOOK],
            "parallel_tool_calls": False,
        },
        lambda n: {"messages": [user(ask(n)), assistant(wrong(n)), user("Sure?"), assistant(right(n))]},
    ),
    "OpenAI preference": (
        "preference",
        lambda n: {
            "input": {"messages": [user(ask(n))], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [assistant(right(n))],
            "non_preferred_output": [assistant(wrong(n))],
        },
        lambda n: {"prompt": [user(ask(n))], "chosen": [assistant(right(n))], "rejected": [assistant(wrong(n))]},
    ),
    "OpenAI preference with tools": (
        "preference",
        lambda n: {
            "input": {"messages": [user(ask(n))], "tools": [LOOK]},
            "preferred_output": [assistant(right(n))],
            "non_preferred_output": [assistant(wrong(n))],
        },
        lambda n: {"prompt": [user(ask(n))], "tools": json.dumps([LOOK])},
    ),
    "messages as JSON text": (
        "messages",
        lambda n: {"messages": json.dumps([user(ask(n)), assistant(right(n))])},
        lambda n: {"messages": [user(ask(n)), assistant(right(n))]},
    ),
}

ASKED: dict[str, tuple[Make, str]] = {
    "TRL prompt-only": (lambda n: {"prompt": ask(n)}, "set format_type: prompt_only"),
    "TRL prompt-only, conversational": (lambda n: {"prompt": [user(ask(n))]}, "set format_type: prompt_only"),
    "prompts with a ground truth": (
        lambda n: {"prompt": [user(ask(n))], "ground_truth": str(n)},
        "for prompts without answers, set prompt_template.format_type: prompt_only",
    ),
    "TRL preference, implicit prompt": (
        lambda n: {"chosen": ask(n) + right(n), "rejected": ask(n) + wrong(n)},
        "there is no prompt",
    ),
    "TRL stepwise supervision": (
        lambda n: {"prompt": ask(n), "completions": [right(n), wrong(n)], "labels": [True, False]},
        "the rows are stepwise supervision, which cannot be read",
    ),
    "alpaca with a history as text": (
        lambda n: {"instruction": ask(n), "output": right(n), "history": some(n, "Why? So.")},
        "does not use 'history', which could hold earlier turns",
    ),
    "axolotl zephyr.nectar": (
        lambda n: {"prompt": ask(n), "answers": [{"answer": right(n), "rank": 1}, {"answer": wrong(n), "rank": 2}]},
        "most rows hold 2 or more",
    ),
    "a prompt beside messages": (
        lambda n: {"prompt": ask(n), "messages": [user("Hello."), assistant(right(n))]},
        "does not use 'prompt', which could belong to the prompt",
    ),
    "a flag beside an answer": (
        lambda n: {"question": ask(n), "answer": right(n), "is_correct": n % 2 == 0},
        "does not use 'is_correct', which could say whether the answer is wanted",
    ),
    **{
        f"a {name} beside an answer, {first}": (
            lambda n, name=name, values=values: {
                "prompt": ask(n),
                "completion": right(n),
                name: values[n % len(values)],
            },
            f"does not use '{name}', which could say whether the answer is wanted",
        )
        for name, *values in (
            ("label", 0.9, 0.1, 1.0, 0.0),
            ("label", 5, 1, 3, 2),
            ("label", 100, 0, 50),
            ("kto_tag", 0.9, 0.1),
            ("passed", True, False),
            ("resolved", True, False),
            ("verified", "yes", "no"),
        )
        for first in values[:1]
    },
    "a response beside messages": (
        lambda n: {"messages": [user(ask(n)), assistant(right(n)), user("Sure?")], "response": "Yes."},
        "does not use 'response', which could be the answer",
    ),
    "rejected answers beside messages": (
        lambda n: {"messages": [user(ask(n)), assistant(right(n))], "rejected_answers": [wrong(n), "No."]},
        "does not use 'rejected_answers', which could hold unwanted answers",
    ),
    "images": (
        lambda n: {"messages": [user(ask(n)), assistant(right(n))], "images": ["a.png"]},
        "does not use 'images', and images need tokenizer.processor; audio and video cannot be read",
    ),
    "rows that are lists": (lambda n: [right(n), n % 2], "the items of the lists have no names"),
    "two equal answers": (
        lambda n: {"instruction": ask(n), "input": f"On {n}.", "output_a": right(n), "output_b": wrong(n)},
        "output_a.* or .*output_b",
    ),
}


def write(path: Path, make: Make, count: int = COUNT) -> Path:
    path.write_text("".join(json.dumps(make(n)) + "\n" for n in range(count)))
    return path


def columns_of(folder: Path, make: Make, **sections: Any) -> Build:
    """Run the stages up to `columns`."""
    write(folder / "rows.jsonl", make)
    dataset = {"name": str(folder / "rows.jsonl"), **sections.pop("dataset", {})}
    build = Build(PipelineConfig.from_mapping({"dataset": dataset, **sections}), ArtifactStore(folder / "store"))
    for stage in ("raw", "schema", "columns"):
        build.run(stage)
    return build


def canonical(build: Build) -> list[Row]:
    """Return the rows in canonical form; messages have only a role and a content."""
    chunks = build.manifest("columns").chunks
    rows = [row for chunk in chunks for row in build.store.objects.get(chunk.output).drop_columns([ROW]).to_pylist()]
    return [{name: _said(value) for name, value in row.items()} for row in rows]


def _said(value: Any) -> Any:
    if not isinstance(value, list) or "role" not in value[0]:
        return value
    return [{"role": message["role"], "content": message["content"]} for message in value]


@pytest.mark.parametrize("name", READ)
def test_a_layout_is_read_as_documented(tmp_path: Path, name: str) -> None:
    form, make, expected = READ[name]
    build = columns_of(tmp_path, make)
    assert build.manifest("columns").facts["mapping"]["form"] == form
    rows = canonical(build)
    assert rows[0].keys() == FORMS[form].columns.keys()
    wanted = [expected(n) for n in range(COUNT)]
    assert [{field: row[field] for field in wanted[0]} for row in rows] == wanted


@pytest.mark.parametrize("name", ASKED)
def test_a_layout_that_is_not_certain_asks(tmp_path: Path, name: str) -> None:
    make, message = ASKED[name]
    with pytest.raises(ConfigError, match=message):
        columns_of(tmp_path, make)


@pytest.mark.parametrize("name", ["TRL prompt-only", "TRL prompt-only, conversational", "prompts with a ground truth"])
def test_prompts_without_answers_are_read_on_request(tmp_path: Path, name: str) -> None:
    build = columns_of(tmp_path, ASKED[name][0], prompt_template={"format_type": "prompt_only"})
    assert build.manifest("columns").facts["mapping"] == {
        "form": "prompt_only",
        "roles": {"prompt": "prompt"},
        "answer": None,
    }
    assert [row["prompt"] for row in canonical(build)] == [[user(ask(n))] for n in range(COUNT)]


def test_steps_with_labels_are_trained_only_if_mapped(tmp_path: Path) -> None:
    make, roles = ASKED["TRL stepwise supervision"][0], {"prompt": "prompt", "completion": "{completions}"}
    with pytest.raises(ConfigError, match=r"labels rates a step in completions.*map completion to '{completions}'"):
        columns_of(tmp_path, make)
    build = columns_of(tmp_path, make, dataset={"column_mapping": roles})
    assert [row["completion"] for row in canonical(build)] == [f"{right(n)}\n{wrong(n)}" for n in range(COUNT)]
    assert build.manifest("columns").notes["unused_columns"] == ["labels"]


def test_weights_tools_and_settings_of_the_template_are_kept(tmp_path: Path) -> None:
    def make(n: int) -> Row:
        said = [user(ask(n)), {**assistant(wrong(n)), "weight": 0}, user("Sure?"), {**assistant("Yes."), "weight": 1}]
        return {"messages": said, "tools": [LOOK], "chat_template_kwargs": {"enable_thinking": n % 2 == 0}}

    build = columns_of(tmp_path, make)
    roles = build.manifest("columns").facts["mapping"]["roles"]
    assert roles == {"messages": "messages", "tools": "tools", "template_kwargs": "chat_template_kwargs"}
    table = build.store.objects.get(build.manifest("columns").chunks[0].output)
    for n, row in enumerate(table.to_pylist()):
        assert [message["weight"] for message in row["messages"]] == [None, 0.0, None, 1.0]
        assert json.loads(row["tools"]) == [LOOK]
        assert json.loads(row["template_kwargs"]) == {"enable_thinking": n % 2 == 0}


@pytest.mark.parametrize(
    ("make", "unused"),
    [
        (lambda n: {"messages": [user(ask(n)), assistant(right(n))], "score": n / 7, "notes": right(n)}, ["notes"]),
        (lambda n: {"instruction": ask(n), "output": right(n), "text": ask(n) + right(n), "source": "x"}, ["text"]),
        (lambda n: {"prompt": ask(n), "messages": [user(ask(n)), assistant(right(n))]}, ["prompt"]),
        (lambda n: {"question": ask(n), "answer": right(n), "url": "http://x.org", "lang": "en"}, []),
        (lambda n: {"title": f"{n}", "text": right(n)}, ["title"]),
    ],
)
def test_unused_columns_are_named_by_a_build(tmp_path: Path, make: Make, unused: Sequence[str]) -> None:
    assert columns_of(tmp_path, make).manifest("columns").notes["unused_columns"] == unused


SUGGESTED: dict[str, tuple[Row, list[str]]] = {
    "alpaca with a history as text": ({"prompt": "instruction", "completion": "output"}, ["history"]),
    "axolotl zephyr.nectar": ({"prompt": "prompt", "completion": "answers[0].answer"}, []),
    "a prompt beside messages": ({"messages": "messages"}, ["prompt"]),
    "a flag beside an answer": ({"prompt": "question", "completion": "answer", "label": "is_correct"}, []),
    "a response beside messages": ({"prompt": "messages", "completion": "response"}, []),
    "rejected answers beside messages": ({"messages": "messages"}, ["rejected_answers"]),
    "images": ({"messages": "messages"}, ["images"]),
    "rows that are lists": ({"messages": "{items:turns}"}, []),
    "two equal answers": (
        {"prompt": "instruction", "context": "input", "completion": "output_a"},
        ["output_b"],
    ),
}


@pytest.mark.parametrize("name", SUGGESTED)
def test_a_suggested_mapping_builds_and_what_it_leaves_out_is_named(tmp_path: Path, name: str) -> None:
    make, (roles, unused) = ASKED[name][0], SUGGESTED[name]
    with pytest.raises(ConfigError) as raised:
        columns_of(tmp_path, make)
    suggested = yaml.safe_load(str(raised.value).partition("write e.g. column_mapping: ")[2])
    assert suggested == roles
    manifest = columns_of(tmp_path, make, dataset={"column_mapping": suggested}).manifest("columns")
    assert manifest.facts["mapping"]["roles"] == roles
    assert manifest.notes["unused_columns"] == unused
    assert manifest.total("rows_out") == COUNT


def test_a_column_that_comes_with_the_batch_is_not_unused(tmp_path: Path) -> None:
    make = ASKED["prompts with a ground truth"][0]
    for kept, unused in ((["ground_truth"], []), ([], ["ground_truth"])):
        prompts = {"format_type": "prompt_only"}
        build = columns_of(tmp_path, make, dataset={"keep_columns": kept}, prompt_template=prompts)
        assert build.manifest("columns").notes["unused_columns"] == unused


def test_a_kept_field_of_a_used_column_leaves_its_other_fields_used(tmp_path: Path) -> None:
    def turns(n: int) -> Row:
        return {"messages": [{"role": "user", "content": ask(n)}, {"role": "assistant", "content": right(n)}]}

    build = columns_of(tmp_path, turns, dataset={"keep_columns": ["messages[0].content"]})
    assert build.manifest("columns").notes["unused_columns"] == []


def test_inspect_names_unused_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    write(tmp_path / "rows.jsonl", lambda n: {"question": ask(n), "answer": right(n), "hint": wrong(n), "id": n})
    assert main(["inspect", "rows.jsonl"]) == 0
    assert "Notice: unused columns: hint; map them, or " in capsys.readouterr().out
    assert "# unused columns: hint; " in (tmp_path / "rows.yaml").read_text()
    assert main(["inspect", "rows.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unused_columns"] == ["hint"]


@pytest.mark.parametrize("name", ["a prompt beside messages", "images"])
def test_a_column_that_is_not_kept_raises_no_doubt(tmp_path: Path, name: str) -> None:
    build = columns_of(tmp_path, ASKED[name][0], dataset={"columns": ["messages"]})
    assert build.manifest("columns").facts["mapping"]["roles"] == {"messages": "messages"}
    assert build.manifest("columns").notes["unused_columns"] == []


def test_a_yaml_with_a_choice_made_keeps_every_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    write(tmp_path / "two.jsonl", ASKED["two equal answers"][0])
    assert main(["inspect", "two.jsonl"]) == 0
    capsys.readouterr()
    assert main(["build", "two.yaml"]) == 2
    text, lines = (tmp_path / "two.yaml").read_text(), choice_lines(capsys.readouterr().err)
    made = [uncommented(text, first, last) for first, last in lines[:2]]
    (tmp_path / "two.yaml").write_text(next(one for one in made if "\n    completion: output_b" in one))
    assert main(["build", "two.yaml", "--stage", "columns", "--json"]) == 0
    printed = capsys.readouterr()
    stages = {stage["name"]: stage for stage in json.loads(printed.out)["stages"]}
    assert stages["columns"]["unused_columns"] == ["output_a"]
    assert "two: unused columns: output_a; map them, or " in printed.err
    store = ArtifactStore(tmp_path / "store")
    table = store.objects.get(store.manifest("two", "columns").chunks[0].output)
    assert table["prompt"].to_pylist() == [f"{ask(n)}\n\nOn {n}." for n in range(COUNT)]
    assert table["completion"].to_pylist() == [wrong(n) for n in range(COUNT)]


@pytest.mark.parametrize("name", ["LLaMA-Factory ShareGPT, preference", "messages with a label", "OpenAI preference"])
def test_an_inspected_yaml_builds_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    form, make, expected = READ[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    write(tmp_path / "rows.jsonl", make)
    assert main(["inspect", "rows.jsonl"]) == 0
    assert "Read as" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "rows.yaml").read_text())["prompt_template"]["format_type"] == form
    assert main(["build", "rows.yaml", "--stage", "columns"]) == 0
    store = ArtifactStore(tmp_path / "store")
    table = store.objects.get(store.manifest("rows", "columns").chunks[0].output).select([*expected(0)])
    assert [{field: _said(value) for field, value in row.items()} for row in table.to_pylist()] == [
        expected(n) for n in range(COUNT)
    ]


@pytest.mark.parametrize(
    ("make", "trained"),
    [
        (READ["TRL prompt-completion, conversational"][1], lambda n: f"{right(n)}<|im_end|>"),
        (READ["messages with a label"][1], lambda n: f"{right(n)}<|im_end|>"),
        (ASKED["TRL prompt-only"][0], lambda n: ""),
    ],
)
def test_only_the_completion_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, trained: Callable[[int], str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    write(tmp_path / "rows.jsonl", make)
    assert main(["inspect", "rows.jsonl"]) == 0
    assert main(["build", "rows.yaml"]) == 0
    reader = RowReader(ArtifactStore(tmp_path / "store"), "rows")
    for n in range(0, COUNT, 5):
        runs = reader.read(n).sides[""]
        text = "".join(run.text for run in runs)
        assert text.startswith(f"<|im_start|>user\n{ask(n)}<|im_end|>\n<|im_start|>assistant\n")
        assert text.removesuffix("\n").endswith(trained(n) or "assistant")
        assert "".join(run.text for run in runs if run.trained) == trained(n)


def test_a_pipeline_in_python_logs_unused_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prompt = {"template": "{instruction}\n{output}", "label_column": "output"}
    config = write_dataset(tmp_path, 20, prompt_template=prompt)
    DataPipeline.from_config(config, tmp_path / "store").unwrap().build().unwrap()
    (logged,) = [record for record in caplog.records if record.name == "tokenloom.pipeline"]
    assert logged.levelname == "WARNING"
    assert logged.message.startswith("small: unused columns: input; map them, or ")
