"""Variables for the chat template, of the YAML and of the rows; the date; and the form of call arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from support.canonical_tables import Row, config_of, said, table_of
from tokenloom.assets.prompts.inference import prompt_renderer
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.tokenizers import resolve_tokenizer

MODED = (
    "{{ mode | default('none') }};{{ level | default(0) }};"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [said("user", "Q"), said("assistant", "A")]
FORM = {"form": "messages"}


def rendered(folder: Path, template: str, kwargs: list[str] | None, **prompt: Any) -> ChunkOutput:
    """Render one conversation per entry of `kwargs`, the rows' own variables."""
    table = table_of("messages", [{"messages": TALK, "template_kwargs": ""}] * len(kwargs or [""]))
    if kwargs is not None:
        names = [name for name in table.column_names if name != "template_kwargs"]
        table = table.select(names).append_column("template_kwargs", pa.array(kwargs, pa.string()))
    config = config_of(folder, prompt, template)
    return renderer(config, FORM, resolve_tokenizer(config))(table)


def starts(out: ChunkOutput) -> list[str]:
    return [text.partition("<|im_start|>")[0] for text in out.table["text"].to_pylist()]


def test_the_yaml_sets_variables_and_the_row_overrides_them(tokenizer_folder: Path) -> None:
    given = {"mode": "slow", "level": 2}
    assert starts(rendered(tokenizer_folder, MODED, None)) == ["none;0;"]
    assert starts(rendered(tokenizer_folder, MODED, None, template_kwargs=given)) == ["slow;2;"]
    rows = ["", '{"mode": "fast"}', "{}", '{"level": [1, null], "mode": "x"}', '{"mode": "fast"}']
    out = rendered(tokenizer_folder, MODED, rows, template_kwargs=given)
    assert out.table[ROW].to_pylist() == [0, 1, 2, 3, 4]
    assert starts(out) == ["slow;2;", "fast;2;", "slow;2;", "x;[1, None];", "fast;2;"]


@pytest.mark.parametrize(
    "own", ['{"messages": []}', '{"bos_token": "x"}', '{"add_generation_prompt": true}', "[1]", "{"]
)
def test_a_row_with_impossible_variables_is_rejected(tokenizer_folder: Path, own: str) -> None:
    out = rendered(tokenizer_folder, MODED, ["", own])
    assert out.table[ROW].to_pylist() == [0]
    assert out.rejects.select([ROW, "code"]).to_pylist() == [{ROW: 1, "code": "template_kwargs"}]


@pytest.mark.parametrize(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "date_string"]
)
def test_variables_that_tokenloom_passes_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"template_kwargs.*{name}"):
        PipelineConfig.from_mapping({"dataset": {"name": "x"}, "prompt_template": {"template_kwargs": {name: 1}}})


def test_variables_without_a_chat_template_are_refused(tokenizer_folder: Path) -> None:
    config = config_of(tokenizer_folder, {"format_type": "completion", "template_kwargs": {"a": 1}}, None)
    with pytest.raises(ConfigError, match=r"template_kwargs.*format_type: chat"):
        renderer(config, {"form": "completion"}, resolve_tokenizer(config))


def test_prompts_for_inference_get_the_variables(tokenizer_folder: Path) -> None:
    config = config_of(tokenizer_folder, {"template_kwargs": {"mode": "slow"}}, MODED)
    table = table_of("messages", [{"messages": TALK, "template_kwargs": ""}])
    out = prompt_renderer(config, FORM, resolve_tokenizer(config))(table)
    assert starts(out) == ["slow;0;"]


DATED = "{% set today = strftime_now('%d %b %Y') %}{% if WHEN %}{{ today }}{% endif %}"


@pytest.mark.parametrize("when", ["false", "tools", "messages | length > 5"])
def test_a_date_that_is_not_written_is_not_demanded(tokenizer_folder: Path, when: str) -> None:
    out = rendered(tokenizer_folder, DATED.replace("WHEN", when) + MODED, None)
    assert starts(out) == ["none;0;"]


def test_a_date_that_only_some_rows_show_rejects_those(tokenizer_folder: Path) -> None:
    out = rendered(tokenizer_folder, DATED.replace("WHEN", "mode is defined") + MODED, ["", '{"mode": "x"}'])
    assert out.table[ROW].to_pylist() == [0]
    assert "date_string" in out.rejects["message"][0].as_py()


CALLS = {
    "concatenates text": "{{ '(' + c.function.arguments + ')' }}",
    "writes JSON": "{{ '(' }}{{ c.function.arguments | tojson }}{{ ')' }}",
    "writes either": "{% set given = c.function.arguments %}({{ given if given is string else given | tojson }})",
    "reads items": "({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %})",
    "writes it bare": "({{ c.function.arguments }})",
}
ARGUMENTS = {"city": "Köln", "days": [1, None], "é": {'a\n"': 2.5}}
EITHER = json.dumps(ARGUMENTS, ensure_ascii=False)
ITEMS = "".join(f"{name}={json.dumps(value, ensure_ascii=False)};" for name, value in ARGUMENTS.items())


@pytest.mark.parametrize("name", CALLS)
def test_arguments_reach_the_template_in_the_form_that_it_renders(tokenizer_folder: Path, name: str) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}CALL"
        "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ).replace("CALL", "{{ c.function.name }}" + CALLS[name])
    spaced = EITHER.replace(": ", ":  ")
    talk: list[Row] = [
        said("user", "Q"),
        said("assistant", tool_calls=[{"id": None, "name": "f", "arguments": spaced}]),
    ]
    config = config_of(tokenizer_folder, {}, template)
    out = renderer(config, FORM, resolve_tokenizer(config))(table_of("messages", [{"messages": talk}]))
    (text,) = out.table["text"].to_pylist()
    takes_text = name in ("concatenates text", "writes either", "writes it bare")
    expected = spaced if takes_text else ITEMS if name == "reads items" else EITHER
    assert text == f"<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nf({expected})<|im_end|>\n"
    given = spaced if takes_text else ARGUMENTS
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": ""}]
    messages[1]["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": given}}]  # pyright: ignore
    assert text == render_jinja_template([messages], chat_template=template)[0][0]
