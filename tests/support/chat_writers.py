"""The texts of chat templates, written by hand: each conversation in parts, and which parts are trained.

The oracle of the sweep over templates: plain Python, one function per template, without tokenloom or Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of a text: the template's own, where control tokens are control tokens, or a message's content."""

    text: str
    trained: bool = False
    own: bool = True


@dataclass(frozen=True)
class Talk:
    """A conversation with its tools, today's date, the tokenizer's BOS and EOS, and the EOS that the pipeline adds
    after the last answer if the template writes no stop."""

    messages: Sequence[Message]
    tools: list[Any] | None
    date: str
    bos: str
    eos: str
    added: str


Parts = Iterator[Part]
Writer = Callable[[Talk], Parts]


def kept(text: str) -> str:
    return text


def said(message: Message, stop: str, trim: Callable[[str], str] = kept) -> Parts:
    """Yield a message and its stop; both are trained if it is an answer."""
    answers = message["role"] == "assistant"
    yield Part(trim(message["content"]), answers, own=False)
    yield Part(stop, answers)


def chatml(talk: Talk, trim: Callable[[str], str] = kept) -> Parts:
    for message in talk.messages:
        yield Part(f"<|im_start|>{message['role']}\n")
        yield from said(message, "<|im_end|>", trim)
        yield Part("\n")


def chatml_marked(talk: Talk) -> Parts:
    if talk.tools:
        yield Part(f"<|im_start|>tools\n{dumped(talk.tools)}<|im_end|>\n")
    for message in talk.messages:
        answers = message["role"] == "assistant"
        yield Part(f"<|im_start|>{message['role']}\n")
        yield Part(message["content"], answers, own=False)
        for name, arguments in calls_of(message):
            yield Part(f"<call>{dumped({'name': name, 'arguments': arguments})}</call>", answers)
        yield Part("<|im_end|>", answers)
        yield Part("\n")


def headers_dated(talk: Talk) -> Parts:
    turns = list(talk.messages)
    rules = turns.pop(0)["content"].strip() if turns[0]["role"] == "system" else ""
    yield Part(f"{talk.bos}<|start_header_id|>system<|end_header_id|>\n\nToday: {talk.date}\n\n")
    yield Part(rules, own=False)
    yield Part("<|eot_id|>")
    for turn in turns:
        yield Part(f"<|start_header_id|>{turn['role']}<|end_header_id|>\n\n")
        yield from said(turn, "<|eot_id|>", str.strip)


def inst_merged(talk: Talk) -> Parts:
    turns = list(talk.messages)
    rules = turns.pop(0)["content"] + "\n\n" if turns[0]["role"] == "system" else ""
    yield Part(talk.bos)
    for index, turn in enumerate(turns):
        if turn["role"] == "user":
            yield Part("[INST] ")
            yield Part((rules if index == 0 else "") + turn["content"], own=False)
            yield Part(" [/INST]")
        else:
            yield Part(" ")
            yield from said(turn, talk.eos)


def turns_renamed(talk: Talk) -> Parts:
    yield Part(talk.bos)
    for message in talk.messages:
        yield Part(f"<start_of_turn>{'model' if message['role'] == 'assistant' else message['role']}\n")
        yield from said(message, "<end_of_turn>", str.strip)
        yield Part("\n")


def plain_names(talk: Talk) -> Parts:
    for message in talk.messages:
        match message["role"]:
            case "system":
                yield from said(message, "\n\n")
            case "user":
                yield Part("USER: ")
                yield from said(message, " ")
            case _:
                yield Part("ASSISTANT: ")
                yield from said(message, talk.eos)
                yield Part("\n")


def text_stop(talk: Talk) -> Parts:
    for message in talk.messages:
        yield Part(f"### {message['role'].capitalize()}:\n")
        yield from said(message, "\n### End")
        yield Part("\n\n")


def think_last(talk: Talk) -> Parts:
    for index, message in enumerate(talk.messages):
        yield Part(f"<|im_start|>{message['role']}\n")
        if message["role"] == "assistant" and index == len(talk.messages) - 1:
            yield Part("<think>\n\n</think>\n\n")
        thinks = message["role"] == "assistant" and "</think>" in message["content"]
        yield from said(
            message,
            "<|im_end|>",
            lambda text, thinks=thinks: text.split("</think>")[-1].lstrip("\n") if thinks else text,
        )
        yield Part("\n")


def left_trimmed(talk: Talk) -> Parts:
    return chatml(talk, str.lstrip)


def no_stop(talk: Talk) -> Parts:
    last = max(index for index, message in enumerate(talk.messages) if message["role"] == "assistant")
    for index, message in enumerate(talk.messages):
        yield Part(f"{message['role']}: ")
        yield from said(message, talk.added if index == last else "")
        yield Part("\n")


def two_part_stop(talk: Talk) -> Parts:
    for message in talk.messages:
        yield Part(f"## {message['role']}\n")
        yield from said(message, f" [END]{talk.eos}")
        yield Part("\n")


def marked_contents(talk: Talk) -> Parts:
    """The generation marks do not include the stop, so it is not trained."""
    for message in talk.messages:
        yield Part(f"<|im_start|>{message['role']}\n")
        yield Part(message["content"], message["role"] == "assistant", own=False)
        yield Part("<|im_end|>\n")


def footer(talk: Talk) -> Parts:
    for message in talk.messages:
        yield Part(f"# {message['role']}\n")
        yield from said(message, "\n---")
        yield Part("\n")
    yield Part("That is all.")


def stop_between(talk: Talk) -> Parts:
    for index, message in enumerate(talk.messages):
        last = index == len(talk.messages) - 1
        yield Part(f"<|im_start|>{message['role']}\n")
        yield from said(message, (talk.added if message["role"] == "assistant" else "") if last else "<|im_end|>")
        yield Part("" if last else "\n")


def eos_last(talk: Talk) -> Parts:
    answers = [index for index, message in enumerate(talk.messages) if message["role"] == "assistant"]
    for index, message in enumerate(talk.messages):
        last = index == len(talk.messages) - 1
        yield Part({"user": "Q: ", "assistant": "A: "}.get(message["role"], ""))
        stop = talk.eos if last else talk.added if index == answers[-1] else ""
        yield from said(message, stop, lambda text: text.strip("\n"))
        yield Part("" if last else "\n\n")


def answer_quoted(talk: Talk) -> Parts:
    yield from no_stop(talk)
    yield Part("So: ")
    yield Part(talk.messages[-1]["content"], own=False)
    yield Part("\n")


def line_ends_replaced(talk: Talk) -> Parts:
    return chatml(talk, lambda text: text.replace("\r\n", "\n"))


def upper_cased(talk: Talk) -> Parts:
    return chatml(talk, str.upper)


def calls_of(message: Message) -> list[tuple[str, Any]]:
    """Yield the name and arguments of each tool call."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


OWN: dict[str, Writer] = {
    "chatml-marked": chatml_marked,
    "chatml-plain": chatml,
    "headers-dated": headers_dated,
    "inst-merged": inst_merged,
    "turns-renamed": turns_renamed,
    "plain-names": plain_names,
    "text-stop": text_stop,
    "think-last": think_last,
    "left-trimmed": left_trimmed,
    "no-stop": no_stop,
    "two-part-stop": two_part_stop,
    "marked-contents": marked_contents,
    "footer": footer,
    "stop-between": stop_between,
    "eos-last": eos_last,
    "answer-quoted": answer_quoted,
    "line-ends-replaced": line_ends_replaced,
    "upper-cased": upper_cased,
}
