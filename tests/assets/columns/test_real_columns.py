"""Real files in canonical form: every row compared with a reader in plain Python."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from support.canonical_tables import call
from support.canonical_tables import said as message
from support.columns_stage import Row, canonical, codes, kept, mapped

SPEAKERS = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}

SHARED = {"tools": "", "template_kwargs": ""}


def read(path: Path) -> list[Row]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        text = file.read()
    return json.loads(text) if ".jsonl" not in path.name else [json.loads(line) for line in text.splitlines()]


def test_glaive_calls_become_tool_calls(real_data: Path) -> None:
    rows = read(real_data / "chat" / "glaive_toolcall_en_demo.json")
    out = canonical(rows, **mapped({"messages": "conversations", "tools": "tools"}))
    expected = []
    for row in rows:
        talk = []
        for turn in row["conversations"]:
            role, text, calls = SPEAKERS[turn["from"]], turn["value"], None
            if turn["from"] == "function_call":
                found = json.loads(text)
                text, calls = "", [call(found["name"], found["arguments"])]
            talk.append(message(role, text, tool_calls=calls))
        tools = "" if row["tools"].strip() == "[]" else row["tools"]
        expected.append({"messages": talk, "tools": tools, "template_kwargs": ""})
    assert kept(out) == expected
    assert sum(turn["fields"] is not None for row in expected for turn in row["messages"]) > 100


def test_sharegpt_and_openai_chats_become_messages(real_data: Path) -> None:
    rows = read(real_data / "chat" / "dummy_conversation.json")
    out = canonical(rows, **mapped({"messages": "conversations"}))
    talks = [[message(SPEAKERS[turn["from"]], turn["value"]) for turn in row["conversations"]] for row in rows]
    assert [row["messages"] for row in kept(out)] == talks
    rows = read(real_data / "chat" / "toy_chat_fine_tuning.jsonl")
    out = canonical(rows, **mapped({"messages": "messages"}))
    assert [row["messages"] for row in kept(out)] == [[message(**turn) for turn in row["messages"]] for row in rows]


def test_lists_of_messages_are_read_from_their_json(real_data: Path) -> None:
    lines = (real_data / "chat" / "openai_sft_barelist.jsonl").read_text(encoding="utf-8").splitlines()
    out = canonical([{"line": line} for line in lines], **mapped({"messages": "line"}))
    assert [row["messages"] for row in kept(out)] == [[message(**turn) for turn in json.loads(line)] for line in lines]


def test_dpo_demo_becomes_a_prompt_and_two_weighted_answers(real_data: Path) -> None:
    rows = read(real_data / "preference" / "v1_dpo_demo.jsonl")
    out = canonical(rows, **mapped({"chosen": "chosen_messages", "rejected": "rejected_messages"}))

    def said(turns: list[Row]) -> list[Row]:
        texts = ["".join(part["value"] for part in turn["content"]) for turn in turns]
        messages = []
        for turn, text in zip(turns, texts, strict=True):
            blank = [{**part, "value": None} for part in turn["content"]]
            fields = json.dumps({**turn, "role": None, "content": blank})
            messages.append({**message(turn["role"], text, weight=turn["loss_weight"]), "fields": fields})
        return messages

    expected, same = [], []
    for index, row in enumerate(rows):
        chosen, rejected = said(row["chosen_messages"]), said(row["rejected_messages"])
        if chosen == rejected:
            same.append(2 * index + 1)
            continue
        assert chosen[:-1] == rejected[:-1]
        expected.append({"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:], **SHARED})
    assert kept(out) == expected
    assert codes(out) == dict.fromkeys(same, "same_answers")


def test_hh_rlhf_transcripts_become_preferences(real_data: Path) -> None:
    rows = read(real_data / "preference" / "hh-rlhf_harmless-base_test.jsonl.gz")
    out = canonical(rows, **mapped({"chosen": "chosen", "rejected": "rejected"}))

    def turns(text: str) -> list[Row]:
        parts = re.split(r"\n\n(Human|Assistant):", "\n\n" + text.lstrip())[1:]
        roles = ["user" if name == "Human" else "assistant" for name in parts[::2]]
        return [message(role, said.strip()) for role, said in zip(roles, parts[1::2], strict=True)]

    expected, bad = [], {}
    for index, row in enumerate(rows):
        chosen, rejected = turns(row["chosen"]), turns(row["rejected"])
        count = 0
        while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
            count += 1
        answered = [
            any(turn["role"] == "assistant" and turn["content"] for turn in talk[count:]) for talk in (chosen, rejected)
        ]
        if chosen == rejected:
            bad[2 * index + 1] = "same_answers"
        elif not count:
            bad[2 * index + 1] = "no_common_prompt"
        elif not all(answered):
            bad[2 * index + 1] = "empty_answer"
        else:
            sides = {"chosen": chosen[count:], "rejected": rejected[count:]}
            expected.append({"prompt": chosen[:count], **sides, **SHARED})
    assert kept(out) == expected
    assert codes(out) == bad
    assert len(bad) < 0.01 * len(rows)


def test_seed_tasks_and_xquad_reach_into_lists(real_data: Path) -> None:
    rows = read(real_data / "instruct" / "alpaca_seed_tasks.jsonl")
    roles = {"prompt": "instruction", "context": "instances[0].input", "completion": "instances[0].output"}
    out = canonical(rows, **mapped(roles))
    expected = []
    for row in rows:
        first = row["instances"][0]
        prompt = row["instruction"] + (f"\n\n{first['input']}" if first["input"] else "")
        expected.append({"prompt": prompt, "completion": first["output"], "system": ""})
    assert kept(out) == expected

    data = json.loads((real_data / "multilingual" / "xquad.ar.json").read_text(encoding="utf-8"))["data"]
    questions = [
        {"context": paragraph["context"], **question}
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    roles = {"prompt": "{context}\n\nQ: {question}", "completion": "answers[0].text", "context": {"constant": ""}}
    out = canonical(questions, **mapped(roles))
    expected = [
        {"prompt": f"{q['context']}\n\nQ: {q['question']}", "completion": q["answers"][0]["text"], "system": ""}
        for q in questions
    ]
    assert kept(out) == expected
    assert len(expected) == 1190
