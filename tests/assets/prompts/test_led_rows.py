"""Contents that answer a template's questions in another way than marks do: each row is right, whatever its neighbours.

The oracle renders each row with Jinja alone, and finds the trained parts by what the template writes for an answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest

from support.rendered_prompts import Render, assert_partition, renders, trained_parts
from tokenloom.assets.stage.rejects import ROW

Row = dict[str, Any]
Oracle = Callable[[list[Row]], list[str]]

RESULTS = """
{%- set asked = namespace(at=-1) -%}
{%- for m in messages -%}
  {%- if m.role == 'user' and not m.content.startswith('<result>') -%}{%- set asked.at = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  <|im_start|>{{ m.role }}{{ '\\n' }}
  {%- if m.reasoning_content and loop.index0 > asked.at -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}
  {{ m.content }}<|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}
"""
"""Drops the reasoning before the last question; results that stand in messages of users are no questions."""

REFUSING = """
{%- if not messages[0].content.startswith('Q:') -%}{{ raise_exception('no question') }}{%- endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}{{ '\\n' ~ m.content }}<|im_end|>{{ '\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}
"""
"""Takes contents only if they begin with a text that marks do not begin with."""

MARKED = """
{%- for m in messages -%}<|im_start|>{{ m.role }}{{ '\\n' }}
{%- if m.role == 'assistant' and '#' in m.content -%}[list] {% endif -%}
{{ m.content }}<|im_end|>{{ '\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}
"""
"""Writes something before an answer that depends on it: the model has to write that too."""


def written(template: str, messages: list[Row]) -> str:
    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template).render(messages=messages, add_generation_prompt=False)


def kept_thoughts(messages: list[Row]) -> list[str]:
    """Return what `RESULTS` writes for answers, from its description."""
    questions = [at for at, m in enumerate(messages) if m["role"] == "user" and m["content"][:8] != "<result>"]
    last, parts = max(questions, default=-1), []
    for at, said in enumerate(messages):
        if said["role"] == "assistant":
            thought = said.get("reasoning_content")
            parts.append((f"<think>{thought}</think>" if thought and at > last else "") + said["content"])
    return parts


def answers(messages: list[Row]) -> list[str]:
    return [said["content"] for said in messages if said["role"] == "assistant"]


def listed(messages: list[Row]) -> list[str]:
    return [("[list] " if "#" in text else "") + text for text in answers(messages)]


def talks(users: list[str], thoughts: bool) -> list[list[Row]]:
    """Return conversations with all choices of users' messages."""
    rows = []
    for number, said in enumerate(itertools.product(users, repeat=2)):
        messages: list[Row] = []
        for at, text in enumerate(said):
            thought = {"reasoning_content": f"thought {at} of {number}"} if thoughts else {}
            answer = f"{'# ' if (number >> at) % 2 else ''}answer {at} of {number}" if at or number % 3 else ""
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer, **thought}]
        rows.append(messages)
    return rows


@pytest.fixture(scope="module")
def render(tokenizer_folder: Path) -> Render:
    return renders(tokenizer_folder)


CASES = {
    "results": (RESULTS, kept_thoughts, talks(["Q", "<result>5", "<result>", "what?"], True)),
    "refusing": (REFUSING, answers, talks(["Q: one", "Q:", "one", " Q: two"], False)),
    "marked": (MARKED, listed, talks(["Q", "# Q", "R"], False)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_is_trained_as_it_is_written(render: Render, case: str) -> None:
    template, oracle, rows = CASES[case]
    random.Random(3).shuffle(rows)
    out = render([{"messages": messages} for messages in rows], {"format_type": "chat"}, {"chat_template": template})
    found = {row[ROW]: row for row in out.table.to_pylist()}
    for number, messages in enumerate(rows):
        try:
            text = written(template, messages)
        except jinja2.TemplateError:
            assert number not in found
            continue
        assert found[number]["text"].removeprefix("<s>") == text, messages
        assert_partition(found[number]["text"], found[number]["spans"])
        parts = trained_parts(found[number]["text"], found[number]["spans"])
        assert [part.removesuffix("<|im_end|>") for part in parts] == oracle(messages), messages


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("turns", ["together", "exact"])
def test_no_row_depends_on_its_neighbours(render: Render, case: str, turns: str) -> None:
    template, _, rows = CASES[case]
    given = [{"messages": messages} for messages in rows]
    prompt, tokenizer = {"format_type": "chat", "turns": turns}, {"chat_template": template}
    together = render(given, prompt, tokenizer)
    for number, row in enumerate(given):
        alone = render([row], prompt, tokenizer)
        in_chunk = [one for one in together.table.to_pylist() if one.pop(ROW) == number]
        assert in_chunk == [{name: of for name, of in one.items() if name != ROW} for one in alone.table.to_pylist()]
        of_row = [one["code"] for one in together.rejects.to_pylist() if one[ROW] == number]
        assert of_row == alone.rejects["code"].to_pylist()
    counted = sum(render([row], prompt, tokenizer).counters["turns_trained"] for row in given)
    assert together.counters["turns_trained"] == counted


def test_exact_turns_keep_the_thoughts_that_inference_has(render: Render) -> None:
    rows = CASES["results"][2]
    out = render(
        [{"messages": messages} for messages in rows],
        {"format_type": "chat", "turns": "exact"},
        {"chat_template": RESULTS},
    )
    assert not out.rejects.num_rows, out.rejects.to_pylist()
    trained: dict[int, list[str]] = {}
    for row in out.table.to_pylist():
        trained.setdefault(row[ROW], []).extend(trained_parts(row["text"], row["spans"]))
    for number, messages in enumerate(rows):
        each = [
            kept_thoughts(messages[: at + 1])[-1] for at, said in enumerate(messages) if said["role"] == "assistant"
        ]
        assert sorted(part.removesuffix("<|im_end|>") for part in trained[number]) == sorted(each), messages


OPENING = """
{%- set asked = namespace(at=messages | length) -%}
{%- for m in messages -%}
  {%- if m.role == 'user' and not m.content.startswith('<result>') -%}{%- set asked.at = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  <|im_start|>{{ m.role }}{{ '\\n' }}
  {%- if m.role == 'assistant' and loop.index0 > asked.at -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
  {{ m.content }}
  {%- for call in m.tool_calls or [] -%}<tool_call>{{ call.function.name }}</tool_call>{%- endfor -%}
  <|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n<think>\\n\\n' }}{%- endif -%}
"""
"""Its generation prompt opens a thought, which answers before the last question lack; all do if there is none."""


@pytest.mark.parametrize("turns", ["together", "exact"])
def test_calls_without_a_content_are_trained_where_they_stand(render: Render, turns: str) -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "x"}}}
    messages = [
        {"role": "user", "content": "<result>5"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "found"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "two"},
    ]
    out = render([{"messages": messages}], {"format_type": "chat", "turns": turns}, {"chat_template": OPENING})
    assert not out.rejects.num_rows, out.rejects.to_pylist()
    (row,) = out.table.to_pylist()
    parts = [part.removesuffix("<|im_end|>") for part in trained_parts(row["text"], row["spans"])]
    assert parts == ["<tool_call>look_up</tool_call>", "one", "</think>\n\ntwo"]
