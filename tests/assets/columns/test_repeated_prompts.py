"""Answers that begin with their prompt: removed from pairs that repeat it on both sides, counted elsewhere."""

from __future__ import annotations

import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.canonical_tables import Row
from support.columns_stage import canonical, kept
from tokenloom.assets.columns.repeated_prompts import REMOVED, SHORTEST, count_repeated, without_prompt

TALK = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TEXTS = st.lists(st.sampled_from(["Why?", "ab", "é", " ", "\n", "\u00a0", ""]), max_size=4).map("".join)
OPENINGS = st.sampled_from([(), (("assistant", "Hi"),), (("user", "Why?"), ("assistant", "So."))])


def is_word(character: str) -> bool:
    return not character.isascii() or character.isalnum()


def begins(answer: str, prompt: str, shortest: int) -> bool:
    """Whether an answer begins with the whole words of a prompt, white space at the prompt's end left out."""
    prompt = prompt.rstrip(string.whitespace)
    if len(prompt.encode()) < shortest or not answer.startswith(prompt) or answer == prompt:
        return False
    return not (is_word(prompt[-1]) and is_word(answer[len(prompt)]))


def talk(*messages: tuple[str, str]) -> list[Row]:
    return [{"role": role, "content": content} for role, content in messages]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Row], list[Row], list[Row]]:
    """A prompt and two answers, of which each may begin with it."""
    prompt = draw(TEXTS)
    sides = [draw(st.sampled_from(["", prompt, prompt.strip()])) + draw(TEXTS) for _ in range(2)]
    speaker = draw(st.sampled_from(["user", "user", "system"]))
    more = draw(st.sampled_from([(), (("user", "And?"), ("assistant", prompt + " yes"))]))
    chosen, rejected = (talk(("assistant", side), *more) for side in sides)
    return talk(*draw(OPENINGS), (speaker, prompt)), chosen, rejected


WHY = talk(("user", "Why?\n"))


@given(st.lists(pairs(), max_size=6))
@example([(WHY, talk(("assistant", "Why?\n\u00a0So.")), talk(("assistant", "Why? No.")))])
@example([(WHY, talk(("assistant", "Why? So.")), talk(("assistant", "Why? \n")))])  # nothing would be left of one
@example([([], [], []), (talk(("user", "ab")), talk(("assistant", "abc")), talk(("assistant", "ab c")))])
def test_what_both_answers_repeat_is_removed(rows: list[tuple[list[Row], list[Row], list[Row]]]) -> None:
    prompt, chosen, rejected = (pa.array([row[side] for row in rows], TALK) for side in range(3))
    found, changed = without_prompt(prompt, [chosen, rejected])
    expected, which = [], []
    for asked, *sides in rows:
        last = asked[-1]["content"] if asked and asked[-1]["role"] == "user" else ""
        texts = [side[0]["content"] if side else "" for side in sides]
        rest = [text[len(last.rstrip(string.whitespace)) :].lstrip() for text in texts]
        which.append(all(begins(text, last, 1) for text in texts) and all(rest))
        expected.append(
            [[{**side[0], "content": cut}, *side[1:]] for side, cut in zip(sides, rest, strict=True)]
            if which[-1]
            else sides
        )
    assert changed.tolist() == which
    assert [list(both) for both in zip(*(side.to_pylist() for side in found), strict=True)] == expected
    assert all(side.type == TALK for side in found)


S, U, V, A = ("system", "Be brief."), ("user", "Why?"), ("user", "And?"), ("assistant", "So.")


@pytest.mark.parametrize("label", [{}, {"label": True}], ids=["completion", "kto"])
@pytest.mark.parametrize(
    ("prompt", "completion", "left"),
    [
        ([U], [U, A], [A]),
        ([S, U], [S, U, A], [A]),
        ([S, U], [U, A], [A]),
        ([S, U, A, V], [S, U, A, V, A], [A]),
        ([S, U, A, V], [V, A], [A]),
        ([U], [A], [A]),
        ([U, A, V], [A], [A]),
        ([U], [A, U, A], [A, U, A]),
        ([U], [V, A], [V, A]),
        ([U, A, V], [U, A], [U, A]),
    ],
)
def test_completions_lose_the_messages_of_their_prompt(
    prompt: list[tuple[str, str]], completion: list[tuple[str, str]], left: list[tuple[str, str]], label: Row
) -> None:
    """TRL's `unpair_preference_dataset` makes such rows of pairs that hold the whole conversation."""
    row = {"prompt": talk(*prompt), "completion": talk(*completion), **label}
    out = canonical([row] * 5)
    assert out.counters == ({REMOVED: 5} if left != completion else {})
    for found in kept(out):
        assert [(each["role"], each["content"]) for each in found["completion"]] == left


def test_a_prompt_that_is_text_is_a_message_that_completions_repeat() -> None:
    out = canonical([{"prompt": "Why?", "completion": talk(U, A), "label": True}] * 5)
    assert [[each["content"] for each in found["completion"]] for found in kept(out)] == [["So."]] * 5


PROMPTS = st.lists(st.sampled_from(["Say why", "ab", "é", " ", "\n", ""]), max_size=4).map("".join)


@pytest.mark.parametrize("spoken", [False, True])
@given(data=st.data())
def test_answers_that_begin_with_a_prompt_or_its_last_line_are_counted(spoken: bool, data: st.DataObject) -> None:
    prompts = data.draw(st.lists(PROMPTS, max_size=6))
    starts = [[prompt, prompt.rstrip(), prompt.rstrip(string.whitespace).rpartition("\n")[2], ""] for prompt in prompts]
    answers = [data.draw(st.sampled_from(each)) + data.draw(PROMPTS) for each in starts]
    kept = np.array([data.draw(st.booleans()) for _ in prompts], bool)
    columns = {"prompt": pa.array(prompts, pa.string()), "completion": pa.array(answers, pa.string())}
    if spoken:
        asked, said = (
            [talk((role, text)) for text in texts] for role, texts in (("user", prompts), ("assistant", answers))
        )
        columns = {"prompt": pa.array(asked, TALK), "completion": pa.array(said, TALK)}
    expected = 0
    for prompt, answer, keep in zip(prompts, answers, kept, strict=True):
        line = prompt.rstrip(string.whitespace).rpartition("\n")[2]
        expected += bool(keep) and (begins(answer, prompt, SHORTEST) or begins(answer, line, SHORTEST))
    assert count_repeated(columns, None, kept) == expected
    if not spoken:  # the same as fields: every text beside the answer is a prompt
        fields = {"q": columns["prompt"], "a": columns["completion"], "n": pa.array([1] * len(prompts))}
        assert count_repeated(fields, "a", kept) == expected
        assert count_repeated(fields, "n", kept) == 0
