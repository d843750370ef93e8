"""Jinja templates over columns get the values of `json.loads` and `to_pylist`: texts compared with plain jinja2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.raw_rows import chunks_of
from support.rendered_prompts import assert_partition, trained_parts
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.columns.stage import STAGE
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.definition import ChunkOutput, validate
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import resolve_tokenizer

NUMBERS = """
    0 1 -1 -0 2.5 1.0 1.10 -0.0 1e5 1E-7 1e16 1e400 0.1 9007199254740993 9223372036854775808 18446744073709551616
    -9223372036854775809 NaN -Infinity
""".split()  # noqa: SIM905
TEXTS = ['""', '"a"', '"1"', '"null"', '" \\u00e9\\n "', '"2020-01-01"', '"\\ud83d\\ude00"', '"a \\"b\\" \\\\"']
OTHERS = [
    "null",
    "true",
    "false",
    "[]",
    "{}",
    '["a", 1, null]',
    '{"b": null, "a": [1.0, {"z": 2, "y": "x"}]}',
    '{"a": 1}',
]
VALUES = [*NUMBERS, *TEXTS, *OTHERS]

WRITTEN = [
    "{{ x }}> {{ answer }}",
    "{{ x | tojson }}> {{ answer }}",
    "{% if x is none %}none{% elif x is string %}s: {{ x }}{% elif x is number %}n: {{ x }}{% else %}{{ x | tojson }}"
    "{% endif %}> {{ answer }}",
    "{% if x is sequence and x is not string %}{% for item in x %}{{ loop.index }}. {{ item }}\n{% endfor %}"
    "{% else %}{{ x }}{% endif %}> {{ answer }}",
    "{{ x.a }} {{ x if x is string }}> {{ answer }}",
    "{% if x is number and x > 1 %}big{% else %}{{ x }}{% endif %}> {{ answer }}",
    "{% if x is not string and x %}yes {% endif %}{{ x if x is string else '' }}> {{ answer }}",
]


def plain(template: str, variables: dict[str, Any]) -> str:
    """The text that plain jinja2 makes, with `tojson` as in chat templates."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(**variables)


def render(table: pa.Table, folder: Path, **prompt: Any) -> ChunkOutput:
    config = PipelineConfig.from_mapping(
        {
            "dataset": {"name": "x"},
            "tokenizer": {"name_or_path": str(folder)},
            "prompt_template": {"format_type": "jinja", "add_bos": False, "add_eos": False, **prompt},
        }
    )
    mapping = resolve(config, merge([sketch(table)]))
    canonical = to_canonical(table, mapping)
    validate(STAGE, canonical.table)
    assert canonical.rejects.num_rows == 0, canonical.rejects.to_pylist()
    return renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical.table)


def table_of(lines: list[str], folder: Path) -> pa.Table:
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (chunk,) = chunks_of(folder / "rows.jsonl")
    return chunk.load().table


@pytest.mark.parametrize("template", WRITTEN)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_template_gets_the_values_of_json(tokenizer_folder: Path, tmp_path: Path, template: str, mixed: bool) -> None:
    lines = [f'{{"x": {value}, "answer": "because {number}"}}' for number, value in enumerate(VALUES)]
    for group in [lines] if mixed else [[line] for line in lines]:
        out = render(table_of(group, tmp_path), tokenizer_folder, template=template, label_column="answer")
        assert out.rejects.to_pylist() == []
        for line, made in zip(group, out.table.to_pylist(), strict=True):
            row = json.loads(line)
            assert made["text"] == plain(template, row)
            assert_partition(made["text"], made["spans"])
            space = " " * template.endswith(" {{ answer }}")  # white space before the label belongs to it
            assert trained_parts(made["text"], made["spans"]) == [space + row["answer"]]


LOOPS = [
    "{% for part in ['Q: '] %}{{ part }}{{ q }} A: {{ a.strip() }}{% endfor %}",
    "{% for m in [1] %}{% set z = a %}{{ q.upper() }} {{ z }}{% endfor %}",
    "{% for m in [a] %}{{ q.split()[0] }}> {{ m.strip() }}{% endfor %}",
    "{% for m in [q] %}{{ m.replace(' ', '_') }}{% for n in [m] %}{{ n.title() }}{% endfor %}{% endfor %}> {{ a }}",
    "{% for m in [a] %}{% for w in q.split() %}{{ w.lower() }} {% endfor %}{% endfor %}> {{ a }}",
    "{% for m in [a] %}{{ '-'.join([q, q]) }}{{ '{}!'.format(q) }}{{ q | upper }}> {{ m }}{% endfor %}",
    "{% macro say(text) %}{{ text.strip() }}{% endmacro %}{% for m in [1] %}{% set z = a %}{{ say(q) }}> {{ z }}"
    "{% endfor %}",
    "{% for m in [1] %}{% set z = a %}{% set y = namespace(v=q.strip()) %}{{ y.v }}> {{ z }}{% endfor %}",
]


@pytest.mark.parametrize("template", LOOPS)
def test_variables_of_a_loop_are_no_arguments_of_what_is_called_in_it(
    tokenizer_folder: Path, tmp_path: Path, template: str
) -> None:
    """Jinja hands the variables that are set in a loop or block to every call in it."""
    row = {
        "q": "does it work",
        "a": " yes, it does " if "a.strip" in template or "m.strip" in template else "yes, it does",
    }
    out = render(table_of([json.dumps(row)], tmp_path), tokenizer_folder, template=template, label_column="a")
    assert out.rejects.to_pylist() == []
    (made,) = out.table.to_pylist()
    assert made["text"] == plain(template, row)
    assert_partition(made["text"], made["spans"])
    assert [part.strip() for part in trained_parts(made["text"], made["spans"])] == ["yes, it does"]


@pytest.mark.parametrize("value", [*NUMBERS, "true", "false", '"text"'])
def test_an_answer_that_is_a_number_is_trained(tokenizer_folder: Path, tmp_path: Path, value: str) -> None:
    lines = [f'{{"q": "what", "x": {value}}}', '{"q": "which", "x": "text"}']
    for group in (lines[:1], lines):
        out = render(table_of(group, tmp_path), tokenizer_folder, template="{{ q }}> {{ x }}", label_column="x")
        for line, made in zip(group, out.table.to_pylist(), strict=True):
            row = json.loads(line)
            assert made["text"] == plain("{{ q }}> {{ x }}", row)
            assert trained_parts(made["text"], made["spans"]) == [f" {row['x']}"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "n": st.one_of(st.none(), st.integers(-3, 3)),
                "s": st.one_of(st.none(), st.text("ab ", max_size=3)),
                "l": st.one_of(st.none(), st.lists(st.text("ab", max_size=2), max_size=2)),
                "d": st.fixed_dictionaries({"a": st.floats(-2, 2)}),
                "answer": st.text("xyz", min_size=1, max_size=3),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_template_gets_the_values_that_arrow_holds(tokenizer_folder: Path, rows: list[dict[str, Any]]) -> None:
    types = {"n": pa.int64(), "s": pa.string(), "l": pa.list_(pa.string()), "d": pa.struct([("a", pa.float64())])}
    table = pa.Table.from_pylist(rows, pa.schema({**types, "answer": pa.string()}))
    table = table.append_column(ROW, pa.array(range(len(rows)), pa.int32()))
    template = "{{ n }} {{ s }} {{ l | tojson }} {{ d.a }}{% if n %}!{% endif %}> {{ answer }}"
    out = render(table, tokenizer_folder, template=template, label_column="answer")
    assert out.table["text"].to_pylist() == [plain(template, row) for row in rows]


def test_control_tokens_within_lists_are_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = ['{"x": ["</s>"], "answer": "a"}', '{"x": ["s"], "answer": "b"}', '{"x": [], "answer": ["c"]}']
    template = "{{ x | join }}> {{ answer }}"
    out = render(table_of(lines, tmp_path), tokenizer_folder, template=template, label_column="answer")
    assert out.table["text"].to_pylist() == ["s> b"]
    assert [reject["code"] for reject in out.rejects.to_pylist()] == ["control_token_in_content", "not_text"]
