"""Values that file formats change reach the chat template as from the same rows as JSON Lines.

The oracle is `apply_chat_template` of what `json.loads` reads of each row's line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import trl
from datasets import Dataset, Features, Json, List, Value
from transformers import PreTrainedTokenizerFast

from support.built_prompts import built, built_texts, config_of, rendered_texts
from support.soak import each
from tokenloom.assets.building.build import Build
from tokenloom.errors import ConfigError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

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


@pytest.mark.parametrize(("kind", "form"), each(STRUCTS, FORMATS))
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


def test_nulls_that_can_be_told_stay(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    row = {**called({"city": None, "l": [None]}), "tools": described(properties={"a": None})["tools"]}
    texts = {name: json.dumps(value) for name, value in row.items()}
    given = settings(ALL_OF_A_ROW, tokenizer)
    for kind in (pa.string(), pa.json_()):
        columns = {name: pa.array([text], pa.string()) for name, text in texts.items()}
        if kind != pa.string():
            columns = {name: pa.ExtensionArray.from_storage(kind, text) for name, text in columns.items()}
        pq.write_table(pa.table(columns), path := tmp_path / "rows.parquet")
        assert rendered_texts(path, **given) == (expected([row], ALL_OF_A_ROW, tokenizer), {})


def test_json_features_and_maps_are_objects(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [called({"city": "Rome", "unit": None}), called({"n": 1, "l": [{"a": 1}, {"b": 2}]})]
    function = {"name": Value("string"), "arguments": Json()}
    message = {"role": Value("string"), "content": Value("string")}
    calls = List({"type": Value("string"), "function": function})
    features = Features({"messages": List({**message, "tool_calls": calls})})
    Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "rows")
    given = settings(ALL_OF_A_ROW, tokenizer)
    assert built_texts(tmp_path / "rows", tmp_path / "store", **given) == (expected(rows, ALL_OF_A_ROW, tokenizer), {})
    rows = [described(type="object", properties={"a": {"default": None}}), described(enum=[None])]
    tool = {"type": Value("string"), "function": {**dict.fromkeys(("name", "description"), Value("string"))}}
    tool["function"]["parameters"] = Json()
    features = Features({"messages": Dataset.from_list(rows).features["messages"], "tools": List(tool)})
    Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "tools")
    assert built_texts(tmp_path / "tools", tmp_path, **given) == (expected(rows, ALL_OF_A_ROW, tokenizer), {})
    rows = [{**called({"x": 1}), "chat_template_kwargs": {"opts": {"a": None, "b": "c"}}}]
    kind = pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))
    table = pa.table(
        {
            "messages": pa.array([row["messages"] for row in rows]),
            "chat_template_kwargs": pa.array([[("opts", [("a", None), ("b", "c")])]], kind),
        }
    )
    pq.write_table(table, path := tmp_path / "map.parquet")
    assert rendered_texts(path, **given) == (expected(rows, ALL_OF_A_ROW, tokenizer), {})


def test_what_cannot_be_told_is_reported_once_with_the_setting(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = STRUCTS["arguments of different functions"]
    path = write_parquet(tmp_path / "rows", rows)
    for dataset, told in (({}, True), ({"struct_nulls": "omit"}, False), ({"struct_nulls": "keep"}, False)):
        build = Build(
            config_of(path, **settings(ALL_OF_A_ROW, tokenizer), dataset=dataset),
            ArtifactStore(tmp_path / "store"),
            ComputeEngine(1),
        )
        lines = [notice for report in build.run_all("columns") for notice in report.notices]
        assert lines == [line for line in lines if told and "3 rows" in line and "dataset.struct_nulls: keep" in line]
        assert len(lines) == told
    kept = rendered_texts(path, **settings(ALL_OF_A_ROW, tokenizer), dataset={"struct_nulls": "keep"})[0]
    assert all('"f": null' in text or '"city": null' in text for text in kept.values())
    lines = write_lines(tmp_path / "rows", rows)
    with pytest.raises(ConfigError, match="struct_nulls: jsonl files keep every null"):
        built(lines, tmp_path / "store", **settings(ALL_OF_A_ROW, tokenizer), dataset={"struct_nulls": "keep"})


def test_struct_nulls_of_a_jinja_template_over_columns(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"meta": {"a": 1}, "said": "x"}, {"meta": {"b": [{"c": 2}, {"d": 3}]}, "said": "y"}]
    prompt = {"format_type": "jinja", "template": "{{ meta | tojson }} {{ said }}", "label_column": "said"}
    given = {"tokenizer": {"name_or_path": str(tokenizer.name_or_path)}, "prompt_template": prompt}
    texts = rendered_texts(write_parquet(tmp_path / "rows", rows), **given)
    assert texts == rendered_texts(write_lines(tmp_path / "rows", rows), **given)
    assert texts[0][0].startswith(json.dumps(rows[0]["meta"]))


PRINTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
READS = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else -%}
{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}</{{ m.role }}>{% endfor %}"""
BETWEEN = READS.replace("{{ part.text }}", "{{ part.text }}|")
FIRST = READS.replace("{% for part in m.content %}{{ part.text }}{% endfor %}", "{{ m.content[0].text }}")
OF_USERS = READS.replace("m.content is string", "m.content is string or m.role == 'user'")
PARTS: dict[str, Any] = {
    "one": [{"type": "text", "text": "Hi"}],
    "empty": [{"type": "text", "text": ""}],
    "two": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}],
    "without types": [{"text": "Hi "}, {"text": "there"}],
    "texts": ["Hi ", "there"],
    "mixed": [{"type": "text", "text": "Hi "}, "there"],
    "with more fields": [
        {"type": "text", "text": "Hi ", "cache": {"type": "x"}},
        {"type": "text", "text": "."},
    ],
    "none": [],
}


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("template", [PRINTS, READS, BETWEEN, FIRST, OF_USERS])
def test_parts_reach_templates_that_read_them_and_others_get_their_text(
    template: str, role: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    def conversation(content: Any) -> Row:
        asked = [] if role == "user" else [{"role": "user", "content": "Q"}]
        answer = [] if role == "assistant" else [{"role": "assistant", "content": "A"}]
        return {"messages": [*asked, {"role": role, "content": content}, *answer]}

    kinds = [kind for kind in PARTS if role != "assistant" or kind not in ("empty", "none")]
    rows = [conversation(PARTS[kind]) for kind in kinds]
    texts, rejects = rendered_texts(write_lines(tmp_path / "rows", rows), **settings(template, tokenizer))
    for number, kind in enumerate(kinds):
        joined = "".join(part if isinstance(part, str) else part["text"] for part in PARTS[kind])
        allowed = expected([conversation(joined)], template, tokenizer)[0]
        if template == BETWEEN and all(isinstance(part, dict) for part in PARTS[kind]) and kind != "none":
            if role == "assistant" and len(PARTS[kind]) > 1:
                assert rejects[number].startswith("content_parts")
                continue
            allowed = expected([conversation(PARTS[kind])], template, tokenizer)[0]
        assert texts[number] == allowed, kind


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "image", "video", "input_file", "document"])
def test_parts_that_are_not_text_are_rejected(kind: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    content = [{"type": "text", "text": "See"}, {"type": kind, kind: {"url": "x"}}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": "Q"},
                {"role": role, "content": content},
                *called({})["messages"][1:],
            ]
        }
        for role in ("user", "system", "tool", "assistant")
    ]
    texts, rejects = rendered_texts(write_lines(tmp_path / "rows", rows), **settings(PRINTS, tokenizer))
    assert texts == {}
    assert all(reject.startswith("not_text") and kind in reject for reject in rejects.values())


DATES = {
    "2025-06-01": datetime(2025, 6, 1),
    "2025-06-01T13:05:09": datetime(2025, 6, 1, 13, 5, 9),
    "26 Jul 2024": datetime(2024, 7, 26),
    "July 4, 2024": datetime(2024, 7, 4),
}


@pytest.mark.parametrize("form", ["%d %b %Y", "%Y-%m-%d", "%A, %B %d, %Y", "%Y-%m-%d %H:%M"])
@pytest.mark.parametrize("date", DATES)
def test_dates_are_written_as_the_template_asks(
    date: str, form: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = f"{{{{ strftime_now('{form}') }}}}|{{{{ date_string }}}}|{READS}"
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    path = write_lines(tmp_path / "rows", [{"messages": messages}])
    texts, _ = rendered_texts(path, **settings(template, tokenizer, prompt={"date_string": date}))
    assert texts[0].split("|")[:2] == [DATES[date].strftime(form), date]


@pytest.mark.parametrize("date", ["today", "01/02/2024", "2024", "2024-13-45"])
def test_dates_that_are_none_are_refused(date: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = write_lines(tmp_path / "rows", [called({"x": 1})])
    given = settings("{{ strftime_now('%d %b %Y') }}" + READS, tokenizer, prompt={"date_string": date})
    with pytest.raises(ConfigError, match=f"date_string is '{date}'; write it like 2024-07-26"):
        rendered_texts(path, **given)
