"""The texts of the shared chat templates, written by hand, line breaks between their blocks included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from support.chat_writers import Message, Part, Parts, Talk, Writer, calls_of, dumped, said


def qwen(talk: Talk, marked: bool) -> Parts:
    """Qwen2.5; with generation marks the newlines around an answer are trained too."""
    turns = list(talk.messages)
    yield Part("<|im_start|>system\n")
    if turns[0]["role"] == "system":
        yield Part(turns.pop(0)["content"], own=False)
    else:
        yield Part("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
    if talk.tools:
        yield Part(QWEN_TOOLS.format("".join(f"\n{dumped(tool)}" for tool in talk.tools)))
    yield Part("<|im_end|>\n")
    for index, turn in enumerate(turns):
        if turn["role"] == "tool":
            first = index == 0 or turns[index - 1]["role"] != "tool"
            last = index == len(turns) - 1 or turns[index + 1]["role"] != "tool"
            yield Part("<|im_start|>user" * first + "\n<tool_response>\n")
            yield Part(turn["content"], own=False)
            yield Part("\n</tool_response>" + "<|im_end|>\n" * last)
            continue
        answers, calls = turn["role"] == "assistant", calls_of(turn)
        yield Part(f"<|im_start|>{turn['role']}")
        if turn["content"] or not calls:
            yield Part("\n", answers and marked)
        yield Part(turn["content"], answers, own=False)
        for place, (name, arguments) in enumerate(calls):
            yield Part("\n", marked or place > 0 or turn["content"] != "")  # the first ends the generation prompt
            written = f'{{"name": "{name}", "arguments": {dumped(arguments)}}}'
            yield Part(f"<tool_call>\n{written}\n</tool_call>", trained=True)
        yield Part("<|im_end|>", answers)
        yield Part("\n", answers and marked)


QWEN_TOOLS = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def indented(talk: Talk, write: Callable[[Talk, Message], Parts], between: str = "\n", last: str = "\n") -> Parts:
    """Templates that span several lines, whose line breaks are part of the text."""
    for message in talk.messages:
        yield Part(between)
        yield from write(talk, message)
        yield Part("\n")
    yield Part(last)


def real_alpaca(talk: Talk) -> Parts:
    yield Part("\n" + talk.bos)
    yield Part(rules_of(talk), own=False)
    yield Part("\n")

    def write(talk: Talk, message: Message) -> Parts:
        answers = message["role"] == "assistant"
        yield Part("        ### " + ("Response:\n" if answers else "Instruction:\n"))
        yield from said(message, talk.eos if answers else "", str.strip)
        yield Part("\n\n")

    yield from indented(without_system(talk), write)


def real_chatml(talk: Talk) -> Parts:
    yield Part(f"\n{talk.bos}\n")

    def write(talk: Talk, message: Message) -> Parts:
        yield Part(f"    <|im_start|>{message['role']}\n")
        yield from said(message, "<|im_end|>", str.strip)
        yield Part("\n")

    yield from indented(talk, write)


def real_gemma(talk: Talk) -> Parts:
    yield Part("\n")
    before = [rules_of(talk)]

    def write(talk: Talk, message: Message) -> Parts:
        yield Part(f"    <start_of_turn>{'model' if message['role'] == 'assistant' else message['role']}\n")
        system = before.pop() if before else ""
        yield from said(message, "<end_of_turn>", lambda text: (system + text).strip())
        yield Part("\n")

    yield from indented(without_system(talk), write, "\n\n\n")


def real_llama_2(talk: Talk) -> Parts:
    yield Part("\n")
    asked = talk.messages[0]["role"] == "system"
    before = [f"<<SYS>>\n{talk.messages[0]['content'].strip()}\n<</SYS>>\n\n"] if asked else []

    def write(talk: Talk, message: Message) -> Parts:
        system = before.pop() if before else ""
        yield Part("        " + (f"{talk.bos}[INST] " if message["role"] == "user" else " "))
        stop = f" {talk.eos}" if message["role"] == "assistant" else " [/INST]"
        yield from said(message, stop, lambda text: (system + text).strip())

    yield from indented(without_system(talk), write, "\n\n", "")


def real_llama_3(talk: Talk) -> Parts:
    yield Part(f"\n{talk.bos}\n")

    def write(_: Talk, message: Message) -> Parts:
        yield Part(f"    <|start_header_id|>{message['role']}<|end_header_id|>\n\n")
        yield from said(message, "<|eot_id|>", str.strip)

    yield from indented(talk, write)


def real_mistral(talk: Talk) -> Parts:
    yield Part("\n" + talk.bos)
    yield Part(rules_of(talk), own=False)
    yield Part("\n")

    def write(talk: Talk, message: Message) -> Parts:
        yield Part("        " + ("[INST] " if message["role"] == "user" else " "))
        yield from said(message, talk.eos if message["role"] == "assistant" else " [/INST]", str.strip)

    yield from indented(without_system(talk), write, last="")


def real_zephyr(talk: Talk) -> Parts:
    yield Part("\n")

    def write(talk: Talk, message: Message) -> Parts:
        yield Part(f"    <|{message['role']}|>\n")
        yield from said(message, talk.eos, str.strip)
        yield Part("\n")

    yield from indented(talk, write)


def rules_of(talk: Talk) -> str:
    first = talk.messages[0]
    return first["content"].strip() + "\n\n" if first["role"] == "system" else ""


def without_system(talk: Talk) -> Talk:
    rest = talk.messages[talk.messages[0]["role"] == "system" :]
    return replace(talk, messages=rest)


REAL: dict[str, Writer] = {
    "alpaca": real_alpaca,
    "chatml": real_chatml,
    "gemma-it": real_gemma,
    "llama-2-chat": real_llama_2,
    "llama-3-instruct": real_llama_3,
    "mistral-instruct": real_mistral,
    "qwen2.5-instruct": lambda talk: qwen(talk, marked=False),
    "qwen2_5_training": lambda talk: qwen(talk, marked=True),
    "zephyr": real_zephyr,
}
