"""Hostile YAML files, settings, templates, filters, mappings, few-shot files and tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.hostile_inputs.hostile_input import DEFAULTS, FIRST, LAST, MIB, PREVIEW, HostileInput, declaration
from support.hostile_templates import ESCAPES, EXHAUSTING, LARGE, LARGE_ROW, UNAVAILABLE

NAMED = "dataset: {name: x.jsonl}\n"
CHAT = b'{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}\n'


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    yield from _yaml()
    yield from _settings()
    yield from _filters()
    yield from _mappings()
    yield from _templates()
    yield from _beside()


def _yaml() -> Iterator[HostileInput]:
    """Yield texts of YAML files."""
    bomb = "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)])
    merges = "\n".join(
        ["m0: &m0 {k: 1}"] + [f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 10)}]" for n in range(1, 9)]
    )
    texts: dict[str, str | bytes] = {
        "empty": "",
        "only a mark": b"\xef\xbb\xbf",
        "a number": "5",
        "a list": "- 1",
        "a text": "x",
        "null": "null",
        "zeros": b"\0" * 1000,
        "noise": bytes(range(256)),
        "UTF-16": NAMED.encode("utf-16"),
        "latin-1": "name: café\n".encode("latin-1"),
        "5 MiB": "#" * 5 * MIB,
        "an alias bomb": bomb,
        "a merge bomb": merges,
        "an alias of itself": "dataset: &a\n  name: *a",
        "an anchor of itself": "&a [*a]",
        "200,000 brackets": "[" * 200_000,
        "200,000 braces": "{" * 200_000,
        "100,000 dashes": "- " * 100_000,
        "100,000 question marks": "? " * 100_000,
        "100,000 quotes": '"' * 100_001,
        "100,000 anchors": "".join(f"k{n}: &a{n} x\n" for n in range(100_000)),
        "100,000 tags": "!a " * 100_000,
        "1,000 documents": "---\na: 1\n" * 1000,
        "a key of 1 MiB": f"? {'k' * MIB}\n: 1\n",
        "a value of 3 MiB": f"{NAMED}name: {'v' * 3 * MIB}",
        "6,000 digits": f"{NAMED}tokenizer: {{max_length: {'9' * 6000}}}",
        "a base 60 number": f"{NAMED}training: {{x: 1{':59' * 9000}}}",
        "code": f"{NAMED}training: !!python/object/apply:os.system [touch run]",
        "a new object": f"{NAMED}training: !!python/object/new:subprocess.Popen [[touch, run]]",
        "a module": f"{NAMED}training: !!python/module:os",
        "a set": f"{NAMED}training: !!set {{a, b}}",
        "pairs": f"{NAMED}training: !!pairs [a: 1, a: 2]",
        "binary": f"{NAMED}training: {{x: !!binary {'A' * 100_000}}}",
        "an impossible day": f"{NAMED}training: {{x: 2026-99-99}}",
        "tabs": "dataset:\n\tname: x.jsonl",
        "a directive": f"%YAML 9.9\n---\n{NAMED}",
        "a tag directive": f"%TAG ! tag:x,{'y' * 10_000}:\n---\n{NAMED}",
        "a name twice": NAMED * 2,
        "a list as name": f"{NAMED}? [a, b]\n: 1",
        "null as name": f"{NAMED}~: 1",
        "a number as name": f"{NAMED}5: 1",
        "escapes": NAMED + 'name: "\\x1b[2J\\u202e\\0"',
        "lone surrogate": NAMED + 'name: "\\ud800"',
        "folded": f"{NAMED}name: >\n" + "  x\n" * 100_000,
        "only comments": "# x\n" * 200_000,
    }
    for name, text in texts.items():
        yield HostileInput("yaml", name, _rows, "2: x.yaml:?.*", text)


def _rows(folder: Path) -> None:
    (folder / "x.jsonl").write_bytes(FIRST + LAST)


def _settings() -> Iterator[HostileInput]:
    """Yield settings with values that are too large or of another kind."""
    tokenizer = DEFAULTS["tokenizer"]
    sections: dict[str, dict[str, Any]] = {
        "name with slashes": {"name": "../../x"},
        "name of 5,000 letters": {"name": "x" * 5000},
        "name of dots": {"name": ".."},
        "max_length 2^62": {"tokenizer": {**tokenizer, "max_length": 1 << 62}},
        "max_length 2^31": {"tokenizer": {**tokenizer, "max_length": 1 << 31}},
        "max_length 1": {"tokenizer": {**tokenizer, "max_length": 1}},
        "padding 2^62": {"tokenizer": {**tokenizer, "padding": 1 << 62}},
        "vocab_size 2^24": {"tokenizer": {"train": {"vocab_size": 1 << 24}, "special_tokens": {"eos": "</s>"}}},
        "a special token of 100,000 letters": {"tokenizer": {**tokenizer, "special_tokens": {"eos": "x" * 100_000}}},
        "9,000 special tokens": {
            "tokenizer": {**tokenizer, "special_tokens": {"additional": [f"<{n}>" for n in range(9000)]}}
        },
        "an empty special token": {"tokenizer": {**tokenizer, "special_tokens": {"eos": ""}}},
        "a special token of NUL": {"tokenizer": {**tokenizer, "special_tokens": {"eos": "\0", "pad": "\x1b"}}},
        "packing of 2^30": {"tokenizer": {**tokenizer, "max_length": 1 << 30}, "length": {"packing": "concat"}},
        "a stride of 2^30": {"length": {"strategy": "split", "stride": 1 << 30}},
        "workers 10^6": {"compute": {"workers": 1_000_000}},
        "256 examples": {"prompt_template": {"format_type": "text", "few_shot": {"count": 256}}},
        "a seed of -2^63": {"prompt_template": {"format_type": "text", "few_shot": {"count": 1, "seed": -(1 << 63)}}},
        "val_split NaN": {"dataset": {"val_split": float("nan")}},
        "val_split 1e-320": {"dataset": {"val_split": 1e-320}},
        "max_record_bytes 2^62": {"dataset": {"reader": {"max_record_bytes": 1 << 62}}},
        "max_record_bytes 1": {"dataset": {"reader": {"max_record_bytes": 1}}},
        "a format of its own": {"dataset": {"format": "../x"}},
        "a format that lies": {"dataset": {"format": "parquet"}},
        "a format of arrow": {"dataset": {"format": "arrow"}},
        "a format of text": {"dataset": {"format": "text"}},
        "9,000 columns": {"dataset": {"columns": [f"c{n}" for n in range(9000)]}},
        "9,000 kept columns": {"dataset": {"keep_columns": [f"c{n}" for n in range(9000)]}},
        "a kept path of 9,000 steps": {"dataset": {"keep_columns": ["text" + "[0]" * 9000]}},
        "a kept path of NUL": {"dataset": {"keep_columns": ["\0"]}},
        "9,000 splits": {"dataset": {"splits": [f"s{n}" for n in range(9000)]}},
        "a cron of its own": {"schedule": "* * * * * * * *" * 100},
        "a date of its own": {"prompt_template": {"format_type": "text", "date_string": "%" * 10_000}},
        "a type of its own": {"type": "os.system"},
        "a mixture of itself": {"mixture": [{"dataset": "x"}]},
        "dagster tags": {"dagster": {"tags": {f"t{n}": "x" * 1000 for n in range(2000)}}},
    }
    for name, given in sections.items():
        yield declaration("setting", name, **given)


def _filters() -> Iterator[HostileInput]:
    """Yield conditions."""
    conditions = {
        "code": "__import__('os').system('touch run')",
        "an attribute": "text.__class__",
        "a lambda": "(lambda: text)()",
        "a comprehension": "[x for x in text]",
        "a star": "len(*text) > 0",
        "an assignment": "(a := text)",
        "an f-string": "f'{text}' == 'x'",
        "100 powers": "2 ** 99 ** 99 > 0",
        "a number of 3,900 digits": "len(text) > " + "9" * 3900,
        "1e999": "len(text) > 1e999",
        "an overflow": "len(text) * 9223372036854775807 > 0",
        "a division by zero": "len(text) / 0 > 1",
        "a remainder of zero": "len(text) % 0 > 1",
        "a shift": "1 << 9999999999 > 0",
        "2,000 parentheses": "(" * 1990 + "text" + ")" * 1990,
        "2,000 signs": "-" * 2000 + "1 > 0",
        "2,000 nots": "not " * 900 + "text",
        "800 ands": " and ".join(["text"] * 500),
        "10,000 letters": "x" * 10_000,
        "a path of 1,000 steps": "text" + "[0]" * 1000 + " > 0",
        "a path of 400 fields": ".".join(["a"] * 400) + " > 0",
        "a regular expression": "text.matches('(a+)+$')",
        "a long membership": f"text in {['x' * 9] * 300}",
        "a text of NUL": "text == '\\0'",
        "a lone surrogate": "text == '\\ud800'",
        "a row of bytes": "text == b'x'",
        "an imaginary number": "len(text) > 1j",
        "an ellipsis": "text == ...",
        "a walrus of lines": "text\n== 'x'",
        "a NUL": "text\0 == 'x'",
        "nothing": "",
        "only spaces": "   ",
        "backticks": "`" * 3000,
        "a comparison chain": "text" + " < text" * 500,
        "an int of letters": "number(text) > 0",
        "a huge number in text": "number('1e99999') > 0",
        "a slice": "text[0:9999999999] == 'x'",
        "a list of a list": "text in [[[[1]]]]",
    }
    rows = FIRST + LAST + b'{"text": "%s"}\n' % (b"a" * 50_000 + b"!")
    for name, text in conditions.items():
        yield declaration(
            "filter", name, r"0: 3 rows|2: .*dataset.filters|3: .*no rows", rows, dataset={"filters": [text]}
        )
    many = ["len(text) > 0"] * 3000
    yield declaration("filter", "3,000 filters", "", rows, dataset={"filters": many})


def _mappings() -> Iterator[HostileInput]:
    """Yield sources of roles."""
    rows = b'{"a": {"b": [{"c": "x"}, {"c": "y"}]}, "d": "%s"}\n' % (b"a" * 50_000) * 20
    sources: dict[str, Any] = {
        "1,000 steps": "a" + ".b" * 1000,
        "10,000 indices": "a" + "[0]" * 10_000,
        "an index of 10^9": "a.b[999999999].c",
        "an index of 10^30": "a.b[" + "9" * 30 + "].c",
        "an index of -10^9": "a.b[-999999999].c",
        "10,000 placeholders": "{d}" * 10_000,
        "placeholders in placeholders": "{{{{a}}}}",
        "an open placeholder": "{a",
        "a closed placeholder": "a}",
        "an attribute": "{d.__class__}",
        "a format": "{d:>1000000000}",
        "a conversion": "{d!r}",
        "100,000 letters": "x" * 100_000,
        "backticks": "`" * 9999,
        "an open backtick": "`a",
        "a choice of itself": "a[{a}]",
        "choices in choices": "a[{b[{c[{d}]}]}]",
        "NUL": "\0",
        "nothing": "",
        "only dots": "...",
        "only brackets": "[][][]",
        "a lone surrogate": "\ud800",
        "a constant of 3 MiB": {"constant": "x" * 3 * MIB},
        "a constant of a list": {"constant": [1]},
        "a constant of NaN": {"constant": float("nan")},
        "a constant of 2^70": {"constant": 1 << 70},
        "a constant twice": {"constant": 1, "other": 2},
        "a list": ["a"],
        "null": None,
    }
    for name, source in sources.items():
        yield declaration("mapping", name, "", rows, dataset={"column_mapping": {"text": source}})
    many = {f"r{n}": "a" for n in range(9000)}
    yield declaration("mapping", "9,000 roles", "2: ", rows, dataset={"column_mapping": many})


def _templates() -> Iterator[HostileInput]:
    """Yield templates with `{column}`, Jinja templates and chat templates."""
    custom = {
        "an attribute": "{text.__class__}",
        "a format": "{text:>1000000000}",
        "an index": "{text[0]}",
        "nothing": "{}",
        "a number": "{0}",
        "open": "{text",
        "closed": "text}",
        "nested": "{text{text}}",
        "5,000 columns": "".join(f"{{c{n}}}" for n in range(5000)),
        "20,000 times": "{text}" * 20_000,
        "3 MiB": "x" * 3 * MIB + "{text}",
        "NUL": "\0{text}",
        "controls": "\x1b[2J{text}",
        "100,000 braces": "{{" * 100_000 + "{text}",
        "only braces": "{" * 100_000,
    }
    for name, text in custom.items():
        template = {"format_type": "custom", "template": text, "train_on": "all"}
        yield declaration("custom template", name, "", prompt_template=template)
    jinja = {
        "a loop of 10^10": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        "a power": "{{ 9 ** 9 ** 9 ** 9 }}{{ text }}",
        "a text times 10^9": "{{ text * 10 ** 9 }}",
        "a class": "{{ text.__class__.__mro__[1].__subclasses__() }}",
        "a file": "{% include '/etc/passwd' %}",
        "2,000 loops": "{% for a in [1] %}" * 2000 + "{{ text }}" + "{% endfor %}" * 2000,
        "2,000 parentheses": "{{ " + "(" * 2000 + "text" + ")" * 2000 + " }}",
        "an open tag": "{% if text %}",
        "50,000 tags": "{{ text }}" * 50_000,
        "a name of 1 MiB": "{{ " + "a" * 900_000 + " }}",
        "a comment of 1 MiB": "{# " + "a" * 900_000 + " #}{{ text }}",
        "an escape of the sandbox": "{{ cycler.__init__.__globals__.os.popen('touch run').read() }}{{ text }}",
    }
    for name, text in jinja.items():
        template = {"format_type": "jinja", "template": text, "train_on": "all"}
        yield declaration("jinja template", name, "", prompt_template=template)
    attacks = [*ESCAPES, *EXHAUSTING, *UNAVAILABLE, *(text for text, _ in LARGE), *LARGE_ROW]
    for number, text in enumerate(attacks[::5]):
        tokenizer = {**DEFAULTS["tokenizer"], "chat_template": text}
        prompt = {"format_type": "chat"}
        yield declaration("chat template", str(number), "", CHAT, tokenizer=tokenizer, prompt_template=prompt)
    for number, text in enumerate(attacks[1::40]):
        tokenizer = {**DEFAULTS["tokenizer"], "chat_template": text}
        given = {"tokenizer": tokenizer, "prompt_template": {"format_type": "chat"}, "command": PREVIEW}
        yield declaration("chat template", f"preview {number}", "", CHAT, **given)
    messages = {
        "a role of 1 MiB": [{"role": "r" * MIB, "content": "x"}],
        "10,000 turns": [{"role": ("user", "assistant")[n % 2], "content": "x"} for n in range(10_000)],
        "deep arguments": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": _deep(60)}}]}],
        "arguments of text": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 9999}}]}
        ],
        "10,000 calls": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * 10_000}],
        "a class as key": [{"role": "user", "__class__": 1, "content": "x"}],
        "content of lists": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 10_000}],
        "content of numbers": [{"role": "user", "content": 5}],
    }
    good = {"role": "assistant", "content": "y"}
    for name, turns in messages.items():
        row = json.dumps({"messages": [*turns, good]}).encode() + b"\n"
        prompt = {"format_type": "chat"}
        tokenizer = {**DEFAULTS["tokenizer"], "chat_template": CHATML}
        yield declaration("messages", name, "", CHAT + row + CHAT, tokenizer=tokenizer, prompt_template=prompt)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


def _beside() -> Iterator[HostileInput]:
    """Yield files that a YAML names: examples, tools and chat templates."""
    contents = {
        "empty.jsonl": b"",
        "deep.jsonl": b'{"text": ' + b"[" * 100_000,
        "others.jsonl": b'{"other": "x"}\n',
        "bad.jsonl": b"bad\n" * 1000,
        "zeros.jsonl": bytes(MIB),
        "endless.jsonl": b'{"prompt": "' + b"x" * 70 * MIB,
        "many.jsonl": b'{"prompt": "x", "completion": "y"}\n' * 200_000,
        "large.jsonl": b'{"prompt": "%s", "completion": "y"}\n' % (b"x" * MIB) * 10,
        "half.parquet": b"PAR1" + bytes(100),
        "examples.csv": b'prompt,completion\n"' + b"x" * MIB,
        "examples.txt": b"\n" * MIB,
        "a\nb.jsonl": b"{}\n",
        "examples.py": b"import os",
    }
    rows = b'{"prompt": "a", "completion": "b"}\n' * 3
    for name, content in contents.items():

        def written(folder: Path, name: str = name, content: bytes = content) -> None:
            (folder / "x.jsonl").write_bytes(rows)
            (folder / name).write_bytes(content)

        prompt = {"format_type": "completion", "few_shot": {"count": 2, "source": name}}
        config = {**DEFAULTS, "dataset": {"name": "x.jsonl"}, "prompt_template": prompt}
        yield HostileInput("few-shot", name, written, "", config)
    tools = {
        "deep": b"[" * 100_000,
        "digits": b"[" + b"9" * 9000 + b"]",
        "a number": b"5",
        "20 MiB": b'[{"type": "function", "function": {"name": "%s"}}]' % (b"x" * 20 * MIB),
        "100,000": b"[" + b",".join([b'{"type": "function", "function": {"name": "f"}}'] * 100_000) + b"]",
        "not UTF-8": b'["\xff"]',
        "a lone surrogate": rb'[{"type": "function", "function": {"name": "\ud800"}}]',
        "NaN": b'[{"a": NaN}]',
    }
    chat = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
    for name, content in tools.items():

        def write(folder: Path, content: bytes = content) -> None:
            (folder / "x.jsonl").write_bytes(CHAT)
            (folder / "tools.json").write_bytes(content)

        prompt = {"format_type": "chat", "tools": "tools.json"}
        tokenizer = {**DEFAULTS["tokenizer"], "chat_template": chat}
        config = {**DEFAULTS, "dataset": {"name": "x.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt}
        yield HostileInput("tools", name, write, "", config)
    kwargs = {"deep": _deep(14), "many": {f"k{n}": n for n in range(9000)}, "named": {"__class__": 1, "messages": 1}}
    for name, value in kwargs.items():
        prompt = {"format_type": "chat", "template_kwargs": value if name != "deep" else {"a": value}}
        tokenizer = {**DEFAULTS["tokenizer"], "chat_template": chat}
        yield declaration("tools", f"kwargs {name}", "", CHAT, tokenizer=tokenizer, prompt_template=prompt)
