"""The sandbox: hostile templates are refused quickly and reproducibly, others render as in plain Jinja."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.hostile_templates import ESCAPES, EXHAUSTING, LARGE, LARGE_ROW, UNAVAILABLE
from support.processes import run
from support.rendered_prompts import Render, renders
from support.soak import SOAK
from support.template_grammar import templates
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SandboxError, TemplateError
from tokenloom.resources.templates.jinja import JinjaTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>", "unk_token": "<unk>"}
TALK = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "Why <b>?", "name": "Ann"},
    {
        "role": "assistant",
        "content": "Because.\nSo.",
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
    },
]
VARIABLES = {"messages": TALK, "tools": [{"name": "f", "parameters": {"type": "object"}}], "x": None, **TOKENS}


REPEATED = [*ESCAPES, *EXHAUSTING[:: 1 if SOAK else 9]]


@pytest.mark.parametrize("template", ESCAPES + EXHAUSTING)
def test_hostile_templates_are_refused_quickly_and_reproducibly(template: str) -> None:
    started = time.process_time()
    refused = []
    for _ in range(1 + (template in REPEATED)):
        with pytest.raises(SandboxError, match=r"^template, line 3: ") as caught:
            JinjaTemplate("{{ bos_token }}\n\n" + template).render(VARIABLES)
        refused.append((str(caught.value), caught.value.line))
    assert refused[0] == refused[-1]
    assert " at 0x" not in refused[0][0]
    assert time.process_time() - started < 5


def test_an_integer_has_at_most_4096_bits() -> None:
    assert JinjaTemplate("{{ 2 ** 4095 > 0 }}").render(VARIABLES) == "True"
    with pytest.raises(SandboxError, match="an integer has more than 4096 bits"):
        JinjaTemplate("{{ 2 ** 4095 * 2 > 0 }}").render(VARIABLES)


def test_a_template_cannot_call_what_counts_its_work() -> None:
    template = JinjaTemplate("{{ messages | map('work of spend', -5) | list }}")
    assert "work of spend" in template._template.environment.filters
    with pytest.raises(TemplateError, match="No filter named 'work of spend'"):
        template.render(VARIABLES)


@pytest.mark.parametrize(("source", "message"), LARGE)
def test_a_template_that_is_too_large_is_refused_before_it_is_compiled(source: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(TemplateError, match=message):
        JinjaTemplate(source)
    assert time.process_time() - started < 5


MEASURED = """
import json, resource, sys, time
from pathlib import Path
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import JinjaTemplate

def peak():
    status = Path("/proc/self/status")  # getrusage counts the memory of the process that started this one, too
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) // 1024

text = "xé😀 y\\n" * 170_000
messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "So.", "name": "Ann"}]
for source in json.load(sys.stdin):
    started = time.process_time()
    try:
        JinjaTemplate(source).render({"messages": messages, "eos_token": "</s>"})
        refused = False
    except TemplateError:
        refused = True
    print(json.dumps([refused, time.process_time() - started, peak()]), flush=True)
"""


@pytest.mark.parametrize("templates", [LARGE_ROW, *([EXHAUSTING] if SOAK else [])])
def test_a_row_of_a_megabyte_takes_bounded_time_and_memory(templates: list[str]) -> None:
    """Seconds of CPU time; memory is the process's peak, which the templates share."""
    done = run([sys.executable, "-c", MEASURED], input=json.dumps(templates), check=True)
    measured = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(measured) == len(templates)
    assert templates is EXHAUSTING or all(refused for refused, _, _ in measured)
    assert max(seconds for _, seconds, _ in measured) < 10
    assert max(megabytes for _, _, megabytes in measured) < 1000


@pytest.mark.parametrize("template", UNAVAILABLE)
def test_unsupported_tags_are_refused_at_compile_time(template: str) -> None:
    with pytest.raises(TemplateError, match=r"^template, line 2: "):
        JinjaTemplate("\n" + template)


@pytest.mark.parametrize(
    "number", ["9" * 5000, "(" * 5000 + "1" + ")" * 5000, "[" * 5000 + "]" * 5000, "1" + "+1" * 9000]
)
def test_a_template_that_python_cannot_compile_is_a_template_error(number: str) -> None:
    with pytest.raises(TemplateError):
        JinjaTemplate("{{ " + number + " }}")


def test_deeply_nested_loops_are_a_template_error() -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        JinjaTemplate("{% for a in x %}" * 30 + "{% endfor %}" * 30)


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> str:
        return caller()


def plain(source: str) -> jinja2.Template:
    """Return the template in Jinja's own sandbox, set up as in `transformers`."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


EXPRESSIONS = r"""
'a' + 'b' + m.role + m.content
1 + 2 + 3
[1] + [2] + messages[:1]
'a' ~ 1 ~ none ~ m.content
3 - 1 - 1
2 * 3 ~ 'ab' * 2 ~ 2 * [1]
2 ** 3 ~ 7 % 3 ~ 7 // 2 ~ 7 / 2 ~ -2
'%s-%05d %5.2f%%' % (m.role, 7, 1.5)
'%(a)s' % {'a': 1}
1 < 2 < 3
(m.role == 'user') != (loop.index0 % 2 == 0)
m == messages[0]
m.role in ['user', 'system'] and 'content' in m and 'x' not in m.content
m.content[1:3] ~ m.content[::-1]
messages[-1].content ~ messages[9] is defined
m['role'] ~ m.nothing ~ m['nothing'] ~ (m.nothing is undefined)
{'a': m.role}['a'] ~ (1, 2) ~ [m.role, 1.5, true, none] ~ {1: 2} ~ m
m.name if m.name
m.content.strip().upper() ~ m.content.split('\n')[-1] ~ m.content.splitlines()
m.content.startswith('B') ~ '-'.join(['a', 'b']) ~ m.content.replace('e', 'E')
'{:>5}|{a!r}'.format(1, a='x') ~ '{a}'.format_map({'a': 2})
'x'.center(5) ~ 'a\tb'.expandtabs(2) ~ m.content.strip(' .') ~ m.content.lstrip('B')
m.get('name', 'none') ~ (m.items() | list) ~ (m.keys() | join(',')) ~ m.values()
[1, 2].index(2) ~ (1.0).is_integer() ~ (range(3) | list)
m.content | trim ~ m.content | length ~ m.role | upper
m.content | replace('e', 'E')
m | tojson ~ m | tojson(indent=2)
messages | map(attribute='role') | join(', ')
('user' in messages | map(attribute='role')) ~ ('x' in messages | map(attribute='role') | list)
messages | map('length') | list
'user' in messages | map(attribute='role')
messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list
messages | rejectattr('name') | list
[1, 2, 3] | select('odd') | sum
messages | first ~ messages | last
messages | reverse | list | length
messages | sort(attribute='role') | map(attribute='role') | list
messages | groupby('role') | list
[3, 1, 2] | sort | join ~ [1, 1] | unique | list ~ [1, 2] | min ~ [1, 2] | max
[1, 2, 3] | batch(2, 0) | list ~ [1, 2, 3] | slice(2) | list
{'b': 1, 'a': 2} | dictsort
m.content | indent(2) ~ m.content | wordwrap(5) ~ m.content | truncate(6)
m.content | escape ~ '<'
(m.content | escape) + '<'
('<b>' | safe) + '<' ~ (m.content | striptags)
m.content | title ~ m.content | wordcount ~ m.content | capitalize
1.234 | round(2) ~ '12' | int + 1 ~ '1.5' | float ~ -3 | abs ~ 12345 | filesizeformat
m.content | urlencode ~ x | default('d', true) ~ '%s!' | format(m.role)
m | items | list
(m.role is string) ~ (1 is number) ~ (m is mapping) ~ (3 is odd) ~ (4 is divisibleby(2))
(m.role is in(['user'])) ~ (m.role is eq('user')) ~ (m.role is lower) ~ (x is none) ~ (messages is iterable)
loop.index ~ loop.last ~ loop.length ~ loop.cycle('a', 'b') ~ loop.changed(m.role)
loop.previtem.role if loop.previtem
cycler('a', 'b').next() ~ namespace(a=m.role).a ~ dict(a=1) ~ joiner(', ')()
f(m.role, y='z')
m.nothing.more
m.content + 1
raise_exception('no')
m.content | int(base=99)
messages[0].content.index('absent')
('9' * 6000) | int ~ ('9' * 30) | int + 1
'a' + 'b' + 'c' + 'd' + 'e' + 'f' + 'g' + 'h' + 'i' + 'j' + m.role
""".strip().splitlines()


def same(source: str) -> None:
    """Check that a template renders as in Jinja's own sandbox, or is refused if that fails."""
    try:
        expected = plain(source).render(VARIABLES)
    except Exception:
        with pytest.raises(TemplateError) as caught:
            JinjaTemplate(source).render(VARIABLES)
        assert not isinstance(caught.value, SandboxError)
    else:
        assert JinjaTemplate(source).render(VARIABLES) == expected


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_evaluates_as_in_jinja(expression: str) -> None:
    macro, loop = "{% macro f(x, y='') %}<{{ x }}{{ y }}>{% endmacro %}", "{% for m in messages if m.role %}"
    same(macro + loop + "{{ " + expression + " }};{% endfor %}")
    same(macro + loop + "{% if " + expression + " %}a{% else %}b{% endif %}{% endfor %}")
    same(macro + loop + "{% set v = " + expression + " %}{% set b | trim %} {{ v }} {% endset %}{{ b }}{% endfor %}")


STATEMENTS = [
    "{% for a in [[1, [2]], [3]] recursive %}{{ a if a is number else loop(a) }}{{ loop.depth }}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% else %}none{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{% continue %}{% endfor %}",
    "{% macro f(x) %}{{ caller(x) }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% call(y) f(1, 2, z=3) %}{{ y }}{% endcall %}",
    "{% filter upper | replace('A', 'b') %}a {{ messages[0].role }}{% endfilter %}",
    "{% with a = 1, b = messages[0].role %}{{ a ~ b }}{% endwith %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.role | length %}{% endfor %}{{ ns.n }}",
    "{% set a, b = 1, 2 %}{{ a + b }}{% set c %}{{ a }}{% endset %}{{ c }}{% raw %}{{ a }}{% endraw %}",
    "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
]


@pytest.mark.parametrize("template", STATEMENTS)
def test_a_statement_does_what_it_does_in_jinja(template: str) -> None:
    same(template)


@settings(max_examples=1000 if SOAK else 100)
@given(templates())
def test_a_random_template_renders_as_in_jinja(template: str) -> None:
    try:
        JinjaTemplate(template)
    except TemplateError:  # a break within a block
        return
    same(template)


def long_talk(turns: int, characters: int) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[turn % 2], "content": f"{turn} " + "x" * characters} for turn in range(turns)
    ]


@pytest.mark.parametrize(("turns", "characters"), [(2, 1_000_000), (10_000, 100), (10_000, 0)])
def test_real_templates_render_long_messages_and_conversations(real_data: Path, turns: int, characters: int) -> None:
    variables = {**VARIABLES, "tools": None, "messages": long_talk(turns, characters), "add_generation_prompt": False}
    for path in sorted((real_data / "chat_templates").glob("*")):
        source = path.read_text(encoding="utf-8")
        assert JinjaTemplate(source).render(variables) == plain(source).render(variables), path.name


def test_the_work_allowance_grows_with_the_data() -> None:
    every_pair = JinjaTemplate("{% for m in messages %}{% for n in messages %}{{ n.role }}{% endfor %}{% endfor %}")
    cubed = JinjaTemplate("{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}")
    assert len(every_pair.render({"messages": long_talk(300, 10)})) == 300 * 300 * 6.5
    assert cubed.render({"x": "x" * 50}) == ""
    with pytest.raises(SandboxError, match="more than 9,091,584 units of work for one row"):
        cubed.render({"x": "x" * 500})


INERT = st.sampled_from(
    ("{{ 7 * 7 }}", "{% for i in range(10 ** 9) %}x{% endfor %}", "{% include 'x' %}", "{{ ''.__class__ }}", "%s{0}{a}")
)


@given(st.lists(st.one_of(INERT, st.text(max_size=9)), min_size=2, max_size=4))
def test_template_syntax_in_data_is_plain_text(contents: list[str]) -> None:
    talk = [{"role": "user", "content": content, "name": content} for content in contents]
    source = "{% for m in messages %}{{ m.content ~ m.name }}{{ m.content }}{{ m.content + '' }}{% endfor %}"
    assert JinjaTemplate(source).render({"messages": talk}) == "".join(content * 4 for content in contents)


def test_rows_cannot_contain_templates(tokenizer_folder: Path) -> None:
    render: Render = renders(tokenizer_folder)
    rows = [
        {"prompt": "{{ 7 * 7 }}", "completion": "{% raise %}"},
        {"prompt": "{{ ''.__class__ }}", "completion": "{#"},
    ]
    chat = "{% for m in messages %}{{ m.content }}{{ m.content | length }}{% endfor %}"
    written = ["{{ 7 * 7 }}11{% raise %}11", "{{ ''.__class__ }}18{#2"]
    whole = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    out = render(rows, {"format_type": "chat", "add_eos": False}, {"chat_template": whole})
    assert out.table["text"].to_pylist() == ["{{ 7 * 7 }}|{% raise %}|", "{{ ''.__class__ }}|{#|"]
    assert [JinjaTemplate(chat).render({"messages": [{"content": text} for text in row.values()]}) for row in rows] == (
        written
    )
    fields = {"format_type": "jinja", "template": "{{ q }}={{ a }}", "label_column": "a", "add_eos": False}
    out = render([{"q": row["prompt"], "a": row["completion"]} for row in rows], fields)
    assert out.table["text"].to_pylist() == ["{{ 7 * 7 }}={% raise %}", "{{ ''.__class__ }}={#"]


@pytest.mark.parametrize("name", ["items", "update", "get", "keys", "__class__", "format", "__init__", "_x", "pop"])
def test_fields_named_like_methods_are_read_by_index(name: str) -> None:
    tools = {"tools": [{name: "{{ 7 * 7 }}"}]}
    assert JinjaTemplate("{{ tools[0]['" + name + "'] }}").render(tools) == "{{ 7 * 7 }}"
    assert JinjaTemplate("{{ tools | tojson }}").render(tools) == json.dumps([{name: "{{ 7 * 7 }}"}])
    dotted = JinjaTemplate("{{ tools[0]." + name + " }}")
    if hasattr(dict, name):
        with pytest.raises(SandboxError):
            dotted.render(tools)
    else:
        assert dotted.render(tools) == "{{ 7 * 7 }}"


@pytest.mark.parametrize(
    ("line", "template"),
    [
        (1, "{{ x.y }}"),
        (3, "a\n\n{{ [][0].b }}\n"),
        (2, "{% macro f(x) %}\n{{ x + 1 }}\n{% endmacro %}\n\n{{ f('a') }}"),
        (4, "{% for i in [1] %}\n{% if i %}\n{% set a = 1 %}\n{{ raise_exception('no') }}\n{% endif %}{% endfor %}"),
        (3, "{% set x %}\na\n{{ 1 / 0 }}{% endset %}"),
        (2, "\n{{ [1] | map('upper', 1) | list }}"),
        (2, "\n{{ '{0}{5}'.format(1) }}"),
        (2, "\n{{ cycler() }}"),
        (2, "\n{{ x | truncate(1, true, 'long') }}"),
        (2, "\n{{ {} | dictsort(by='z') }}"),
    ],
)
def test_every_error_of_a_template_names_its_line(line: int, template: str) -> None:
    with pytest.raises(TemplateError, match=f"^template, line {line}: ") as caught:
        JinjaTemplate(template).render({})
    assert caught.value.line == line


def test_a_template_survives_pickling() -> None:
    template = JinjaTemplate("{{ strftime_now('%d') }} {{ x }}", "26 Jul 2024")
    assert pickle.loads(pickle.dumps(template)).render({"x": 1}) == "26 1"


def chat_config(folder: Path, tokenizer: Path, template: str) -> PipelineConfig:
    """Return a config whose chat template starts on line 5 of the file."""
    text = f"dataset: {{name: x.jsonl}}\ntokenizer:\n  name_or_path: {tokenizer}\n  chat_template: "
    block = template if "{" not in template else "|\n    " + template.replace("\n", "\n    ")
    (folder / "data.yaml").write_text(text + block + "\nprompt_template: {format_type: chat}\n", encoding="utf-8")
    return PipelineConfig.from_file(folder / "data.yaml")


def fault_of(config: PipelineConfig) -> str:
    from tokenloom.assets.prompts.render import renderer
    from tokenloom.resources.tokenizers import resolve_tokenizer

    with pytest.raises(ConfigError) as caught:
        renderer(config, {"form": "messages", "roles": {}}, resolve_tokenizer(config))
    assert caught.value.exit_code == 2
    assert len(caught.value.faults) == 1
    return str(caught.value).replace(str(config._origin.path.parent) + os.sep if config._origin else "", "")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("{{ ''.__class__ }}", "refused by the sandbox: __class__"),
        ("{% for m in x %}", "Unexpected end of template"),
        ("{{ x | nofilter }}", "No filter named 'nofilter'"),
        ("{% include 'x' %}", "include is not available"),
        ("{{ 'x' * 10 ** 9 }}", "refused by the sandbox: more than 8,"),
        ("{{ strftime_now('%d') }}", "refused by the sandbox: it asks for today's date; set "),
    ],
)
def test_a_hostile_or_broken_template_is_one_fault_of_the_config_at_its_line(
    tmp_path: Path, tokenizer_folder: Path, broken: str, said: str
) -> None:
    inline = chat_config(tmp_path, tokenizer_folder, "{# first #}\n" + broken)
    assert fault_of(inline).startswith(f"data.yaml:6: tokenizer.chat_template: template, line 2: {said}")
    (tmp_path / "own.jinja").write_text("{# first #}\n" + broken, encoding="utf-8")
    elsewhere = chat_config(tmp_path, tokenizer_folder, "own.jinja")
    assert fault_of(elsewhere).startswith(f"data.yaml:4: tokenizer.chat_template: own.jinja, line 2: {said}")


def test_a_fields_template_that_is_hostile_is_a_fault_of_the_config(tokenizer_folder: Path) -> None:
    prompt = {"format_type": "jinja", "template": "{{ a }}\n{{ q.__class__ }}", "label_column": "a"}
    with pytest.raises(ConfigError, match=r"prompt_template\.template: template, line 2: refused by the sandbox"):
        renders(tokenizer_folder)([{"q": "x", "a": "y"}], prompt)


def test_an_error_of_a_template_rejects_the_row_with_its_line(tokenizer_folder: Path) -> None:
    template = (
        "{% for m in messages %}\n{% if m.content == 'bad' %}\n{{ raise_exception('no bad words') }}{% endif %}\n"
    )
    rows = [{"prompt": prompt, "completion": "b"} for prompt in ("a", "bad", "c")]
    out = renders(tokenizer_folder)(
        rows, {"format_type": "chat"}, {"chat_template": template + "{{ m.content }}</s>{% endfor %}"}
    )
    assert out.table.num_rows == 2
    rejected = out.rejects.to_pylist()
    assert [(row["_row"], row["code"], row["message"]) for row in rejected] == [
        (1, "template_refused", "template, line 3: no bad words")
    ]
