"""Compiled templates write the same bytes as plain Jinja, over whole datasets: all rows in the soak."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import pyarrow as pa
import pytest

from support.chat_writers import OWN
from support.paths import SWEEP_TEMPLATES
from support.real_chat_writers import REAL
from support.small_tokenizers import CONTROL
from support.soak import SOAK
from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.templates.jinja import JinjaTemplate

Row = dict[str, Any]
ROWS = 1 << 30 if SOAK else 2000
DATE = "26 Jul 2024"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
OPAQUE = {"upper-cased"}
CHANGING = {"think-last", "line-ends-replaced", *OPAQUE}
"""Templates that change contents; all but the opaque ones only those that have a text in them."""
CALLING = {"tool_calls", "tool_calls_ignored", "tools_ignored"}
"""Reject codes of conversations whose tools or tool calls are not supported."""


class Generation(jinja2.ext.Extension):
    """`{% generation %}` as an ordinary block."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def plain_jinja(source: str) -> jinja2.Template:
    """Return a template as `transformers` compiles it, except for today's date."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: DATE)
    return environment.from_string(source)


def read(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line] if path.suffix == ".jsonl" else json.loads(text)
    return [rows[index] for index in range(0, len(rows), -(-len(rows) // ROWS))]


def asked(row: Row) -> list[Row]:
    question = "\n\n".join(filter(None, (row["instruction"], row["input"])))
    return [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]


def spoken(row: Row) -> list[Row]:
    """Return a conversation from ShareGPT's layout, with function calls as tool calls."""
    roles = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    talk = []
    for turn in row["conversations"]:
        message = {"role": roles[turn["from"]], "content": turn["value"]}
        if turn["from"] == "function_call":
            call = {"type": "function", "function": json.loads(turn["value"])}
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
        talk.append(message)
    return talk


SETS: dict[str, Callable[[Row], list[Row]]] = {
    "instruct/alpaca_data.json": asked,
    "multilingual/alpaca_zh_demo.json": asked,
    "chat/dummy_conversation.json": spoken,
    "chat/glaive_toolcall_en_demo.json": spoken,
    "chat/openai_sft_barelist.jsonl": lambda row: row["messages"],
    "chat/toy_chat_fine_tuning.jsonl": lambda row: row["messages"],
}


@cache
def rows_of(path: Path) -> list[Row]:
    return [{"messages": row} if isinstance(row, list) else row for row in read(path)]


@cache
def canonical(path: Path) -> pa.Table:
    rows = rows_of(path)
    table = pa.Table.from_pylist(rows).append_column(ROW, pa.array(range(len(rows)), pa.int32()))
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "prompt_template": {"format_type": "chat"}})
    return to_canonical(table, resolve(config, merge([sketch(table)]))).table


def rendered(template: jinja2.Template, talks: Sequence[list[Row]], tools: Sequence[Any]) -> Iterator[str | None]:
    for talk, described in zip(talks, tools, strict=True):
        try:
            yield template.render(messages=talk, tools=described, documents=None, add_generation_prompt=False, **TOKENS)
        except jinja2.TemplateError:
            yield None


@pytest.mark.parametrize("template", [*OWN, *REAL])
def test_a_template_that_compiles_writes_what_jinja_writes(
    template: str, real_data: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = real_data / "chat_templates" if template in REAL else SWEEP_TEMPLATES
    source = (folder / f"{template}.jinja").read_text(encoding="utf-8")
    sections = {
        "dataset": {"name": "x"},
        "prompt_template": {"format_type": "chat", "date_string": DATE, "train_on": "all"},
    }
    prompt = PipelineConfig.from_mapping(sections).prompt_template
    chat = ChatFormat(JinjaTemplate(source, DATE), prompt, TOKENS, CONTROL, None, None)
    assert (chat.opacity is not None) == (template in OPAQUE)
    reference = plain_jinja(source)
    for name, messages in SETS.items():
        table, rows = canonical(real_data / name), rows_of(real_data / name)
        kept = [rows[row] for row in table[ROW].to_pylist()]
        assert len(kept) > 0.99 * len(rows)
        talks = [messages(row) for row in kept]
        tools = [json.loads(row.get("tools") or "null") or None for row in kept]
        expected = dict(zip(table[ROW].to_pylist(), rendered(reference, talks, tools), strict=True))
        record_property("rows" if template not in CHANGING else "opaque", len(expected))
        out = chat.render(table)
        texts = dict(zip(out.table[ROW].to_pylist(), out.table["text"].to_pylist(), strict=True))
        assert texts == {row: expected[row] for row in texts}
        codes = dict(zip(out.rejects[ROW].to_pylist(), out.rejects["code"].to_pylist(), strict=True))
        assert texts.keys() | codes.keys() == expected.keys()
        calling = {row for row, code in codes.items() if code in CALLING}
        assert not calling or name == "chat/glaive_toolcall_en_demo.json"
        if template not in CHANGING:
            refused = {row for row, text in expected.items() if text is None}
            assert {row: codes[row] for row in codes.keys() - calling} == dict.fromkeys(
                refused - calling, "template_refused"
            )
