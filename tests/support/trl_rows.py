"""Derive rows of every dataset type of TRL from real files, for comparisons with TRL's trainers.

python tests/support/trl_rows.py DATA ROWS     one JSONL file per type in the folder ROWS, 200 rows each

Types are those of https://huggingface.co/docs/trl/dataset_formats. Rows come from WikiText-2 (text), GSM8K (questions
and answers), FastChat's dummy conversations (chats), Glaive (tool calls) and HH-RLHF (preferences) in the folder DATA.
Tests without these files use the quickstart's conversations.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Messages = list[Row]

COUNT = 200
QUICKSTART = Path(__file__).parents[2] / "tokenloom" / "pipelines" / "samples" / "quickstart.jsonl"
ROLES = {"human": "user", "gpt": "assistant", "observation": "tool"}


@dataclass(frozen=True)
class Texts:
    """What rows of all types are derived from.

    Args:
        plain: texts.
        answered: questions and answers.
        chats: conversations of user and assistant that end with an answer.
        calls: conversations with tool calls, and their tools.
        pairs: conversations that end with a question, with a better and a worse answer.
    """

    plain: list[str]
    answered: list[tuple[str, str]]
    chats: list[Messages]
    calls: list[tuple[Messages, list[Row]]]
    pairs: list[tuple[Messages, str, str]]


def said(role: str, content: str, **more: Any) -> Row:
    return {"role": role, "content": content, **more}


def real_texts(data: Path, count: int = COUNT) -> Texts:
    """Read `count` texts of each kind from the folder of real files."""
    lines = (data / "text" / "wikitext-2" / "valid.txt").read_text(encoding="utf-8").split("\n")
    solved = (data / "math" / "gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()
    talks = json.loads((data / "chat" / "dummy_conversation.json").read_text(encoding="utf-8"))
    called = json.loads((data / "chat" / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8"))
    with gzip.open(data / "preference" / "hh-rlhf_harmless-base_test.jsonl.gz", "rt", encoding="utf-8") as file:
        pairs = list(islice(_pairs(json.loads(line) for line in file), count))
    return Texts(
        [line for line in lines if line.strip()][:count],
        [(row["question"], row["answer"]) for row in map(json.loads, solved[:count])],
        [[said(ROLES[turn["from"]], turn["value"]) for turn in talk["conversations"]] for talk in talks[:count]],
        list(islice(called_rows(called), count)),
        pairs,
    )


def sample_texts(count: int = COUNT) -> Texts:
    """Return texts of each kind from the quickstart's conversations; fewer than `count` if it has fewer."""
    rows = [json.loads(line) for line in QUICKSTART.read_text(encoding="utf-8").splitlines()]
    chats = [row["messages"] for row in rows if _alternates(row["messages"])][:count]
    answers = [chat[-1]["content"] for chat in chats]
    questions = [chat[-2]["content"] for chat in chats]
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"text": "x", "limit": None}}}
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
    calls = [
        (
            [
                said("user", asked),
                said("assistant", "", tool_calls=[call]),
                said("tool", "x"),
                said("assistant", answer),
            ],
            tools,
        )
        for asked, answer in zip(questions, answers, strict=True)
    ]
    worse = [answer + " I do not know." for answer in answers]
    pairs = [(chat[:-1], answer, bad) for chat, answer, bad in zip(chats, answers, worse, strict=True)]
    return Texts(answers, list(zip(questions, answers, strict=True)), chats, calls, pairs)


def called_rows(rows: list[Row]) -> Iterator[tuple[Messages, list[Row]]]:
    """Yield Glaive's conversations, with calls in OpenAI's form, and their tools."""
    for row in rows:
        messages = []
        for turn in row["conversations"]:
            if turn["from"] == "function_call":
                calls = [{"type": "function", "function": json.loads(turn["value"])}]
                messages.append(said("assistant", "", tool_calls=calls))
            else:
                messages.append(said(ROLES[turn["from"]], turn["value"]))
        yield messages, [{"type": "function", "function": tool} for tool in json.loads(row["tools"] or "[]")]


def _pairs(rows: Iterator[Row]) -> Iterator[tuple[Messages, str, str]]:
    """Yield HH-RLHF's transcripts that differ in nothing but the last answer."""
    for row in rows:
        chosen, rejected = (_turns(row[side]) for side in ("chosen", "rejected"))
        answers = chosen[-1]["content"], rejected[-1]["content"]
        is_pair = chosen[:-1] == rejected[:-1] and answers[0] != answers[1] and all(map(str.strip, answers))
        if is_pair and _alternates(chosen) and all(turn["content"] for turn in chosen):
            yield chosen[:-1], *answers


def _alternates(messages: Messages) -> bool:
    return [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)


def _turns(transcript: str) -> Messages:
    turns = []
    for part in (
        transcript.replace("\n\nHuman:", "\x00user").replace("\n\nAssistant:", "\x00assistant").split("\x00")[1:]
    ):
        role = "user" if part.startswith("user") else "assistant"
        turns.append(said(role, part.removeprefix(role).strip()))
    return turns


def transcript(messages: Messages) -> str:
    """Return messages as text, as HH-RLHF writes them, up to where the next answer starts."""
    names = {"user": "\n\nHuman: ", "assistant": "\n\nAssistant: "}
    return "".join(names[message["role"]] + message["content"] for message in messages) + "\n\nAssistant:"


def _conversational(question: str, answer: str) -> tuple[Messages, Messages]:
    return [said("user", question)], [said("assistant", answer)]


TYPES: dict[str, Callable[[Texts], list[Row]]] = {
    "language modeling, standard": lambda texts: [{"text": text} for text in texts.plain],
    "language modeling, conversational": lambda texts: [{"messages": chat} for chat in texts.chats],
    "language modeling, conversational with tools": lambda texts: [
        {"messages": messages, "tools": json.dumps(tools) if tools else None} for messages, tools in texts.calls
    ],
    "prompt-only, standard": lambda texts: [{"prompt": asked} for asked, _ in texts.answered],
    "prompt-only, conversational": lambda texts: [{"prompt": [said("user", asked)]} for asked, _ in texts.answered],
    "prompt-completion, standard": lambda texts: [
        {"prompt": f"{asked}\n", "completion": answer} for asked, answer in texts.answered
    ],
    "prompt-completion, conversational": lambda texts: [
        dict(zip(("prompt", "completion"), _conversational(*pair), strict=True)) for pair in texts.answered
    ],
    "preference, standard": lambda texts: [
        {"prompt": f"{prompt[-1]['content']}\n", "chosen": better, "rejected": worse}
        for prompt, better, worse in texts.pairs
    ],
    "preference, standard, implicit prompt": lambda texts: [
        {"chosen": f"{transcript(prompt)} {better}", "rejected": f"{transcript(prompt)} {worse}"}
        for prompt, better, worse in texts.pairs
    ],
    "preference, conversational": lambda texts: [
        {"prompt": prompt, "chosen": [said("assistant", better)], "rejected": [said("assistant", worse)]}
        for prompt, better, worse in texts.pairs
    ],
    "preference, conversational, implicit prompt": lambda texts: [
        {"chosen": [*prompt, said("assistant", better)], "rejected": [*prompt, said("assistant", worse)]}
        for prompt, better, worse in texts.pairs
    ],
    "unpaired preference, standard": lambda texts: [
        {"prompt": f"{prompt[-1]['content']}\n", "completion": worse if row % 2 else better, "label": not row % 2}
        for row, (prompt, better, worse) in enumerate(texts.pairs)
    ],
    "unpaired preference, conversational": lambda texts: [
        {"prompt": prompt, "completion": [said("assistant", worse if row % 2 else better)], "label": not row % 2}
        for row, (prompt, better, worse) in enumerate(texts.pairs)
    ],
    "stepwise supervision": lambda texts: [
        {"prompt": asked, "completions": answer.split("\n"), "labels": [True] * (answer.count("\n") + 1)}
        for asked, answer in texts.answered
    ],
}
"""The rows of each type."""


def main() -> int:
    data, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    texts = real_texts(data)
    for name, rows in TYPES.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in rows(texts)]
        (folder / f"{name.replace(', ', '-').replace(' ', '_')}.jsonl").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
