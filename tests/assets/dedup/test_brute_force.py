"""Dropped rows against brute force: sets of n-grams in plain Python, as docs/prepare/selection.md defines them."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.datasets_on_disk import TOKENIZER
from support.soak import SOAK
from tokenloom.assets.building.build import Build
from tokenloom.assets.dedup.stage import groups
from tokenloom.assets.stage.names import COLUMNS, DECONTAMINATE, DEDUP, FINGERPRINTS, RAW, SCHEMA
from tokenloom.config import PipelineConfig
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

COUNT = 3000 if SOAK else 300
Row = dict[str, Any]
Set = frozenset[tuple[str, ...]]

WORDS = [
    f"{one}{two}{three}" for one in "bdfgklmn" for two in "aeiou" for three in ("r", "st", "ka", "lo", "mi", "ten")
]
GUIDE = " ".join(f"Rule {WORDS[n]}: answer with {WORDS[n + 1]} care and cite {WORDS[n + 3]}." for n in range(25))
SYSTEMS = ["", "You are brief.", " ".join(f"Never say {word}." for word in WORDS[:60])]
TOOLS = [[], ["search"], ["search", "mail"]]


def tool(name: str) -> Row:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def talk(draw: random.Random) -> Row:
    """A conversation that starts as all do; some with a system message, tools, a call and its result."""
    system, tools = draw.choice(SYSTEMS), draw.choice(TOOLS)
    messages: list[Row] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": f"{GUIDE} {said(draw, 70)}"})
    if tools:
        arguments = {"query": said(draw, 3), "limit": draw.randrange(3)}
        function = {"name": draw.choice(tools), "arguments": arguments}
        call = {"id": f"call_{draw.randrange(10**6)}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": said(draw, 12)})
    messages.append({"role": "assistant", "content": said(draw, 40)})
    return {"messages": messages, "tools": [tool(name) for name in tools]}


def judged(draw: random.Random) -> Row:
    """An answer with a label."""
    return {"prompt": f"{GUIDE} {said(draw, 70)}", "completion": said(draw, 40), "label": draw.random() < 0.5}


def said(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def copy(row: Row) -> Row:
    return json.loads(json.dumps(row))


def texts(row: Row) -> list[str]:
    """What users and the model say, and results of calls."""
    if "messages" in row:
        return [message["content"] for message in row["messages"] if message["role"] != "system"]
    return [row["prompt"], row["completion"]]


def calls(row: Row) -> list[Row]:
    return [call["function"] for message in row.get("messages", ()) for call in message.get("tool_calls", ())]


def beside(row: Row) -> str:
    """What else makes rows others, but for the ids of calls."""
    systems = [message["content"] for message in row.get("messages", ()) if message["role"] == "system"]
    return json.dumps([systems, calls(row), row.get("tools"), row.get("label")])


def edit_text(draw: random.Random, row: Row) -> None:
    """Change some words of the question, or of the answer; what all rows share stays."""
    holder, name = (row, "prompt") if "prompt" in row else (row["messages"][-1], "content")
    words = holder[name].split()
    for _ in range(draw.choice([1, 1, 2, 5])):
        words[draw.randrange(-40, 0)] = draw.choice(WORDS)
    holder[name] = " ".join(words)


def edit_more(draw: random.Random, row: Row) -> None:
    """Change a part beside the texts, or what does not count."""
    if "label" in row:
        row["label"] = not row["label"]
        return
    found = [call for message in row["messages"] for call in message.get("tool_calls", ())]
    kind = draw.choice(["system", "tools", "arguments", "name", "id"])
    if kind == "system" or not found:
        row["messages"] = [{"role": "system", "content": "Be kind."}, *row["messages"]]
    elif kind == "tools":
        row["tools"] = [*row["tools"], tool("weather")]
    elif kind == "id":
        found[0]["id"] = row["messages"][-2]["tool_call_id"] = "call_x"
    elif kind == "name":
        found[0]["function"]["name"] += "_all"
    else:
        found[0]["function"]["arguments"]["limit"] += 5


def rows_of(make: Callable[[random.Random], Row]) -> list[Row]:
    draw, found = random.Random(6), []
    while len(found) < COUNT:
        row, chance = make(draw), draw.random()
        if chance < 0.5 and found:
            row = copy(draw.choice(found))
            if chance < 0.3:
                edit_text(draw, row)
            elif chance < 0.42:
                edit_more(draw, row)
        found.append(row)
    return found


def ngrams(row_texts: list[str], size: int) -> Set:
    words = words_of(" ".join(row_texts))
    return frozenset(tuple(words[at : at + size]) for at in range(len(words) - size + 1))


def words_of(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


def alike(one: Set, other: Set) -> float:
    return len(one & other) / len(one | other)


def by_brute_force(rows: list[Row]) -> set[int]:
    sets, first, kept, lost = [ngrams(texts(row), 5) for row in rows], {}, defaultdict[str, list[int]](list), set[int]()
    new = [number for number, row in enumerate(rows) if first.setdefault(json.dumps(row), number) == number]
    times = Counter(gram for number in new for gram in sets[number])
    common = frozenset(gram for gram, count in times.items() if count >= 0.9 * len(new))
    assert len(common) > 100
    own = [each - common for each in sets]
    for number, row in enumerate(rows):
        others = kept[beside(row)]
        if first[json.dumps(row)] < number or any(
            alike(own[number], own[other]) >= 0.8 and alike(sets[number], sets[other]) >= 0.8 for other in others
        ):
            lost.add(number)
        else:
            others.append(number)
    return lost


def built(folder: Path, rows: list[Row], stages: list[str], workers: int = 1, **sections: Any) -> Build:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tokenizer = {**TOKENIZER, "train": {"vocab_size": 300}, "chat_template": "chatml", "max_length": 4096}
    settings = {"name": "rows", "dataset": {"name": "rows.jsonl"}, "tokenizer": tokenizer, **sections}
    (folder / "rows.yaml").write_text(yaml.safe_dump(settings))
    config = PipelineConfig.from_file(folder / "rows.yaml")
    build = Build(config, ArtifactStore(folder / f"store{workers}"), ComputeEngine(workers))
    for _ in build.run_stages([RAW, SCHEMA, COLUMNS, *stages]):
        pass
    return build


@pytest.mark.parametrize("make", [talk, judged])
def test_repeated_rows_are_those_of_brute_force(tmp_path: Path, make: Callable[[random.Random], Row]) -> None:
    rows = rows_of(make)
    build = built(tmp_path, rows, [FINGERPRINTS, DEDUP], dedup={})
    found = {int(row.place.rpartition(":")[2]) - 1 for group in groups(build.store, "rows") for row in group.repeats}
    expected = by_brute_force(rows)
    assert found == expected
    assert 0.1 * COUNT < len(expected) < 0.5 * COUNT


ASKED = "Read the text with care and answer the question about it in one word."


def items_of(draw: random.Random) -> list[str]:
    """Items of 12 to 24 words; half of them start with an instruction."""
    return [f"{ASKED if number % 2 else ''} {said(draw, draw.randint(12, 24))}".strip() for number in range(40)]


def planted(draw: random.Random, items: list[str]) -> list[Row]:
    """Rows of which some hold an item, or a part of one, anywhere."""
    found = rows_of(talk)
    for row in found:
        if draw.random() < 0.4:
            words = draw.choice(items).split()
            start = draw.choice([0, 0, len(words) // 3, len(words) // 2])
            part = " ".join(words[start:]).upper() + draw.choice(["?", "!", ""])
            called = calls(row)
            if called and draw.random() < 0.4:
                called[0]["arguments"]["query"] = part
            else:
                message = draw.choice(row["messages"])
                message["content"] = f"{message['content']} {part} {said(draw, 3)}"
    return found


def contains(row: Row, items: list[str], size: int, threshold: float) -> int:
    """The number of the item of which a row contains most, or 0."""
    grams = set[tuple[str, ...]]()
    for message in row["messages"]:
        grams |= ngrams([message["content"]], size)
    for call in calls(row):
        grams |= ngrams([call["arguments"]["query"]], size)
    times = Counter(gram for item in items for gram in ngrams([item], size))
    best, share = 0, 0.0
    for number, item in enumerate(items, 1):
        words = words_of(item)
        places = [at for at in range(len(words) - size + 1) if times[tuple(words[at : at + size])] < 10]
        covered = {at + step for at in places if tuple(words[at : at + size]) in grams for step in range(size)}
        own = len(covered) / len({at + step for at in places for step in range(size)})
        if own >= threshold and own > share:
            best, share = number, own
    return best


def test_rows_with_items_are_those_of_brute_force(tmp_path: Path) -> None:
    draw = random.Random(8)
    items = items_of(draw)
    rows = planted(draw, items)
    (tmp_path / "items.txt").write_text("\n".join(items) + "\n")
    build = built(tmp_path, rows, [DECONTAMINATE], decontaminate={"against": ["items.txt"]})
    found = {}
    for chunk in build.manifest(DECONTAMINATE).chunks:
        for record in build.store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else []:
            found[int(chunk.place(record["_row"]).rpartition(":")[2]) - 1] = int(record["message"].split()[-3])
    expected = {number: item for number, row in enumerate(rows) if (item := contains(row, items, 8, 0.5))}
    assert found == expected
    assert 0.15 * COUNT < len(expected) < 0.5 * COUNT
