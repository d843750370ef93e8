"""Every kind of JSON value is written as Python writes what `json.loads` reads, alone and among any neighbours."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

from support.built_prompts import Texts, rendered_texts
from support.soak import each

VALUES = {
    "null": "null",
    "true": "true",
    "false": "false",
    "zero": "0",
    "integer": "42",
    "negative": "-7",
    "float that is whole": "1.0",
    "float": "2.5",
    "float of 16 digits": "0.30000000000000004",
    "large float": "1e16",
    "capital exponent": "1E5",
    "small float": "1e-7",
    "negative zero": "-0.0",
    "negative zero as an integer": "-0",
    "trailing zero": "1.50",
    "largest float": "1.7976931348623157e308",
    "beyond 2^53": str(2**53 + 1),
    "largest int64": str(2**63 - 1),
    "beyond int64": str(2**63),
    "beyond uint64": str(2**64),
    "thirty digits": str(10**30),
    "empty text": '""',
    "text": '"word"',
    "text like a number": '"1.0"',
    "text like null": '"null"',
    "text like a list": '"[1, null]"',
    "text like a date": '"2020-01-01T00:00:00Z"',
    "unicode": '"Grüße 你好 👩‍👩‍👧"',
    "escapes": '"a\\"b\\\\c\\n\\u00e9\\u2028\\/<&>"',
    "surrogate pair": '"\\ud83d\\udc4d"',
    "blank": '" \\t"',
    "empty list": "[]",
    "list": '[1, 2.0, "3", null, true]',
    "list of one kind": "[1, 2]",
    "list of texts": '["a", "b"]',
    "empty object": "{}",
    "object": '{"b": null, "a": 1.0}',
    "nested": '{"x": [{"y": {"z": [[]]}}], "é": 18446744073709551617}',
    "key twice": '{"a": 1, "a": 2}',
}
NESTED = [name for name, text in VALUES.items() if text[0] in "[{"]
CUSTOM = "Value: {value}.\nAnswer: {answer}"
JINJA = (
    "{{ value }}|{{ value | tojson }}|{{ value is none }}|{{ value is number }}|{{ value is string }}|"
    "{{ value is mapping }}|{{ value == 1 }}|{% if value %}yes{% endif %}|{{ answer }}"
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if 'value' in message %}[{{ message.value }}|{{ message.value | tojson }}]{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EVERY = list(VALUES)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)


def write(path: Path, names: list[str], row: str) -> Path:
    """Write one row for each kind of value: `row` with `@` replaced by the value."""
    lines = [row.replace("@", VALUES[name]) for name in names]
    path.write_text(f"[{','.join(lines)}]" if path.suffix == ".json" else "\n".join(lines), encoding="utf-8")
    return path


def texts_of(path: Path, tokenizer: PreTrainedTokenizerFast, prompt: dict[str, Any], chat: str | None = None) -> Texts:
    settings = {"name_or_path": str(tokenizer.name_or_path), "chat_template": chat}
    return rendered_texts(path, tokenizer=settings, prompt_template={"add_eos": False, **prompt})


FILES = {
    **{name: [name] for name in EVERY},
    "all": EVERY,
    "all, shuffled": random.Random(1).sample(EVERY * 3, 3 * len(EVERY)),
    "scalars": [name for name in EVERY if name not in NESTED] * 2,
    "numbers": [name for name, text in VALUES.items() if text[0] in "-0123456789"],
    "integers": ["zero", "integer", "negative", "beyond 2^53", "largest int64"],
    "integers next to floats": ["integer", "float", "beyond 2^53", "float that is whole"],
    "integers beside null": ["null", "integer", "beyond 2^53"],
    "booleans beside integers": ["true", "zero", "false", "integer"],
    "texts": [name for name, text in VALUES.items() if text[0] == '"'],
    "texts beside null": ["null", "text", "empty text"],
    "lists": ["empty list", "list of one kind", "list of texts", "list", "null"],
    "objects": ["object", "empty object", "nested", "null"],
}
"""The kinds of values of a file's rows, by the file's name."""


@pytest.mark.parametrize("file", FILES)
def test_a_custom_template_writes_scalars_as_str_does(
    file: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    names = [*FILES[file], "text"] if {*FILES[file]} <= {*NESTED, "null"} else FILES[file]  # of no text: a ConfigError
    path = write(tmp_path / "rows.jsonl", names, '{"value": @, "answer": "yes"}')
    texts, rejects = texts_of(path, tokenizer, {"template": CUSTOM, "label_column": "answer"})
    expected = {}
    for number, name in enumerate(names):
        value = json.loads(VALUES[name])
        if name not in NESTED:
            expected[number] = f"Value: {'' if value is None else value}.\nAnswer: yes"
    assert texts == expected
    assert {number: reject.partition(":")[0] for number, reject in rejects.items()} == {
        number: "not_text" for number, name in enumerate(names) if name in NESTED
    }


@pytest.mark.parametrize(
    ("file", "suffix"),
    [*((file, ".jsonl") for file in FILES), *((file, ".json") for file in FILES if file not in EVERY)],
)
def test_a_jinja_template_gets_what_json_loads_reads(
    file: str, suffix: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    names = FILES[file]
    path = write(tmp_path / f"rows{suffix}", names, '{"value": @, "answer": "yes"}')
    prompt = {"format_type": "jinja", "template": JINJA, "label_column": "answer"}
    texts, rejects = texts_of(path, tokenizer, prompt)
    template = _compile_jinja_template(JINJA)
    expected = [template.render(value=json.loads(VALUES[name]), answer="yes") for name in names]
    assert (texts, rejects) == (dict(enumerate(expected)), {})


@pytest.mark.parametrize(("file", "place"), each(FILES, ["field", "argument", "default"]))
def test_a_chat_template_gets_what_json_loads_reads(
    file: str, place: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    row = {
        "field": '{"messages": [{"role": "user", "value": @, "content": "Why?"},'
        ' {"role": "assistant", "content": "So."}]}',
        "argument": '{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "",'
        ' "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"value": @}}}]}]}',
        "default": '{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],'
        ' "tools": [{"type": "function", "function": {"name": "f", "parameters": {"default": @}}}]}',
    }[place]
    names, chat = FILES[file], {"field": CHAT, "argument": CALLS, "default": TOOLS + CHAT}[place]
    path = write(tmp_path / "rows.jsonl", names, row)
    texts, rejects = texts_of(path, tokenizer, {"format_type": "chat"}, chat)
    rows = [json.loads(row.replace("@", VALUES[name])) for name in names]
    expected = [
        tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=chat, tokenize=False)
        for row in rows
    ]
    assert (texts, rejects) == (dict(enumerate(expected)), {})


TOOLS = "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
CALLS = CHAT.replace(
    "{{ message.content }}",
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function.name }}"
    "({{ call.function.arguments.value }}, {{ call.function.arguments | tojson }}){% endfor %}",
)
