"""Count the tokens that trees store, and time batches of them, in one run.

usage: trees.py FILE TEMPLATE ... [--tokenizer FOLDER] [--max-length N]

FILE: conversations in ShareGPT's format, JSON; the first 300 get a thought in front of every answer, and their calls
and results are left out. TEMPLATE: chat templates that drop the reasoning of earlier turns. The texts of FILE also make
200 sessions of an agent, with calls, thoughts and long results: 100 of one question, and 100 of two or three.

Per template and kind of row, prints the tokens that are stored with `turns: together`, with `exact`, and with `exact`
and `packing: tree`, and whether trees train the same tokens after the same tokens, with the same weight, as separate
texts. Then, per template, the speed of trees' batches of 8 × 2,048 as a fraction of that of packed ones (`best_fit`),
in tokens per second within an epoch, as the median of runs that take turns: of the chats, whose trees have weights
where chats repeat each other, and of those of them that do not begin with the same question.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom import DataPipeline
from tokenloom.config import PipelineConfig
from tokenloom.errors import RejectedRowsError
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.resources.digest import digest_bytes

CHATS, SESSIONS, RUNS = 300, 100, 15
BATCH, WIDTH, COPIES = 8, 2048, 30
SETTINGS = {"together": "none", "exact": "none", "packed": "best_fit", "tree": "tree"}

Message = dict[str, Any]


def main() -> None:
    """Build, compare and time every kind of row with every template, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("templates", type=Path, nargs="+")
    parser.add_argument("--tokenizer", default="tokenizers/phi-2")
    parser.add_argument("--max-length", type=int, default=8192)
    given = parser.parse_args()
    chats = reasoning_chats(given.file)
    kinds = {
        f"{len(chats)} chats": chats,
        f"{SESSIONS} sessions of one question": made_sessions(chats, 1, 1),
        f"{SESSIONS} sessions of two or three": made_sessions(chats, 2, 3),
    }
    print("| template | rows | together | exact | trees | exact | trees | masks |")
    print("|---|---|--:|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as home:
        for template in given.templates:
            for kind, rows in kinds.items():
                counts = dict[str, int]()
                with suppress(RejectedRowsError):  # some templates cannot hold calls of earlier turns in one text
                    counts["together"] = build_all(Path(home), rows, template, given, ("together",))["together"].tokens
                opened = build_all(Path(home), rows, template, given, ("exact", "tree"))
                counts |= {name: dataset.tokens for name, dataset in opened.items()}
                base = counts.get("together")
                more = [f"{counts[name] / base - 1:+.0%}" if base else "" for name in ("exact", "tree")]
                same = trained(opened["exact"]) == trained(opened["tree"])
                shown = [
                    f"{counts[name]:,}" if name in counts else "rejected" for name in ("together", "exact", "tree")
                ]
                print(
                    f"| {' | '.join([template.stem, kind, *shown, *more, 'equal' if same else 'DIFFER'])} |", flush=True
                )
        distinct = [*{chat[0]["content"]: chat for chat in chats}.values()]
        for template in given.templates:
            speeds = []
            for rows in (copies(chats), copies(distinct)):
                given.max_length = WIDTH
                opened = build_all(Path(home), rows, template, given, ("packed", "tree"))
                speeds.append(f"{relative_speed(opened['tree'], opened['packed']):.2f}")
            print(f"batches under {template.stem}: {speeds[0]}, of distinct chats {speeds[1]}", flush=True)


def reasoning_chats(file: Path) -> list[list[Message]]:
    """Return the conversations of a file without calls, with a thought in front of every answer."""
    chats = []
    for conversation in json.loads(file.read_text(encoding="utf-8")):
        chat = list[Message]()
        for turn in conversation["conversations"]:
            if turn["from"] == "human":
                chat.append({"role": "user", "content": turn["value"]})
            elif turn["from"] == "gpt" and chat:
                size = len(turn["value"].split())
                thought = f"The user says: {chat[-1]['content'][:160]} I answer with {size} words or so."
                chat.append({"role": "assistant", "content": turn["value"], **thinking(thought)})
        chats.append(chat)
    return chats[:CHATS]


def copies(chats: list[list[Message]]) -> list[list[Message]]:
    """Return copies of chats, each with another beginning: an epoch of few batches would measure how it begins."""
    return [[{"role": "system", "content": f"Copy {copy}."}, *chat] for copy in range(COPIES) for chat in chats]


def thinking(text: str) -> Message:
    """Return a thought under each name that templates read it by."""
    return dict.fromkeys(("reasoning_content", "reasoning", "thinking"), text)


def made_sessions(chats: list[list[Message]], least: int, most: int) -> list[list[Message]]:
    """Return sessions of an agent with some questions, each with three to eight calls before the answer."""
    draw = random.Random(0)
    texts = [message["content"] for chat in chats for message in chat]
    sessions = []
    for number in range(SESSIONS):
        session: list[Message] = [{"role": "system", "content": "You find out what is asked. " * 8}]
        for _ in range(draw.randint(least, most)):
            session.append({"role": "user", "content": draw.choice(texts)[:400]})
            for step in range(draw.randint(3, 8)):
                call = {"name": "look_up", "arguments": {"query": draw.choice(texts)[:60]}}
                calls = [{"type": "function", "id": f"call{number}x{step}", "function": call}]
                thought = thinking(f"I look for that in {draw.choice(texts)[:80]}")
                session.append({"role": "assistant", "content": "", "tool_calls": calls, **thought})
                result = {"role": "tool", "name": "look_up", "tool_call_id": f"call{number}x{step}"}
                session.append({**result, "content": " ".join(draw.choices(texts, k=3))[:2400]})
            answer = draw.choice(texts)[:500]
            session.append({"role": "assistant", "content": answer, **thinking("That is enough to answer.")})
        sessions.append(session)
    return sessions


def build_all(
    home: Path, rows: list[list[Message]], template: Path, given: argparse.Namespace, names: Iterable[str]
) -> dict[str, TokenDataset]:
    """Build a dataset with each of some settings, and open them."""
    path = home / "rows.jsonl"
    path.write_text("".join(f"{json.dumps({'messages': row})}\n" for row in rows), encoding="utf-8")
    opened = {}
    for name in names:
        packing, turns = SETTINGS[name], "together" if name == "together" else "exact"
        sections = {
            "dataset": {"name": str(path)},
            "tokenizer": {
                "name_or_path": given.tokenizer,
                "chat_template": str(template),
                "max_length": given.max_length,
            },
            "prompt_template": {"format_type": "chat", "turns": turns},
            "length": {"packing": packing, "strategy": "drop"},
            "validation": {"max_reject_fraction": 1.0},
        }
        DataPipeline(PipelineConfig(name=name, **sections), store=home / "store").build().unwrap()
        opened[name] = open_dataset(name, store=home / "store")
    return opened


def trained(dataset: TokenDataset) -> Counter[str]:
    """Return the weight of each trained token of a dataset, by the tokens that it sees."""
    found = Counter[str]()
    for row in dataset:
        ids, labels, weights = np.asarray(row["input_ids"]), np.asarray(row["labels"]), row.get("loss_weights")
        ends = np.asarray(row["attention_ends"]) if "attention_ends" in row else np.full(len(ids), len(ids))
        for query in np.flatnonzero(labels != -100).tolist():
            seen = ids[: query + 1][query < ends[: query + 1]]
            key = digest_bytes(np.ascontiguousarray(seen).tobytes())
            found[key] += 1 if weights is None else float(weights[query])  # pyright: ignore[reportArgumentType]
    return found


def relative_speed(trees: TokenDataset, packed: TokenDataset) -> float:
    """Return the tokens per second of batches of trees by those of packed rows."""

    def speed(dataset: TokenDataset) -> float:
        loader = TokenLoader(dataset, BATCH)
        batches = iter(loader)
        next(batches)
        started = time.perf_counter()
        tokens = sum(batch["input_ids"].numel() for batch in batches)
        return tokens / (time.perf_counter() - started)

    return statistics.median(speed(trees) / speed(packed) for _ in range(RUNS))


if __name__ == "__main__":
    main()
