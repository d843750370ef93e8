"""Reasoning and tool calls are counted apart, as the conversations say and as TRL's templates write them.

Three oracles: `transformers` renders each conversation without the calls of a message; calls are written here by hand;
and tokens are counted in the texts of `transformers` with the offsets of its tokenizer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from support.built_prompts import built
from support.columns_stage import as_json, canonical
from support.small_tokenizers import byte_level
from support.soak import SOAK
from support.trl_rows import called_rows
from support.trl_templates import NAMES, Message, Twins
from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.prompts.chat_certificate import certificate
from tokenloom.assets.prompts.spans import SPAN_ROLES, inline_parts, thought_bounds
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.templates.jinja import JinjaTemplate

NO_CALLS = {"cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "llava_next"}
NO_CALLS |= {"phi3", "phi3_5", "qwen2_5_vl", "smolvlm"}
WRITTEN_APART = {"diffusion_gemma", "glm4moe", "gptoss", "muse_glimmer"}
"""Templates that write the rest of the turn differently if it has no call, or no stop."""
INSERTED = [name for name in NAMES if name not in NO_CALLS | WRITTEN_APART]
FEW = ("deepseekv3", "lfm2_v2", "nemotron_3_nano", "qwen3", "qwen3_5_think")


def call(city: str, text: bool = False) -> dict[str, Any]:
    arguments = {"city": city, "days": 2}
    given = json.dumps(arguments) if text else arguments
    return {"type": "function", "function": {"name": "weather", "arguments": given}}


def answer(content: str, *cities: str, thought: str = "", text: bool = False) -> Message:
    message: Message = {"role": "assistant", "content": content}
    message |= {"reasoning_content": thought} if thought else {}
    return message | ({"tool_calls": [call(city, text) for city in cities]} if cities else {})


Q1, Q2 = {"role": "user", "content": "Q1"}, {"role": "user", "content": "Q2"}
RESULT = {"role": "tool", "content": "R", "name": "weather"}


def format_of(name: str, template: str | None = None, **prompt: Any) -> ChatFormat:
    twins = Twins(name)
    settings = PromptTemplateConfig(format_type="chat", date_string=twins.date, **prompt)
    compiled = JinjaTemplate(template or twins.plain, twins.date)
    return ChatFormat(compiled, settings, twins.tokens, twins.control, None, twins.eos)


def spans_of(chat: ChatFormat, talk: list[Message]) -> list[tuple[str, str, int]]:
    """Return the text, role and message of each span."""
    out = chat.render(canonical(as_json({"messages": talk})).table)
    (row,) = out.table.to_pylist()
    data = row["text"].encode()
    return [
        (data[span["start"] : span["end"]].decode(), SPAN_ROLES[span["role"]], span["message"]) for span in row["spans"]
    ]


@pytest.mark.parametrize("name", INSERTED if SOAK else FEW)
def test_without_the_calls_the_text_is_what_transformers_renders_without_them(name: str) -> None:
    text, empty = name == "deepseekv3", name in ("lfm2_v2", "qwen2_5", "qwen3_instruct_2507", "qwen3_vl", "deepseekv3")
    thought = "" if empty else "T"
    talks = [
        [Q1, answer("", "Rome", text=text), RESULT, answer("A")],
        [Q1, answer("W", "Rome", "Bonn", text=text), RESULT, RESULT, answer("A"), Q2, answer("B")],
        [Q1, answer("W", "Rome", thought=thought, text=text), RESULT, answer("A", thought=thought)],
    ]
    for talk in talks:
        found = spans_of(format_of(name), talk)
        for index, message in enumerate(talk):
            if "tool_calls" not in message:
                continue
            bare = [*talk[:index], answer(message["content"], thought=message.get("reasoning_content", ""))]
            left = "".join(part for part, role, owner in found if (role, owner) != ("tool_call", index))
            assert left == Twins(name).text([*bare, *talk[index + 1 :]], None), talk


def parameters(cities: tuple[str, ...], join: str = "") -> str:
    written = "<parameter=city>\n{}\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    calls = ("<tool_call>\n<function=weather>\n" + written + "</function>\n</tool_call>" for _ in cities)
    return join.join(calls).format(*cities)


def gpt_oss(content: str, cities: tuple[str, ...]) -> str:
    arguments = f'{{"city": "{cities[0]}", "days": 2}}'
    return f" to=functions.weather<|channel|>commentary json<|message|>{arguments}<|call|>"


def qwen_3(content: str, cities: tuple[str, ...]) -> str:
    line = '<tool_call>\n{{"name": "weather", "arguments": {{"city": "{}", "days": 2}}}}\n</tool_call>'
    return "\n" * bool(content) + "\n".join(line.format(city) for city in cities)


CALLS = {
    "gptoss": gpt_oss,
    "nemotron_3_nano": lambda content, cities: "\n" + parameters(cities, "\n") + "\n",
    "qwen3": qwen_3,
    "qwen3_5_think": lambda content, cities: "\n\n" * bool(content) + parameters(cities, "\n"),
}
"""What templates write for the calls of a message."""


def written_rows(one_call: bool) -> list[list[Message]]:
    """Return conversations with calls and reasoning whose words are unique."""
    rows = []
    for number in range(12):
        messages: list[Message] = []
        for turn in range(number % 3 + 1):
            here = f"{number}x{turn}y"
            thought = f"thought {here} " * (number % 4)
            cities = (f"Rome{here}", f"Bonn{here}")[: 1 if one_call else number % 2 + 1]
            content = "" if one_call or number % 2 else f"I look {here}"
            messages.append({"role": "user", "content": f"where is it {here}? " * (number % 5 + 1)})
            messages.append(answer(content, *cities, thought=thought.strip()))
            messages.append({**RESULT, "content": f"sunny {here}"})
            messages.append(answer(f"It is sunny {here}.", thought=f"so {here} it is"))
        rows.append(messages)
    return rows


@pytest.mark.parametrize("name", CALLS)
def test_tokens_are_counted_as_in_the_texts_of_transformers(name: str, tmp_path: Path) -> None:
    twins = Twins(name)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(twins.control, 900), eos_token=twins.eos, chat_template=twins.plain
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = written_rows(one_call=name == "gptoss")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    longest = 600 if name == "gptoss" else 160  # gpt-oss starts with a long system message
    sections = {"tokenizer": {"name_or_path": str(tmp_path / "tokenizer"), "max_length": longest}}
    length = {"strategy": "truncate_right", "packing": "best_fit"}
    prompt = {"date_string": twins.date}
    build = built(
        tmp_path / "rows.jsonl", tmp_path / "store", "sequences", **sections, length=length, prompt_template=prompt
    )
    manifest = build.manifest("sequences")
    expected: Counter[str] = Counter()
    for row, ids, flags in documents(build.store.objects.get(manifest.chunks[0].output)):
        known, parts = parts_of_tokens(twins, tokenizer, rows[row], CALLS[name])
        assert ids == known[: len(ids)]
        expected.update(part for part in parts[: len(ids)] if part)
        assert all(flag for flag, part in zip(flags, parts, strict=False) if part)
    found = {part: manifest.counters[f"trained_tokens.{part}"] for part in ("reasoning", "tool_call")}
    assert found == expected
    assert sum(found.values()) < manifest.counters["trained_tokens.assistant"] == manifest.counters["tokens_trained"]


def test_tokens_of_calls_in_glaive_are_counted_as_in_the_texts_of_transformers(real_data: Path, tmp_path: Path) -> None:
    """phi-2 has no token for what Qwen's template writes, so that tokens cross the bounds of calls."""
    file = real_data / "chat" / "glaive_toolcall_en_demo.json"
    template = real_data / "chat_templates" / "qwen2.5-instruct.jinja"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(real_data / "tokenizers" / "phi-2" / "tokenizer.json"))
    known = []
    rows = json.loads(file.read_text(encoding="utf-8"))
    for row, (talk, _) in zip(rows, called_rows(rows), strict=True):
        tools = json.loads(row["tools"]) if row["tools"] else None
        (text,), _ = render_jinja_template([talk], tools=tools, chat_template=template.read_text(encoding="utf-8"))
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        called = [
            found.span() for found in re.finditer(r"(?<=assistant\n)<tool_call>\n.*?\n</tool_call>", text, re.DOTALL)
        ]
        starts = [start for start, _ in encoded["offset_mapping"]]
        known.append((encoded["input_ids"], [any(a <= start < b for a, b in called) for start in starts]))
    named = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "chat_template": str(template)}
    for longest in (256, 512, 2048):
        length = {"strategy": "truncate_right", "packing": "best_fit"}
        tokenizing = {**named, "max_length": longest}
        build = built(file, tmp_path / "store", "sequences", tokenizer=tokenizing, length=length)
        manifest = build.manifest("sequences")
        expected = 0
        for index, ids, _ in documents(build.store.objects.get(manifest.chunks[0].output)):
            assert ids == known[index][0][: len(ids)]
            expected += sum(known[index][1][: len(ids)])
        assert manifest.counters["trained_tokens.tool_call"] == expected > 0


def documents(sequences: pa.Table) -> list[tuple[int, list[int], list[int]]]:
    """Return the row, the ids and the flags of each document."""
    found = []
    for sequence in sequences.to_pylist():
        at = 0
        for row, size in zip(sequence["rows"], sequence["document_lengths"], strict=True):
            found.append((row, sequence["input_ids"][at : at + size], sequence["trained"][at : at + size]))
            at += size
    return found


def parts_of_tokens(twins: Twins, tokenizer: Any, talk: list[Message], write: Any) -> tuple[list[int], list[str]]:
    """Return the ids of a conversation, and the part that the first character of each token is in."""
    text = twins.text(talk, None)
    kinds = [""] * len(text)
    for message in talk:
        pieces = {"reasoning": message.get("reasoning_content", "")}
        if called := message.get("tool_calls"):
            cities = tuple(each["function"]["arguments"]["city"] for each in called)
            pieces["tool_call"] = write(message["content"], cities)
        for part, piece in pieces.items():
            if piece and piece in text:
                assert text.count(piece) == 1
                start = text.index(piece)
                kinds[start : start + len(piece)] = [part] * len(piece)
            else:
                assert part == "reasoning"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], [kinds[start] for start, _ in encoded["offset_mapping"]]


INLINE = [
    "<think>\nT1\n</think>\n\nA1",
    "T2</think>A2",
    "no thought",
    "<think>\n\n</think>\n\nA3",
    "<think>é\n\n\nñ</think>",
    "<think>a</think> <think>b</think>",
    "a <think>b</think>",
    "</think>",
    "",
]


def test_inline_reasoning_is_found_in_all_contents_at_once() -> None:
    bounds = thought_bounds(pa.array(INLINE))
    assert bounds is not None
    for content, (start, end) in zip(INLINE, bounds.tolist(), strict=True):
        before, thought, *_ = inline_parts(content) or ("", "")
        assert content.encode()[start:end].decode() == thought
        assert start == end or content[: len(before)] == before
    assert thought_bounds(pa.array(["a", "<think>"])) is None


def test_inline_reasoning_in_whole_contents_is_reasoning() -> None:
    talk = [Q1, answer(INLINE[0]), Q2, answer("A2")]
    found = spans_of(format_of("qwen2_5"), talk)
    assert [part for part, role, _ in found if role == "reasoning"] == ["T1"]
    untrained = spans_of(format_of("qwen2_5", train_on="last"), talk)
    assert not [part for part, role, _ in untrained if role == "reasoning"]
    assert "".join(part for part, *_ in untrained) == "".join(part for part, *_ in found)


def test_calls_whose_position_is_unknown_stay_part_of_the_answer() -> None:
    """The first template also writes something before the question if there are calls."""
    begins = "{% if messages | selectattr('tool_calls') | list %}(calls){% endif %}"
    calls = "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}"
    turn = "{% generation %}{{ m.content }}" + calls + "{{ '<|im_end|>' }}{% endgeneration %}"
    template = "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}" + turn
    template += "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    for start, found, parts in ((begins, "trained, not counted apart", []), ("", "trained", ["<weather>"])):
        chat = format_of("qwen3", start + template)
        spans = spans_of(chat, [Q1, answer("", "Rome")])
        assert [part for part, role, _ in spans if role == "tool_call"] == parts
        assert next(each["found"] for each in certificate(chat) if each["name"] == "tool calls") == found


def test_calls_are_found_in_turns_that_end_with_another_stop_than_answers() -> None:
    template = (
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% for c in m.tool_calls or [] %}"
        "{{ '[' + c.function.name + ']' }}{% endfor %}{{ '<|call|>' if m.tool_calls else '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    chat = replace(format_of("qwen3", template), control=("<|call|>", "<|im_end|>"))
    found = spans_of(chat, [Q1, answer("A"), Q2, answer("", "Rome"), RESULT, answer("B")])
    assert [(part, owner) for part, role, owner in found if role == "tool_call"] == [("[weather]", 3), ("<|call|>", 3)]


def test_bounds_of_calls_do_not_depend_on_control_tokens() -> None:
    """The call and the stop after it both begin with `<`."""
    twins, chat = Twins("qwen3"), format_of("qwen3")
    talk = [Q1, answer("", "Rome"), RESULT, answer("A")]
    for control in ((), twins.control):
        spans = spans_of(replace(chat, control=control), talk)
        assert "".join(part for part, role, _ in spans if role == "tool_call") == qwen_3("", ("Rome",))
