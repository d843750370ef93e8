"""Templates that place contents and ask about them: Arrow's kernels write what Jinja does; others are recognized."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from support.small_tokenizers import CONTROL
from support.template_grammar import templates
from tokenloom.assets.prompts import verify
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.jinja_fields import FieldsFormat
from tokenloom.assets.prompts.verify import SAMPLED
from tokenloom.assets.stage.forms import MESSAGES, REASONING_FIELDS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import LOOKS, JinjaTemplate
from tokenloom.resources.templates.marks import WHITE_SPACE, Looks, tracked

Row = dict[str, Any]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>", "unk_token": "<unk>"}


def looks(template: str, *names: str) -> Looks:
    """Return what a template asks of a conversation of two messages."""
    found, names = Looks(), names or ("content",)
    roles = ("user", "assistant")
    said = [{"role": role, **dict.fromkeys(names, tracked(at))} for at, role in enumerate(roles)]
    JinjaTemplate(template).render({"messages": said, **TOKENS, LOOKS: found})
    return found


def chat_format(template: str, train_on: str = "completions") -> ChatFormat:
    prompt = {"format_type": "chat", "train_on": train_on}
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "prompt_template": prompt})
    return ChatFormat(JinjaTemplate(template), config.prompt_template, TOKENS, CONTROL, "<s>", "</s>")


@contextmanager
def every_row_compared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_doubtful_rows", lambda shape, _: np.ones(len(shape.rows), bool))
        yield


def conversation_table(talks: list[list[Row]], tools: list[str] | None = None) -> pa.Table:
    said = [[dict.fromkeys(MESSAGES.value_type.names) | message for message in talk] for talk in talks]
    rows = {ROW: pa.array(range(len(talks)), pa.int32()), "messages": pa.array(said, MESSAGES)}
    return pa.table(rows | ({} if tools is None else {"tools": pa.array(tools, pa.string())}))


LOOP = "{% for m in messages %}", "{% endfor %}"
SYSTEM_APART = """{% if messages[0].role == 'system' %}
{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}
{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% for m in rest %}{% if loop.first and system %}{{ '<<' ~ system ~ '>>\n' }}{% endif %}"""
PLACING = {
    "turns": "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}".join(LOOP),
    "newlines": "{{ m.role ~ ': ' ~ m['content'].strip('\n') ~ eos_token }}".join(LOOP),
    "one side": "{{ m.role }}:{{ m.content.lstrip() }}|{{ m.content.rstrip('\n') }}</s>".join(LOOP),
    "apart": SYSTEM_APART + "[{{ m.role }}] {{ (m.content or '(nothing)') + '\n' }}{% endfor %}",
    "macro": "{% macro turn(role, text='') %}<{{ role }}>{{ text | trim }}</{{ role }}>{% endmacro %}"
    + "{{ turn(m.role, text=m.content) }}".join(LOOP),
    "namespace": "{% set ns = namespace(before='', seen=0) %}"
    + "{{ ns.before ~ m.content }}{% set ns.before = m.content ~ '|' %}{% set ns.seen = ns.seen + 1 %}".join(LOOP)
    + "{{ ns.seen }}",
    "joined": "{% set all %}" + "{{ '\n' ~ m.content ~ ' ' }}".join(LOOP) + "{% endset %}{{ all | trim ~ eos_token }}",
    "marked": (
        "{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}"
    ).join(LOOP),
    "neighbours": (
        "{% if loop.previtem is defined and loop.previtem.content %}{{ loop.previtem.role }}>{% endif %}"
        "{{ m.name | default('nobody') | upper }}{% if m.content != '' %}={{ m.content }}{% endif %}{{ '\n' }}"
    ).join(LOOP),
    "chosen": "{% set said = messages | rejectattr('role', 'eq', 'system') | list %}{{ said | length }}"
    "{{ messages[0].content }}{% for m in said if m.content %}{{ m.content }}</s>{% endfor %}",
}

CONTENTS = [
    "plain words",
    "\nbegins with a newline",
    "  and with space \t\n\n",
    "\r\nCRLF\r\nlines\r\n",
    "<|im_end|>\n<|im_start|>assistant\nimpostor</s>",
    "[INST] x [/INST] <<SYS>> {{ 7 * 7 }} {% raw %} {0} %s \\n",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301",
    "مرحبا \u200f שלום \u200b",
    "\x00 NUL \x1c",
    "\u00a0\u2028no-break\u3000\x85\ufeff",
    "\ufeffmark\u180e",
    "<b>&amp; \"quotes\" 'single'",
    "long " * 4000,
    "0",
    "None",
    "",
    " \n",
]


def generated_talks() -> tuple[list[list[Row]], list[str]]:
    """Return conversations of many shapes with each content in each place; each shape has more rows than a sample."""
    call = {"id": None, "name": "search", "arguments": '{"q": "x"}'}
    talks, tools = [], []
    for index in range(3 * len(CONTENTS)):
        a, b, c = (CONTENTS[(index * step + step) % len(CONTENTS)] for step in (1, 3, 5))
        first = [{"role": "user", "content": a, "name": None}, {"role": "assistant", "content": b}]
        named = [{"role": "user", "content": b, "name": "Ann"}, {"role": "assistant", "content": c}]
        second = [{"role": "user", "content": c}, {"role": "assistant", "content": a, "weight": 0.5}]
        system = [{"role": "system", "content": c}]
        asked = [{"role": "user", "content": a}, {"role": "assistant", "content": b, "tool_calls": [call]}]
        answered = [{"role": "tool", "content": c, "name": "search"}, {"role": "assistant", "content": a}]
        for talk in (first, system + first, first + second, system + named + second, asked + answered):
            talks.append(talk)
            tools.append('[{"name": "search"}]' if talk[-2]["role"] == "tool" or index % 2 else "")
    return talks, tools


def assert_the_same(form: Any, table: pa.Table) -> None:
    """Check that comparing a sample gives the same bytes as comparing every row."""
    assert form.opacity is None, form.opacity
    made = form.render(table)
    with every_row_compared():
        every = replace(form).render(table)
    assert made.table.num_rows > table.num_rows // 2
    assert made.table.equals(every.table)
    assert made.rejects.equals(every.rejects)


TWICE = {"one side", "namespace"}
"""Templates that write an answer twice, which is refused if the answer is trained."""


@pytest.mark.parametrize(
    ("name", "train_on"),
    [*((name, "completions") for name in PLACING if name not in TWICE), *((name, "all") for name in PLACING)],
)
def test_own_templates_compile_to_the_compared_texts(name: str, train_on: str) -> None:
    talks, _ = generated_talks()
    assert_the_same(chat_format(PLACING[name], train_on), conversation_table(talks))


def real_templates(real_data: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((real_data / "chat_templates").glob("*"))}


def real_talks(real_data: Path) -> list[list[Row]]:
    """Return the conversations of the chat files, and a slice of Alpaca."""
    chat, talks = real_data / "chat", []
    lines = [line for path in sorted(chat.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    read = [json.loads(line) for line in lines if line.strip()]
    read += [record for path in sorted(chat.glob("*.json")) for record in json.loads(path.read_text(encoding="utf-8"))]
    roles = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    for record in read:
        said = record if isinstance(record, list) else record.get("messages") or record.get("conversations") or []
        found = [(turn.get("role") or turn.get("from"), turn.get("content") or turn.get("value")) for turn in said]
        talks.append([{"role": roles.get(role, role), "content": content or ""} for role, content in found])
    for row in json.loads((real_data / "instruct" / "alpaca_data.json").read_text(encoding="utf-8"))[:3000]:
        asked = [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]
        talks.append([{"role": "system", "content": row["input"]}, *asked] if row["input"] else asked)
    return [talk for talk in talks if talk]


def test_real_templates_compile_to_the_compared_texts(real_data: Path) -> None:
    templates, read = real_templates(real_data), conversation_table(real_talks(real_data))
    talks, tools = generated_talks()
    assert len(templates) == 9
    assert read.num_rows > 3000
    for template in templates.values():
        for train_on in ("completions", "all"):
            told = tools if "tools" in template else None
            assert_the_same(chat_format(template, train_on), conversation_table(talks, told))
        assert_the_same(chat_format(template), read)


def test_fields_compile_to_the_compared_texts() -> None:
    source = "Q: {{ question | trim }}\n{% if hint %}Hint: {{ hint }}\n{% endif %}A: {{ (' ' + answer).strip('\\n') }}"
    form = FieldsFormat(
        JinjaTemplate(source), ("question", "hint", "answer"), "answer", False, TOKENS, CONTROL, "<s>", "</s>"
    )
    count = 40 * len(CONTENTS)
    steps = zip(form.fields, (1, 3, 5), strict=True)
    columns = {name: [CONTENTS[(row * step) % len(CONTENTS)] for row in range(count)] for name, step in steps}
    assert_the_same(form, pa.table({ROW: pa.array(range(count), pa.int32()), **columns}))


def test_only_a_sample_and_white_space_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    true = JinjaTemplate.render
    monkeypatch.setattr(
        JinjaTemplate,
        "render",
        lambda self, values: rendered.append(values["messages"][0]["content"]) or true(self, values),
    )
    contents = [f"text {row}" for row in range(1000)]
    contents[501], contents[777] = " \t", "\x1f\u3000"
    table = conversation_table([[{"role": "user", "content": text}] for text in contents])
    out = chat_format(PLACING["turns"]).render(table)
    assert out.table.num_rows == 1000
    assert len([text for text in rendered if text != "q"]) <= SAMPLED + 2  # `q` asks how a turn ends
    assert {" \t", "\x1f\u3000"} <= set(rendered)
    rendered.clear()
    with every_row_compared():
        chat_format(PLACING["turns"]).render(table)
    assert len([text for text in rendered if text != "q"]) == 1000


def test_white_space_is_what_python_strips() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert {char for char in every if not char.strip()} == set(WHITE_SPACE)
    padded = pa.array([char + "x" + char for char in every])
    assert pc.utf8_trim(padded, characters=WHITE_SPACE).to_pylist() == [text.strip() for text in padded.to_pylist()]


SOLID = "{% set c = messages[0].content %}"
OPAQUE = [
    "{{ (messages[0].content ~ 'b').endswith('ab') }}",
    "{{ ('x' ~ messages[0].content).startswith('xa') }}",
    "{{ messages[0].content.startswith(messages[1].content) }}",
    # looks into a content
    "{{ messages[0].content | length }}",
    "{{ messages[0].content | upper }}",
    "{{ messages[0].content | indent }}",
    "{{ messages[0].content | wordwrap(20) }}",
    "{{ messages[0].content | e }}",
    "{{ messages[0].content | first }}",
    "{{ messages[0].content[1:] }}",
    "{{ messages[0].content[-1] }}",
    "{{ messages[0].content * 2 }}",
    "{{ '{0.content}'.format(messages[0]) }}",
    "{% if messages[0].content < 'm' %}x{% endif %}",
    "{% if messages[0].content == messages[1].content %}x{% endif %}",
    "{% if messages[0].content is lower %}x{% endif %}",
    "{% if messages[0].content is in('abc') %}x{% endif %}",
    "{% for character in messages[0].content %}{{ character }}.{% endfor %}",
    SOLID + "{% if (c ~ 'x') == 'ax' %}x{% endif %}",
    SOLID + "{% filter upper %}{{ c }}{% endfilter %}",
    SOLID + "{% set x | upper %}{{ c }}{% endset %}{{ x }}",
    "{{ {messages[0].content: 1} }}",
    "{{ [messages[0].content] }}",
    "{{ (1, messages[0].content) }}",
    "{{ range(messages[0].content | length) }}",
    # texts that escape what is joined to them
    "{{ ('' | safe) + messages[0].content }}",
    "{{ (bos_token | e) + messages[0].content }}",
    "{{ (['<'] | map('escape') | first) + messages[0].content }}",
    "{% set x | safe %}{% endset %}{{ x + messages[0].content }}",
    # other ways to a message's content
    "{{ messages }}",
    "{{ messages[0] }}",
    "{{ messages[0] | string }}",
    "{{ messages[0] ~ '' }}",
    "{{ messages[0] | items | list }}",
    "{{ messages[0].get('content') | length }}",
    "{{ messages[0].values() | list | string | length }}",
    "{% for k, v in messages[0].items() %}{{ v | length }}{% endfor %}",
    "{{ messages[0]['copy']().content | length }}",
    "{{ messages[0]['con' ~ 'tent'] | length }}",
    "{{ messages | map(attribute='content') | join | length }}",
    "{{ messages | selectattr('content.0', 'eq', 'a') | list | length }}",
    "{{ messages | groupby('content') | list | length }}",
    "{{ messages | sort(attribute='content') | first }}",
    "{{ (messages | unique(attribute='content') | list | length) }}",
    "{{ messages | reverse | list }}",
    "{{ messages | tojson | length }}",
    "{% set a, b = messages %}{{ a.content | length }}",
    "{% set a, b = messages[0].content, 1 %}{{ a | length }}",
    "{% for m in messages %}{% for x, y in loop %}{{ x.content | length }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ loop.changed(m.content) }}{% endfor %}",
    "{% set loop = messages[0] %}{{ loop.content | length }}",
    "{% set j = joiner(messages[0].content) %}{{ j() }}{{ j() | length }}",
    "{% set j = cycler(messages[0].content) %}{{ j.next() | length }}",
    # namespaces
    "{% set ns = namespace(x=messages[0].content) %}{{ ns.x | length }}",
    "{% set ns = namespace(x=messages[0].content) %}{{ ns['x'] | length }}",
    "{% set ns = namespace(x=messages[0].content) %}{{ ns }}",
    "{% set ns = namespace(x=messages[0].content) %}{{ ns | attr('x') | length }}",
    "{% set ns = namespace(x=messages[0].content) %}{% set k = 'x' %}{{ ns[k] | length }}",
    "{% set ns = namespace(messages[0]) %}{{ ns.content | length }}",
    "{% set ns = namespace(**messages[0]) %}{{ ns.content | length }}",
    "{{ namespace(x=messages[0].content).x | length }}",
    "{% set ns = namespace() %}{% set other = ns %}{% set ns.x = messages[0].content %}{{ other.x | length }}",
    "{% set a = namespace() %}{% set b = a %}{% set b.x = messages[0].content %}{{ a.x | length }}",
    "{% set ns = namespace() %}{% macro f(t) %}{% set ns.x = t %}{% endmacro %}{{ f(messages[0].content) }}"
    "{{ ns.x | length }}",
    "{% set ns = namespace() %}{% for ns in messages %}{{ ns.content | length }}{% endfor %}",
    "{% set namespace = dict %}{% set ns = namespace(x=messages[0].content) %}{{ ns }}",
    "{% set namespace, b = dict, 1 %}{% set ns = namespace(x=messages[0].content) %}{{ ns.values() | list }}",
    "{% set make = namespace %}{% set ns = make() %}{% set ns.x = messages[0].content %}{{ ns.x | length }}",
    # macros
    "{% macro f(x=messages[0].content) %}{{ x | length }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ varargs[0] | length }}{% endmacro %}{{ f(messages[0].content) }}",
    "{% macro f() %}{{ kwargs.x | length }}{% endmacro %}{{ f(x=messages[0].content) }}",
    "{% macro f() %}{{ caller() | upper }}{% endmacro %}{% call f() %}{{ messages[0].content }}{% endcall %}",
    "{% macro f() %}{{ messages[0].content }}{% endmacro %}{% set g = f %}{{ g() | length }}",
    "{% macro f() %}{{ messages[0].content }}{% endmacro %}{{ ([f] | first)() | length }}",
    "{% macro f() %}{{ messages[0].content }}{% endmacro %}{{ f() | length }}",
    "{% macro f(x) %}{{ x | length }}{% endmacro %}{{ f(messages[0].content) }}"
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(messages[0].content) }}",
    "{% macro raise_exception(x) %}{{ x | length }}{% endmacro %}{{ raise_exception(messages[0].content) }}",
    "{% macro f(n, t) %}{{ t }}{{ f(n, t) if n else t | length }}{% endmacro %}{{ f(0, messages[0].content) }}",
    # scopes and shadows
    "{% set x = 'a' %}{% for m in messages %}{{ x | length }}{% set x = m.content %}{{ x | length }}{% endfor %}",
    "{% set other = messages %}{{ other[0].content | length }}",
    "{% with c = messages[0].content %}{{ c | length }}{% endwith %}",
    "{% set c %}{{ messages[0].content }}{% endset %}{{ c | length }}",
]


ASKING = [
    "{{ messages[0].content | replace('a', 'b') }}",
    "{{ messages[0].content | tojson }}",
    "{{ '%s' % messages[0].content }}",
    "{{ messages[0].content.split('</think>')[-1] }}",
    "{{ messages[0].content.startswith('a') }}",
    "{% if 'a' in messages[0].content %}x{% endif %}",
    "{% if messages[0].content == 'a' %}x{% endif %}",
    "{% if 'a' is eq(messages[0].content) %}x{% endif %}",
    "{% if '' == messages[0].content == '' %}x{% endif %}",
    "{{ messages[0].content.strip('x') }}",
    "{{ messages[0].content.strip(' \n') }}",
    "{{ messages[0].content.strip(' ') }}",
    "{{ messages[0].content.strip(*['x']) }}",
    "{{ messages[0].content.strip(bos_token) }}",
    "{{ messages[0].content | trim('x') }}",
    "{{ messages[0].content | trim(chars='x') }}",
    "{{ messages[0].content | trim(**{'chars': 'x'}) }}",
    "{{ (messages[0].content ~ 'x').rstrip('x') }}",
    "{{ messages[0] | attr('content') }}",
    "{{ messages | map(attribute='content') | list | length }}",
    "{{ messages | selectattr('content', 'eq', 'a') | list | length }}",
    "{{ messages | rejectattr('content') | list | length }}",
    "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ loop.cycle(m.content, 'x') }}{% endfor %}",
    "{% for m in messages if m.content == 'a' %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% set c = m.content %}{% endfor %}{% for c in [messages[0].content] %}{{ c }}{% endfor %}",
    "{% if messages %}{% set x = messages[0] %}{% else %}{% set x = messages[0].content %}{% endif %}{{ x.content }}",
    "{% set x %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endset %}{{ x | trim }}",
    "{% macro f() %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endmacro %}{{ f() | trim }}",
]
"""Templates whose questions Arrow's kernels can answer."""


@pytest.mark.parametrize("template", OPAQUE)
def test_what_is_done_to_contents_beyond_questions_is_named_with_its_line(template: str) -> None:
    said = looks("{{ bos_token }}\n\n" + template).reason
    assert said is not None
    assert said.startswith("line 3: ")


@pytest.mark.parametrize("template", ASKING)
def test_questions_that_kernels_answer_are_no_reason_to_render_every_row(template: str) -> None:
    assert looks(template).reason is None


ENDS = "".join("{{ m.role ~ ': ' ~ m.content ~ '</s>' }}".join(LOOP))


@pytest.mark.parametrize("template", [*OPAQUE, *ASKING])
def test_no_row_has_another_text_than_jinja_writes(template: str) -> None:
    """Without a sample, only rows that answer a question otherwise are compared."""
    texts = [*CONTENTS, "a", "ab", "xax", "a</think>b", " a ", "nab", "A"]
    talks = [
        [
            {"role": "user", "content": texts[row % len(texts)]},
            {"role": "assistant", "content": texts[row * 7 % len(texts)]},
        ]
        for row in range(4 * len(texts))
    ]
    form = replace(chat_format(template + ENDS, "all"), bos=None, eos=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "SAMPLED", 0)
        made = form.render(conversation_table(talks)).table.to_pylist()
    for row in made:
        variables = {"messages": talks[row[ROW]], "tools": None, "documents": None, "add_generation_prompt": False}
        assert row["text"] == form.template.render({**variables, **TOKENS})


@pytest.mark.parametrize("field", REASONING_FIELDS)
def test_reasoning_is_a_content(field: str) -> None:
    assert looks(f"{{{{ messages[0].{field} | length }}}}", field).reason is not None
    assert looks(f"{{{{ messages[0].{field} | trim }}}}", field).reason is None


@pytest.mark.parametrize("word", ["break", "continue"])
def test_a_break_that_cannot_leave_its_loop_is_refused(word: str) -> None:
    with pytest.raises(TemplateError, match="must be in a loop"):
        JinjaTemplate(
            "{% for m in messages %}{% generation %}{% WORD %}{% endgeneration %}{% endfor %}".replace("WORD", word)
        )


SOLID_TEXT = st.text("aAb\n\r\t \x00\x1c\x85\u00a0\u2003\u200b\ufeff<&'{%é👩", min_size=1, max_size=8)


@st.composite
def alike_talks(draw: st.DrawFn) -> list[list[Row]]:
    """Return conversations of one shape."""
    roles = draw(st.sampled_from((("user",), ("user", "assistant"), ("system", "user", "assistant"))))
    empty = [draw(st.integers(0, 4)) == 0 for _ in roles]
    return [
        [
            {"role": role, "content": "" if nothing else draw(SOLID_TEXT)}
            for role, nothing in zip(roles, empty, strict=True)
        ]
        for _ in range(4)
    ]


@given(templates(), alike_talks())
def test_compiled_templates_render_as_in_jinja(template: str, talks: list[list[Row]]) -> None:
    try:
        form = replace(chat_format(template, "all"), bos=None, eos=None)
    except TemplateError:  # a break within a block
        reject()
    event("compiled" if form.opacity is None else "opaque")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "SAMPLED", 0)
        out = form.render(conversation_table(talks))
    event(f"{out.table.num_rows} of {len(talks)} rows made")
    for made in out.table.to_pylist():
        variables = {"messages": talks[made[ROW]], "tools": None, "documents": None, "add_generation_prompt": False}
        assert made["text"] == form.template.render({**variables, **TOKENS})
