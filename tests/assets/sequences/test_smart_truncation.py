"""smart: parts are truncated in the declared order, the answer last, its stop and the template's text never."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.canonical_tables import config_of, said
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.assets.prompts.spans import SPAN_ROLES, SPANS
from tokenloom.assets.prompts.truncation_order import SPOKEN, TruncationOrder, check_length_settings, truncation_order
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.errors import ConfigError

SMART = LengthConfig(strategy="smart")


@dataclass
class Part:
    """A span of a row with its tokens; `rank` is -1 for parts that are not shortened before the row's end is."""

    role: str
    message: int
    control: bool
    trained: bool
    tokens: list[int]
    rank: int = -1


def shortened(parts: list[Part], longest: int, keep: str) -> list[int]:
    """Remove tokens one by one, from each part down to its floor, then from the end of the row."""
    floor = floor_of(parts, longest)
    while sum(len(part.tokens) for part in parts) > longest:
        able = [part for part in parts if part.rank >= 0 and len(part.tokens) > floor]
        if not able:
            break
        part = min(able, key=lambda found: found.rank)  # the first of several
        followed = parts.index(part) + 1 < len(parts) and not parts[parts.index(part) + 1].control
        part.tokens.pop(0 if keep == "end" else -2 if followed else -1)
    return [token for part in parts for token in part.tokens][:longest]


def floor_of(parts: list[Part], longest: int) -> int:
    answers = (place for place, part in enumerate(parts) if part.trained and not part.control and part.message >= 0)
    before = sum(part.rank >= 0 for part in parts[: next(answers, len(parts))])
    return max(1, longest // max(8, 2 * before))


def table_of(rows: list[list[Part]]) -> pa.Table:
    spans = []
    for row in rows:
        at, found = 0, []
        for part in row:
            span = {
                "start": at,
                "end": at + len(part.tokens),
                "role": SPAN_ROLES.index(part.role),
                "message": part.message,
            }
            found.append({**span, "weight": float(part.trained), "control": part.control})
            at += len(part.tokens)
        spans.append(found)
    ids = [[token for part in row for token in part.tokens] for row in rows]
    return pa.table(
        {
            ROW: pa.array(range(len(rows)), pa.int32()),
            "input_ids": pa.array(ids, pa.list_(pa.uint16())),
            "spans": pa.array(spans, SPANS),
        }
    )


def filled(sizes: list[tuple[str, int, bool, bool, int]], number: int) -> list[Part]:
    """Return parts of these roles, messages and sizes, without empty ones; ids differ within a row."""
    parts = []
    for role, message, control, trained, size in sizes:
        if size:
            parts.append(Part(role, message, control, trained, list(range(number, number + size))))
            number += size
    return parts


def with_ranks(parts: list[Part], rank_of: dict[Any, int]) -> list[Part]:
    """Return parts with their ranks: by column, or by role with `earlier` for user messages before the last one."""
    users = [part.message for part in parts if part.role == "user" and not part.control]
    for part in parts:
        if part.control or part.message < 0 or part.trained:
            continue
        if part.role == "input":
            part.rank = rank_of.get(part.message, -1)
        elif part.role == "user":
            part.rank = rank_of.get("question" if part.message == users[-1] else "earlier", -1)
        else:
            part.rank = rank_of.get(part.role, -1)
    return parts


sizes = st.integers(0, 6)
COLUMNS = st.lists(st.tuples(sizes, sizes, sizes, sizes, sizes, st.booleans()), min_size=1, max_size=5)


ENDS = st.sampled_from(["start", "end"])


@given(COLUMNS, st.permutations([0, 1, 2]), st.integers(0, 3), st.integers(1, 24), ENDS)
def test_columns_are_shortened_in_order(rows: list[Any], names: list[int], named: int, longest: int, keep: str) -> None:
    rank_of = {column: rank for rank, column in enumerate(names[:named])}
    drawn = [
        filled(
            [
                ("template", -1, True, False, 1),
                ("input", 2, False, False, first),
                ("template", -1, False, False, text),
                ("input", 0, False, False, second),
                ("input", 1, False, False, third),
                ("template", -1, False, False, 1),
                ("answer", 3, False, True, answer + 1),
                ("answer", -1, True, True, int(stop)),
            ],
            100 * number,
        )
        for number, (first, text, second, third, answer, stop) in enumerate(rows)
    ]
    order = TruncationOrder((*(rank_of.get(column, -1) for column in range(3)), -1), True, False, keep)
    check(drawn, rank_of, order, longest)


TALKS = st.lists(
    st.tuples(sizes, st.lists(st.tuples(sizes, sizes, sizes, st.booleans()), min_size=1, max_size=3), st.booleans()),
    min_size=1,
    max_size=4,
)


@given(TALKS, st.permutations(SPOKEN), st.integers(0, 5), st.integers(4, 40), ENDS)
def test_conversations_are_shortened_in_order(
    rows: list[Any], names: list[str], named: int, longest: int, keep: str
) -> None:
    rank_of = {part: rank for rank, part in enumerate(names[:named])}
    drawn = []
    for number, (system, turns, text_stops) in enumerate(rows):
        parts: list[tuple[str, int, bool, bool, int]] = [
            ("template", -1, True, False, 1),
            ("system", 0, False, False, system),
        ]
        for index, (user, tool, answer, trained) in enumerate(turns):
            message = 3 * index + 1
            parts += [("template", -1, False, False, 1), ("user", message, False, False, user)]
            parts += [("template", -1, True, False, 1), ("tool", message + 1, False, False, tool)]
            parts += [("template", -1, False, False, 1), ("assistant", message + 2, False, trained, answer + 1)]
            if trained:
                parts.append(("assistant", message + 2, not text_stops, True, 1))
        drawn.append(filled(parts, 200 * number))
    order = TruncationOrder(tuple(rank_of.get(part, -1) for part in SPOKEN), False, False, keep)
    check(drawn, rank_of, order, longest)


def check(drawn: list[list[Part]], rank_of: dict[Any, int], order: TruncationOrder, longest: int) -> None:
    table = table_of(drawn)
    out = to_sequences(table, SMART, longest, order)
    expected = {}
    for number, row in enumerate(drawn):
        parts = with_ranks([part for part in row if not is_stop(row, part)], rank_of) and row
        trained = {token for part in parts if part.trained for token in part.tokens}
        sizes = {id(part): len(part.tokens) for part in parts}
        whole = sum(sizes.values())
        left = shortened(parts, longest, order.keep)
        if trained & set(left):
            expected[number] = left
        floor = floor_of(parts, longest)
        assert all(len(part.tokens) >= min(sizes[id(part)], floor) for part in parts)
        assert len(left) == min(whole, longest) or any(part.rank >= 0 for part in parts)
    found = {row["rows"][0]: row["input_ids"] for row in out.table.to_pylist()}
    assert found == expected
    assert set(out.rejects["code"].to_pylist()) <= {"answer_cut_off", "nothing_trained"}
    assert sorted([*found, *out.rejects[ROW].to_pylist()]) == list(range(len(drawn)))
    counts = out.counters
    assert counts["tokens_in"] == out.tokens + counts["tokens_cut"] + counts["tokens_rejected"]


def is_stop(row: list[Part], part: Part) -> bool:
    place = row.index(part)
    before = row[place - 1] if place else None
    return before is not None and part.message >= 0 and (before.role, before.message) == (part.role, part.message)


TEMPLATE = "Context: {passage}\nQuestion: {question}\n{hint}\nAnswer: {reply}"


def encoded(folder: Path, rows: list[dict[str, Any]], **sections: Any) -> tuple[PromptEngine, list[str]]:
    config = config_of(folder, **sections)
    engine = PromptEngine(config)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = engine.encode(pa.Table.from_pylist(rows))["input_ids"].to_pylist()
    return engine, [tokenizer.decode(row, skip_special_tokens=False) for row in ids]


QUIZ = {
    "passage": "the quick brown fox jumps over the lazy dog. " * 6,
    "question": "what is the answer to everything?",
    "hint": "Think of 6 times 7, then say so in a few words.",
    "reply": "forty-two",
}
PROMPT = {"format_type": "custom", "template": TEMPLATE, "label_column": "reply", "add_bos": False}


def test_a_rendered_row_keeps_its_template_question_and_answer(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    whole = TEMPLATE.format(**QUIZ) + "</s>"
    total = len(tokenizer.encode(whole, add_special_tokens=False).ids)
    for longest in range(total - 40, total + 1, 7):
        sections: dict[str, Any] = {"tokenizer": {"max_length": longest}, "length": {"strategy": "smart"}}
        _, (text,) = encoded(tokenizer_folder, [QUIZ], prompt=PROMPT, template=None, **sections)
        passage, rest = text.removeprefix("Context: ").split("\nQuestion: ")
        assert rest == whole.split("\nQuestion: ")[1]
        assert QUIZ["passage"].startswith(passage[:-1])
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) <= longest
        assert (text == whole) == (longest == total)


def test_give_up_names_columns(tokenizer_folder: Path) -> None:
    length = {"strategy": "smart", "give_up": ["hint", "question"]}
    sections: dict[str, Any] = {"tokenizer": {"max_length": 100}, "length": length}
    row = {**QUIZ, "passage": "short"}
    row["hint"] = row["hint"] * 9
    _, (text,) = encoded(tokenizer_folder, [row], prompt=PROMPT, template=None, **sections)
    assert text.startswith("Context: short\nQuestion: what is the answer to everything?\nThink of 6 times 7")
    assert text.endswith("\nAnswer: forty-two</s>")


def test_a_row_with_no_room_for_the_answer_is_rejected(tokenizer_folder: Path) -> None:
    length = {"strategy": "smart", "give_up": ["passage"]}
    sections: dict[str, Any] = {"tokenizer": {"max_length": 24}, "length": length}
    engine, texts = encoded(tokenizer_folder, [QUIZ], prompt=PROMPT, template=None, **sections)
    assert texts == []
    assert engine.rejects["code"].to_pylist() == ["answer_cut_off"]


@pytest.mark.parametrize("longest", [30, 45, 60, 75])
def test_pairs_keep_the_same_prompt(tokenizer_folder: Path, longest: int) -> None:
    said_twice = {"prompt": "what is the answer to everything? " * 4, "chosen": "red " * 3, "rejected": "blue " * 14}
    row = {
        "prompt": [said("user", said_twice["prompt"])],
        "chosen": [said("assistant", said_twice["chosen"].strip())],
        "rejected": [said("assistant", said_twice["rejected"].strip())],
    }
    sections: dict[str, Any] = {"tokenizer": {"max_length": longest}, "length": {"strategy": "smart"}}
    config = config_of(tokenizer_folder, {"format_type": "preference"}, **sections)
    (made,) = PromptEngine(config).encode(pa.Table.from_pylist([row])).to_pylist()
    prompts = []
    for side in ("chosen", "rejected"):
        ids, trained = made[f"{side}_input_ids"], made[f"{side}_trained"]
        assert len(ids) <= longest
        prompts.append(ids[: trained.index(1)])
        stopped = trained[-2:] == [1, 0]  # the stop, and the line break after it
        assert stopped or (len(ids) == longest and all(trained[trained.index(1) :]))
    assert prompts[0] == prompts[1]


def fault(**changes: Any) -> str:
    length, mapping = changes["length"], changes["mapping"]
    prompt = changes.get("prompt", {"format_type": "custom", "template": TEMPLATE, "label_column": "reply"})
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "prompt_template": prompt, "length": length})
    with pytest.raises(ConfigError) as caught:
        check_length_settings(config, mapping)
    return str(caught.value)


FIELDS = {"form": "fields", "roles": {"passage": "passage", "question": "question", "hint": "h", "reply": "reply"}}
CHAT = {"form": "messages", "roles": {"messages": "messages"}}


@pytest.mark.parametrize(
    ("names", "mapping", "prompt", "words"),
    [
        (["pasage"], FIELDS, None, "did you mean passage?"),
        (["reply"], FIELDS, None, "reply is the answer"),
        (["answer"], FIELDS, None, "answer is the answer"),
        (["xyzzy"], FIELDS, None, "the parts are context, question, system, hint, passage"),
        (["systen"], CHAT, {"format_type": "chat"}, "did you mean system?"),
        (["passage"], CHAT, {"format_type": "chat"}, "no part of the rows is named passage"),
    ],
)
def test_a_wrong_name_is_refused(names: list[str], mapping: dict[str, Any], prompt: Any, words: str) -> None:
    length = {"strategy": "smart", "give_up": names}
    changes = {"prompt": prompt} if prompt else {}
    assert words in fault(length=length, mapping=mapping, **changes)


def test_the_default_order_fits_any_columns() -> None:
    columns = {"instruction": "a", "input": "b", "system_prompt": "c", "output": "d"}
    prompt = {"format_type": "custom", "template": "{system_prompt}{instruction}{input}{output}"}
    config = PipelineConfig.from_mapping(
        {
            "dataset": {"name": "x"},
            "prompt_template": {**prompt, "label_column": "output"},
            "length": {"strategy": "smart"},
        }
    )
    order = truncation_order(config, {"form": "fields", "roles": columns})
    assert dict(zip(sorted(columns), order.ranks, strict=True)) == {
        "input": 0,
        "instruction": 1,
        "output": -1,
        "system_prompt": 2,
    }
