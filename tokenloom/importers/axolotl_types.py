"""axolotl's dataset types that write a prompt of their own: which columns they read, and what they write around them.

After `prompters.py` and `prompt_strategies/` of axolotl 0.19. The prompt of `alpaca` is that of Stanford Alpaca.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

_TASK = "Below is an instruction that describes a task"
_PAIRED = ", paired with an input that provides further context"
ALPACA = tuple(f"{_TASK}{more}. Write a response that appropriately completes the request." for more in (_PAIRED, ""))
"""The text before rows with an input, and before rows without."""

_CONCISE = (
    f"Below is an instruction from a USER that describes a task{_PAIRED}. The ASSISTANT writes a response that "
    "concisely and appropriately completes the request.\n\n",
    "Below is an instruction from a USER that describes a task. The ASSISTANT writes a response that appropriately "
    "and concisely completes the request.\n\n",
)
_CONTEXT = ("Use the following contextual information to concisely answer the question.\n",) * 2
_NONE = ("", "")

STYLES = {
    "instruct": (
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
        "### Instruction:\n{instruction}\n\n### Response:\n",
        "{system}\n\n",
    ),
    "chat": ("USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:", "SYSTEM: {system}\n"),
    "chatml": (
        "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\n{system}<|im_end|>\n",
    ),
    "phi": (
        "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
        "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
        "<|system|>\n{system}<|end|>\n",
    ),
}
"""Prompts with an input, without, and the system message, by the style after the colon of a type."""


@dataclass(frozen=True)
class Prompt:
    """What a type writes.

    Args:
        style: one of `STYLES`, or such a triple.
        before: texts written as the system message, with and without an input.
        columns: the text of each part, as Jinja: `instruction`, `input`, `output`, `system`.
        label: the column that is trained.
    """

    style: str | tuple[str, str, str]
    before: tuple[str, ...] = _NONE
    columns: Mapping[str, str] | None = None
    label: str = "output"


_ORCA = {"instruction": "{{ question }}", "output": "{{ response }}", "system": "system_prompt"}
_INPUT = {"instruction": "{{ instruction }}", "input": "input"}
_SYSTEM = {**_INPUT, "output": "{{ output }}", "system": "system"}
_QA = {"instruction": "{{ question }}", "output": "{{ answer }}"}
_ARTICLE = {"instruction": "{{ article }}\n===\n{{ question }}", "output": "{{ answer }}"}

TYPES: dict[str, Prompt] = {
    "alpaca": Prompt("instruct", ALPACA),
    "alpaca_instruct.load": Prompt("instruct", ALPACA),
    "alpaca_instruct.load_no_prompt": Prompt("instruct"),
    "alpaca_chat.load": Prompt("chat", ALPACA),
    "alpaca_chat.load_concise": Prompt("chat", _CONCISE),
    "alpaca_chat.load_no_prompt": Prompt("chat"),
    "alpaca_chat.load_qa": Prompt("chat", _CONCISE, _QA, "answer"),
    "alpaca_chat.load_camel_ai": Prompt(
        "chat", _CONCISE, {"instruction": "{{ message_1 }}", "output": "{{ message_2 }}"}, "message_2"
    ),
    "alpaca_w_system.load_chat": Prompt("chat", _NONE, _SYSTEM),
    "alpaca_w_system.load_instruct": Prompt((*STYLES["instruct"][:2], "### System:\n{system}\n\n"), _NONE, _SYSTEM),
    "alpaca_w_system.load_open_orca": Prompt(
        ("", "### Human:\n{instruction}\n### Assistant:\n", "### System:\n{system}\n"), _NONE, _ORCA, "response"
    ),
    "alpaca_w_system.load_open_orca_chatml": Prompt("chatml", _NONE, _ORCA, "response"),
    "orcamini": Prompt(
        ("", "### User:\n{instruction}\n\n### Response:\n", "### System:\n{system}\n\n"), _NONE, _ORCA, "response"
    ),
    "context_qa": Prompt("chat", _CONTEXT, _ARTICLE, "answer"),
    "context_qa.load_v2": Prompt(
        ("", "{instruction}", ""),
        _NONE,
        {
            "instruction": "Context: {{ context }}\nQuestion: {{ question }}{{ '\\n' }}",
            "output": "{% generation %}Answer: {{ answer }}{% endgeneration %}",
        },
        "answer",
    ),
    "summarizetldr": Prompt(
        ("", "USER: Summarize the following article as a TL;DR.\n{instruction}\nASSISTANT:", ""),
        _NONE,
        {"instruction": "{{ article }}", "output": "{{ summary }}"},
        "summary",
    ),
    "jeopardy": Prompt(
        "instruct",
        ALPACA,
        {
            "instruction": "{{ question }}",
            "input": "category",
            "output": "{% generation %}what is {{ answer }}{% endgeneration %}",
        },
        "answer",
    ),
    "oasst": Prompt("instruct", ALPACA, {"instruction": "{{ INSTRUCTION }}", "output": "{{ RESPONSE }}"}, "RESPONSE"),
    "gpteacher": Prompt("instruct", ALPACA, {**_INPUT, "output": "{{ response }}"}, "response"),
}
TYPES["alpaca_w_system.load"] = TYPES["alpaca_w_system"] = TYPES["alpaca_w_system.load_chat"]
for _name in ("alpaca_chat", "alpaca_instruct", "context_qa", "orcamini"):
    _load = TYPES.get(f"{_name}.load") or TYPES[_name]
    TYPES[_name] = TYPES[f"{_name}.load"] = _load

_PROMPTS = {"icr": "input", "intel": "question", "prompt_pairs": "prompt", "ultra": "prompt", "argilla_chat": None}
_PAIR, _RATED = ({name: name for name in names} for names in (("chosen", "rejected"), ("completion", "label")))


def columns_of(format_type: str, name: str) -> dict[str, str] | None:
    """Return the mapping of a type `chatml.…` or `llama3.…`; None if there is no such type."""
    if name in ("default", "argilla") and format_type == "preference":
        return {}
    prompts: dict[str, str | None] = {**_PROMPTS, "argilla": "instruction"}
    if name not in prompts or (name == "icr" and format_type == "kto"):
        return None
    answers = _PAIR if format_type == "preference" else _RATED
    if (name, format_type) == ("ultra", "preference"):
        answers = {side: f"{side}[1].content" for side in _PAIR}
    return ({"prompt": prompt} if (prompt := prompts[name]) else {}) | answers


def jinja_prompt(prompt: Prompt) -> str:
    """Return a type's prompt and answer as a Jinja template of columns."""
    with_input, without, system = STYLES[prompt.style] if isinstance(prompt.style, str) else prompt.style
    columns = prompt.columns or {**_INPUT, "output": "{{ output }}"}
    head, given = "", columns.get("system")
    if given:
        value = "{{ " + given + " }}"
        other = "{% else %}" + _edges(filled(system, {"system": prompt.before[0]})) if prompt.before[0] else ""
        head = "{% if " + given + " %}" + _edges(filled(system, {"system": value})) + other + "{% endif %}"
    texts = [
        (filled(system, {"system": before}) if before and not given else "")
        + filled(turn, {"instruction": columns["instruction"], "input": "{{ " + columns.get("input", "") + " }}"})
        for before, turn in zip(prompt.before, (with_input, without), strict=True)
    ]
    if given := columns.get("input"):
        body = "{% if " + given + " %}" + _edges(texts[0]) + "{% else %}" + _edges(texts[1]) + "{% endif %}"
    else:
        body = _edges(texts[1]) if head else texts[1]
    return head + body + columns["output"]


def filled(form: str, values: Mapping[str, str]) -> str:
    """Return a format of Python with fields replaced by Jinja, and other text as Jinja writes it unchanged.

    Raises:
        ValueError: it is not a format, or has other fields.
    """
    text = ""
    for literal, name, spec, conversion in string.Formatter().parse(form):
        if name is not None and (name not in values or spec or conversion):
            raise ValueError(f"only {', '.join(f'{{{known}}}' for known in values)} can be written in a format")
        text += literal.replace("{", "{{ '{' }}")
        text += values[name] if name is not None else ""
    return text


def _edges(text: str) -> str:
    """Return a text next to a block tag: Jinja drops the line break after a tag, and spaces before one."""
    start = re.match(r"\s*", text)
    assert start is not None
    end = re.search(r"[ \t]*$", text[start.end() :])
    assert end is not None
    middle = text[start.end() : len(text) - len(end.group())]
    return "".join(
        part if part == middle else "{{ " + repr(part) + " }}" for part in (start.group(), middle, end.group()) if part
    )
