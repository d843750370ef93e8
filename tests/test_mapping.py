"""The mapping: which column plays which role, and what is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest
from canonical_rows import (
    Row,
    columns_named,
    config_of,
)

from tokenloom.assets.columns.mapping import ColumnMapping, resolve
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["instruction", "input", "output"], {"prompt": "instruction", "context": "input", "completion": "output"}),
        (["id", "question", "answer"], {"prompt": "question", "completion": "answer"}),
        (["Question", "ANSWER"], {"prompt": "Question", "completion": "ANSWER"}),
        (["input", "output"], {"prompt": "input", "completion": "output"}),
        (
            ["query", "response", "system_prompt"],
            {"prompt": "query", "completion": "response", "system": "system_prompt"},
        ),
        (["text"], {"text": "text"}),
        (["title", "content"], {"text": "content"}),
    ],
)
def test_roles_follow_from_the_usual_names(names: list[str], expected: dict[str, str]) -> None:
    found = resolve(config_of(), columns_named(*names))
    assert found.roles == expected
    assert found.form == ("text" if "text" in expected else "completion")


def test_a_mapping_given_wins_over_names() -> None:
    config = config_of(dataset={"column_mapping": {"prompt": "b", "completion": "question"}})
    found = resolve(config, columns_named("question", "answer", "b"))
    assert (found.form, found.roles) == ("completion", {"prompt": "b", "completion": "question"})


def test_conversations_are_found_by_name_and_type() -> None:
    kind = "list<item: struct<from: string, value: string>>"
    columns = [*columns_named("id", "text"), *columns_named("conversations", kind=kind)]
    assert resolve(config_of(), columns) == ColumnMapping("messages", {"messages": "conversations"})


def test_a_mapping_renames_the_fields_of_a_template() -> None:
    prompt = {"template": "{q}\n{a}", "label_column": "a"}
    config = config_of(dataset={"column_mapping": {"q": "Frage", "a": "Antwort"}}, prompt_template=prompt)
    found = resolve(config, columns_named("Frage", "Antwort"))
    assert (found.form, found.roles, found.answer) == ("fields", {"q": "Frage", "a": "Antwort"}, "a")


FAULTY = """\
dataset:
  name: x
  columns:
    - instrution
  column_mapping:
    prompt: instructoin
    completion: output
prompt_template:
  label_column: output
  template: |
    Do this.

    {instructon}, {prompt}, {completion} and {nothing_like_it}
    {output}
"""


def test_every_missing_column_is_one_fault_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text(FAULTY)
    with pytest.raises(ConfigError) as raised:
        resolve(PipelineConfig.from_file(path), columns_named("instruction", "output"))
    found = {fault.place: fault.message for fault in raised.value.faults}
    lines = FAULTY.splitlines()
    mapped, listed = lines.index("    prompt: instructoin") + 1, lines.index("    - instrution") + 1
    used = lines.index("    {instructon}, {prompt}, {completion} and {nothing_like_it}") + 1
    assert len(raised.value.faults) == 4
    assert {place.removeprefix(f"{path}:") for place in found} <= {str(n) for n in (mapped, listed, listed - 1, used)}
    for name, line in (("instructoin", mapped), ("instructon", used)):
        assert any(name in f.message and f.place == f"{path}:{line}" for f in raised.value.faults)
    near = [fault.message for fault in raised.value.faults if "did you mean instruction?" in fault.message]
    assert len(near) == 3
    assert all("instruction, output" in fault.message for fault in raised.value.faults)


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ({}, ["title", "score"]),
        ({"format_type": "text"}, ["question", "answer"]),
        ({"format_type": "completion"}, ["question", "reply"]),
    ],
)
def test_columns_that_fit_no_form_are_listed(prompt: Row, names: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template=prompt), columns_named(*names))
    (fault,) = raised.value.faults
    assert all(name in fault.message for name in names)


@pytest.mark.parametrize("template", ["{q} {a} {a}", "{q}"])
def test_the_label_stands_in_the_template_exactly_once(template: str) -> None:
    prompt = {"template": template, "label_column": "a"}
    with pytest.raises(ConfigError, match="label_column"):
        resolve(config_of(prompt_template=prompt), columns_named("q", "a"))


def test_input_columns_that_the_template_lacks_are_faults() -> None:
    prompt = {"template": "{q} {a}", "label_column": "a", "input_columns": ["q", "b", "c"]}
    with pytest.raises(ConfigError) as raised:
        resolve(config_of(prompt_template=prompt), columns_named("q", "a", "b", "c"))
    assert len(raised.value.faults) == 2
