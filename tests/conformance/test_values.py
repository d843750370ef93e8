"""Values that file formats change reach the chat template as from the same rows as JSON Lines.

The oracle is `apply_chat_template` of what `json.loads` reads of each row's line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from support.built_prompts import built_texts, rendered_texts

Row = dict[str, Any]
Write = Callable[[Path, list[Row]], Path]

SHIPPED = Path(trl.__file__).parent / "chat_templates"
ALL_OF_A_ROW = """{% if tools %}{{ tools | tojson }}
{% endif %}{{ opts | tojson if opts is defined else 'no opts' }}{% for m in messages -%}
<{{ m.role }}>{% generation %}{{ m.content or '' }}{% for call in m.tool_calls or [] -%}
{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endgeneration %}
{%- if m.meta is defined %}{{ m.meta | tojson }}{% endif %}</{{ m.role }}>
{%- endfor %}"""
"""A template that shows every null and every missing field."""


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)


def called(arguments: Any, **message: Any) -> Row:
    """Return a row with one tool call."""
    call = {"type": "function", "function": {"name": "act", "arguments": arguments}}
    answer = {"role": "assistant", "content": "Done.", "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "Act."}, {**answer, **message}]}


def described(**parameters: Any) -> Row:
    """Return a row with one tool."""
    tool = {"type": "function", "function": {"name": "act", "description": "Acts.", "parameters": parameters}}
    return {**called({"x": 1}), "tools": [tool]}


STRUCTS: dict[str, list[Row]] = {
    "arguments of different functions": [
        called({"city": "Rome"}),
        called({"query": "x", "count": 2}),
        called({"f": 1.5}),
    ],
    "objects in arguments": [called({"at": {"x": 1}}), called({"at": {"y": 2, "in": {"z": 3}}}), called({"on": True})],
    "lists of objects in arguments": [
        called({"l": [{"a": 1}, {"b": "2"}]}),
        called({"l": []}),
        called({"l": [{"c": [1]}]}),
    ],
    "no arguments beside some": [called({}), called({"city": "Rome"})],
    "empty objects in arguments": [called({"o": {}, "n": 1}), called({"o": {"p": 1}})],
    "nulls in lists of arguments": [called({"l": [1, None, 3]}), called({"m": [None]})],
    "properties": [
        described(type="object", properties={"city": {"type": "string"}}, required=["city"]),
        described(type="object", properties={"unit": {"type": "string", "enum": ["C", "F"]}}),
        described(type="object", properties={"days": {"type": "array", "items": {"type": "integer"}}}),
    ],
    "schemas in schemas": [
        described(properties={"a": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": ["x"]}}]}}),
        described(properties={"a": {"type": "object", "properties": {"b": {"type": "integer", "minimum": 1}}}}),
    ],
    "response formats": [
        {
            **called({"x": 1}),
            "tools": [{"type": "function", "function": {"name": "act", "response_format": {"type": "text"}}}],
        },
        {**called({"x": 1}), "tools": [{"type": "function", "function": {"name": "b", "strict": True}}]},
    ],
    "no tools beside some": [described(type="object"), called({"x": 1}), {**called({"x": 1}), "tools": []}],
    "own fields of messages": [
        called({"x": 1}, meta={"a": 1}),
        called({"x": 1}, meta={"b": {"c": "d"}}),
        called({"x": 1}),
    ],
    "variables of the template": [
        {**called({"x": 1}), "chat_template_kwargs": {"opts": {"a": 1}}},
        {**called({"x": 1}), "chat_template_kwargs": {"opts": {"b": [{"c": 2}, {"d": 3}]}}},
        {**called({"x": 1}), "chat_template_kwargs": {"other": 1}},
    ],
}
"""Rows whose structs have fields that only other rows have."""


def write_lines(path: Path, rows: list[Row]) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path := path.with_suffix(".parquet"))
    return path


def write_feather(path: Path, rows: list[Row]) -> Path:
    feather.write_feather(pa.Table.from_pylist(rows), str(path := path.with_suffix(".feather")))
    return path


def write_stream(path: Path, rows: list[Row]) -> Path:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path := path.with_suffix(".arrow"), table.schema) as stream:
        stream.write_table(table)
    return path


def save_to_disk(path: Path, rows: list[Row]) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    Dataset.from_list(rows).save_to_disk(path)
    return path


FORMATS: dict[str, Write] = {
    "parquet": write_parquet,
    "feather": write_feather,
    "stream": write_stream,
    "disk": save_to_disk,
}


def expected(rows: list[Row], template: str, tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Return `apply_chat_template` of each row as `json.loads` reads it."""
    texts = {}
    for number, row in enumerate(json.loads(json.dumps(row)) for row in rows):
        given = {"tools": row.get("tools") or None, "chat_template": template, **row.get("chat_template_kwargs", {})}
        texts[number] = str(tokenizer.apply_chat_template(row["messages"], tokenize=False, **given))
    return texts


def settings(template: str, tokenizer: PreTrainedTokenizerFast, **sections: Any) -> dict[str, Any]:
    prompt = {"format_type": "chat", "add_eos": False}
    return {
        "tokenizer": {"name_or_path": str(tokenizer.name_or_path), "chat_template": template},
        "prompt_template": prompt | sections.pop("prompt", {}),
        **sections,
    }


@pytest.mark.parametrize("kind", STRUCTS)
@pytest.mark.parametrize("form", FORMATS)
def test_fields_that_only_other_rows_have_are_left_out(
    kind: str, form: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = STRUCTS[kind]
    path = FORMATS[form](tmp_path / "rows", rows)
    for template in (ALL_OF_A_ROW, (SHIPPED / "qwen2_5.jinja").read_text(encoding="utf-8")):
        given = settings(template, tokenizer)
        of_disk = form == "disk"
        texts, rejects = built_texts(path, tmp_path, **given) if of_disk else rendered_texts(path, **given)
        assert rejects == {}
        assert texts == expected(rows, template, tokenizer)
        assert rendered_texts(write_lines(tmp_path / "lines", rows), **given)[0] == texts
