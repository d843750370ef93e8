"""What is trained under TRL's chat templates is what their twins with generation marks mark.

Each difference belongs to one of the named classes below, each with the reason why the trained text here is right.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from jinja2 import TemplateError

from support.columns_stage import as_json, canonical
from support.rendered_prompts import assert_partition, trained_parts
from support.soak import SOAK
from support.trl_templates import NAMES, Message, Twins
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.templates.jinja import JinjaTemplate


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, *calls: Any, thought: str | None = None) -> Message:
    functions = [{"type": "function", "function": {"name": "weather", "arguments": given}} for given in calls]
    message = {"role": "assistant", "content": text} | ({} if thought is None else {"reasoning_content": thought})
    return message | ({"tool_calls": functions} if functions else {})


def result(text: str) -> Message:
    return {"role": "tool", "content": text, "name": "weather"}


CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tell it.", "parameters": CITY}}]
ROME, BONN = {"city": "Rome", "days": 2}, {"city": "Bonn"}
Q1, A1, Q2, A2 = user("Q1"), answer("A1"), user("Q2"), answer("A2")
INLINE = "<think>\nT1\n</think>\n\nA1"
SHAPES: dict[str, list[Message]] = {
    "pair": [Q1, A1],
    "two turns": [Q1, A1, Q2, A2],
    "system": [{"role": "system", "content": "S"}, Q1, A1, Q2, A2],
    "question last": [Q1, A1, Q2],
    "empty answer": [Q1, answer(""), Q2, A2],
    "spaces": [user(" Q1\n"), answer("\n A1 \n")],
    "reasoning": [Q1, answer("A1", thought="T1")],
    "reasoning twice": [Q1, answer("A1", thought="T1"), Q2, answer("A2", thought="T2")],
    "inline": [Q1, answer(INLINE)],
    "inline twice": [Q1, answer(INLINE), Q2, answer("<think>\nT2\n</think>\n\nA2")],
    "inline last": [Q1, A1, Q2, answer("<think>\nT2\n</think>\n\nA2")],
    "tools": [Q1, A1],
    "call": [Q1, answer("", ROME)],
    "call without arguments": [Q1, answer("", {})],
    "call and result": [Q1, answer("", ROME), result("R"), A1],
    "call in words": [Q1, answer("W", ROME), result("R"), A1, Q2, A2],
    "two calls": [Q1, answer("", ROME, BONN), result("R"), result("R2"), A1],
    "call with reasoning": [Q1, answer("", ROME, thought="T0"), result("R"), answer("A1", thought="T1")],
    "text call": [Q1, answer("", json.dumps(ROME))],
    "text call and result": [Q1, answer("", json.dumps(ROME)), result("R"), A1],
}
DESCRIBED = [name for name in SHAPES if "call" in name or name == "tools"]
if SOAK:
    first = {"role": "system", "content": "S"}
    SHAPES |= {f"{name}, system": [first, *talk] for name, talk in SHAPES.items() if name != "system"}
    SHAPES |= {f"{name}, more": [*talk, Q2, A2] for name, talk in SHAPES.items() if talk[-1]["role"] == "assistant"}
CASES = [(name, tools) for name in SHAPES for tools in (False, True) if not tools or name.split(",")[0] in DESCRIBED]

REASONS = {
    "space after the stop": "generation has ended at the stop",
    "generation prompt": "the generation prompt writes it, with or without thinking, so the model never generates it",
    "other generation prompt": "the generation prompt begins with it and then continues differently, with <think>",
    "thinks in earlier turns": "the twin writes thinking where the template itself, and so inference, does not",
    "space for thinking": "the template drops inline thinking and keeps the line breaks after it; inference does not",
    "next role": "the template ends with no stop: here EOS is added, the twin writes the next role's token",
    "opens the result": "the template ends a call with the token that opens its result, where generation stops",
}
"""The classes of differences, and why what is trained here is right."""

DIFFERENT = {
    "space after the stop": "diffusion_gemma gemma gemma3 lfm2 lfm2_v2 phi3 phi3_5 qwen2_5_vl qwen3 "
    "qwen3_instruct_2507 qwen3_vl",
    "generation prompt": "deepseekv3 gptoss muse_glimmer nemotron_3_5_lightning nemotron_3_nano nemotron_3_super "
    "nemotron_3_ultra qwen2_5 qwen3 qwen3_5_nothink qwen3_5_think qwen3_6 qwen3_8",
    "other generation prompt": "deepseek_r1_distill deepseekv3",
    "thinks in earlier turns": "qwen3 qwen3_5_nothink qwen3_5_think qwen3_6",
    "next role": "glm4moe",
    "opens the result": "diffusion_gemma",
}
"""The templates in which each class occurs."""

MORE_DIFFERENT = {
    "space for thinking": "deepseekv3",
    "thinks in earlier turns": f"{DIFFERENT['thinks in earlier turns']} deepseek_r1_distill",
}
"""The templates of classes that occur in the longer conversations of a soak."""


def coded(code: str, *cases: str) -> dict[str, str]:
    return dict.fromkeys(cases, code)


WITH_TOOLS = [f"{name} tools" for name in DESCRIBED]
CALLS = [name for name in DESCRIBED if name != "tools"]
RESULTS = [name for name in CALLS if any(turn["role"] == "tool" for turn in SHAPES[name])]
INLINES = ["inline", "inline twice", "inline last"]
IGNORES_TOOLS = coded("tools_ignored", *WITH_TOOLS)
IGNORES_CALLS = coded("tool_calls_ignored", *CALLS)
ALTERNATES = coded("template_refused", *RESULTS, *(f"{name} tools" for name in RESULTS))
THOUGHTLESS = coded("reasoning_ignored", "reasoning", "reasoning twice")
CALLS_ONLY = THOUGHTLESS | coded("reasoning_ignored", "call with reasoning", "call with reasoning tools")
PLAIN = THOUGHTLESS | IGNORES_TOOLS | IGNORES_CALLS
ALTERNATING = PLAIN | ALTERNATES
PARTS = (
    coded("template_refused", "empty answer", *CALLS, *WITH_TOOLS)
    | coded("content_dropped", "pair", "two turns", "system", "question last", "spaces", *INLINES, "tools")
    | THOUGHTLESS
    | coded("tools_ignored", "tools tools", "call in words tools")
    | coded("tool_calls_ignored", "call in words")
)
"""Templates that read contents as lists of parts only."""
REFUSED: dict[str, dict[str, str]] = {
    "cohere": ALTERNATING,
    "cohere2": ALTERNATING,
    "deepseek_r1_distill": PLAIN | coded("reasoning_ignored", *INLINES),
    "deepseekv3": THOUGHTLESS | IGNORES_TOOLS | coded("reasoning_ignored", *INLINES, "call with reasoning"),
    "diffusion_gemma": coded("tool_calls", "call in words", "call in words tools"),
    "gemma": ALTERNATING | coded("template_refused", "system"),
    "gemma3": ALTERNATING,
    "gptoss": coded("content_dropped", "call in words", "call in words tools")
    | coded("tool_calls_ignored", "two calls", "two calls tools"),
    "idefics3": PARTS,
    "lfm2": THOUGHTLESS | IGNORES_CALLS | coded("tool_calls_ignored", *(f"{name} tools" for name in CALLS)),
    "lfm2_v2": CALLS_ONLY,
    "llama3": PLAIN,
    "llava_next": coded("template_refused", *(f"{name} tools" if tools else name for name, tools in CASES)),
    "muse_glimmer": coded("content_dropped", "call in words", "call in words tools"),
    "phi3": PLAIN,
    "phi3_5": PLAIN,
    "qwen2_5": CALLS_ONLY,
    "qwen2_5_vl": PLAIN,
    "qwen3_instruct_2507": CALLS_ONLY,
    "qwen3_vl": CALLS_ONLY,
    "smolvlm": PARTS,
}
"""The reject codes of the conversations that are refused; all others are rendered and trained."""


def difference(ours: str, theirs: str, prompts: list[str], eos: str) -> str:
    """Return the class of the difference between a trained part and the twin's; "" for none, "?" for an unknown one.

    Args:
        prompts: what the plain template writes before this answer, with each generation prompt that it has.
    """
    if ours == theirs:
        return ""
    before, found, after = theirs.rpartition(ours.rstrip())
    if found and not after.strip():
        if not before:
            return "space after the stop"
        if any(prompt.rstrip().endswith(before.rstrip()) for prompt in prompts):
            return "generation prompt"
        if any(prompt.removesuffix("<think>\n").endswith(before) for prompt in prompts):
            return "other generation prompt"
        if re.fullmatch(r"<｜Assistant｜>\s+", before):
            return "space for thinking"
        if re.fullmatch(r"(<｜Assistant｜>)?<think>\n.*\n</think>\n\n", before, re.DOTALL):
            return "thinks in earlier turns"
    roles = r"<\|(user|observation)\|>"
    if re.fullmatch(re.escape(re.sub(rf"{re.escape(eos)}$|{roles}$", "", ours)) + roles, theirs):
        return "next role"
    return "opens the result" if ours == theirs + "<|tool_response>" else "?"


ESCAPED = '\\"city'
"""Call arguments as JSON text, written as a JSON string."""


def with_arguments(talk: list[Message], objects: bool) -> list[Message]:
    """Return messages with call arguments as objects, or as JSON text."""
    read = json.loads(json.dumps(talk))
    for message in read:
        for call in message.get("tool_calls", ()):
            given = call["function"]["arguments"]
            parsed = json.loads(given) if isinstance(given, str) else given
            call["function"]["arguments"] = parsed if objects else json.dumps(parsed)
    return read


def prompts_of(twins: Twins, talk: list[Message], tools: Any) -> list[list[str]]:
    """Return what the plain template writes before each answer, with each generation prompt that it has."""
    variants = ({}, {"enable_thinking": True}, {"enable_thinking": False})
    return [
        [twins.text(talk[:index], tools, prompted=True, **variant) for variant in variants]
        for index, message in enumerate(talk)
        if message["role"] == "assistant"
    ]


@cache
def chat_format(name: str) -> ChatFormat:
    twins = Twins(name)
    settings = PromptTemplateConfig(format_type="chat", date_string=twins.date)
    template = JinjaTemplate(twins.plain, twins.date)
    return ChatFormat(template, settings, twins.tokens, twins.control, None, twins.eos)


def rendered(twins: Twins, talk: list[Message], tools: Any) -> tuple[str, list[str]] | str:
    """Return the text and the trained parts, or the reject code."""
    row = {"messages": talk} | ({"tools": tools} if tools else {})
    out = chat_format(twins.name).render(canonical(as_json(row)).table)
    if out.rejects.num_rows:
        return out.rejects["code"][0].as_py()
    (made,) = out.table.to_pylist()
    assert_partition(made["text"], made["spans"])
    return made["text"], trained_parts(made["text"], made["spans"])


def source_text(twins: Twins, talk: list[Message], tools: Any) -> str:
    """Return what the plain template writes for call arguments as in the source, else in the other form."""
    for form in (talk, with_arguments(talk, objects=True), with_arguments(talk, objects=False)):
        with suppress(TemplateError, TypeError):
            text = twins.text(form, tools)
            if ESCAPED not in text:
                return text
    raise AssertionError("no form is rendered")


def differences(twins: Twins, talk: list[Message], tools: Any, ours: list[str]) -> list[str]:
    """Return the class of each trained part that differs from the twin's."""
    talk = with_arguments(talk, objects=True)  # which all twins render
    _, theirs = twins.generated(talk, tools)
    if len(ours) != len(theirs):
        return [f"? {ours} for {theirs}"]
    prompts = prompts_of(twins, with_arguments(talk, objects=twins.name != "deepseekv3"), tools)
    assert len(prompts) == len(theirs)
    found = []
    for part, other, before in zip(ours, theirs, prompts, strict=True):
        kind = difference(part, other, before, twins.eos)
        found.append(f"? {part!r} for {other!r} after {before[0]!r}" if kind == "?" else kind)
        assert part.endswith(twins.eos) or not other.rstrip().endswith(twins.eos), "EOS lost"
    return [kind for kind in found if kind]


@pytest.mark.parametrize("name", NAMES)
def test_trained_text_is_what_the_twin_marks(name: str) -> None:
    twins = Twins(name)
    refused: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    for shape, described in CASES:
        talk, tools = SHAPES[shape], TOOLS if described else None
        case = f"{shape} tools" if described else shape
        made = rendered(twins, talk, tools)
        if isinstance(made, str):
            refused[case] = made
            continue
        text, ours = made
        plain = source_text(twins, talk, tools)
        added = twins.name == "glm4moe"  # which writes no stop
        assert (text.replace(twins.eos, "") if added else text) == plain, case
        for kind in differences(twins, talk, tools, ours):
            kinds.setdefault(kind, []).append(case)
    different = DIFFERENT | MORE_DIFFERENT if SOAK else DIFFERENT
    assert set(kinds) == {kind for kind in REASONS if name in different.get(kind, "").split()}, kinds
    if not SOAK:
        assert refused == REFUSED.get(name, {})
