"""Which rows contain items of evaluations, against a plain loop over words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.decontaminate.overlap import COMMON, Evaluation, Index, matches
from tokenloom.config.sections import SHORTEST_ITEM

WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]
LINE = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
TEXT = st.lists(LINE, min_size=1, max_size=3).map("\n".join)
ROWS = st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=8)
Found = tuple[int, str, int, float, int]


def index_of(evaluations: dict[str, list[str]], size: int) -> Index:
    made = [
        Evaluation(name, pa.array(texts, pa.string()), np.arange(1, len(texts) + 1))
        for name, texts in evaluations.items()
    ]
    return Index.of(made, size)


def found(index: Index, rows: Sequence[Sequence[str]], threshold: float) -> list[Found]:
    """Row, evaluation, item, share and words of the passage of each match."""
    texts = pa.array([text for row in rows for text in row], pa.string())
    row_of_text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    result = matches(index, texts, row_of_text, threshold)
    names = [index.names[number] for number in index.evaluation_of(result.items)]
    numbers = index.numbers[result.items].tolist()
    words = [len(passage.split()) for passage in result.passages.to_pylist()]
    return list(zip(result.rows.tolist(), names, numbers, result.shares.round(9).tolist(), words, strict=True))


def ngrams_of(words: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]


def by_loop(evaluations: dict[str, list[str]], rows: list[list[str]], size: int, threshold: float) -> list[Found]:
    items = []
    for name, texts in evaluations.items():
        known: dict[tuple[str, ...], int] = {}
        for number, text in enumerate(texts, 1):
            known.setdefault(tuple(text.split()), number)
        for words, number in known.items():
            own = [set(ngrams_of([*other], size)) for other in known]
            counted = {gram for gram in ngrams_of([*words], size) if sum(gram in other for other in own) < COMMON}
            items.append((name, number, [*words], counted))
    best = []
    for row, texts in enumerate(rows):
        candidates = []
        for name, number, words, counted in items:
            if SHORTEST_ITEM <= len(words) < size:
                lines = [part.split() for text in texts for part in [text, *text.split("\n")]]
                share, longest = float(words in lines), len(words)
            else:
                grams = {gram for text in texts for gram in ngrams_of(text.split(), size)} & counted
                share = len(covered(words, grams, size)) / max(len(covered(words, counted, size)), 1)
                longest = max((run for text in texts for run in runs(text.split(), grams, size)), default=0)
            if share and share >= threshold:
                candidates.append((-share, len(candidates), (row, name, number, round(share, 9), longest)))
        best += [match for _, _, match in sorted(candidates)[:1]]
    return best


def covered(words: list[str], grams: set[tuple[str, ...]], size: int) -> set[int]:
    return {at + n for at, gram in enumerate(ngrams_of(words, size)) if gram in grams for n in range(size)}


def runs(words: list[str], grams: set[tuple[str, ...]], size: int) -> list[int]:
    """Lengths of the runs that n-grams cover, each n-gram at its first place in the row."""
    lengths, run, last = [0], 0, None
    for at in sorted({ngrams_of(words, size).index(gram) for gram in grams if gram in ngrams_of(words, size)}):
        run = run + at - last if last is not None and at - last <= size else size
        lengths, last = [*lengths, run], at
    return lengths


@given(
    st.dictionaries(st.sampled_from(["first", "second"]), st.lists(TEXT, max_size=6), min_size=1),
    ROWS,
    st.integers(3, 5),
    st.sampled_from([0.01, 0.5, 0.75, 1.0]),
)
def test_matches_are_those_of_a_loop(
    evaluations: dict[str, list[str]], rows: list[list[str]], size: int, threshold: float
) -> None:
    expected = by_loop(evaluations, rows, size, threshold)
    actual = found(index_of(evaluations, size), rows, threshold)
    assert [match[:4] for match in actual] == [match[:4] for match in expected]
    single = {row for row, texts in enumerate(rows) if len(texts) == 1}
    assert [match for match in actual if match[0] in single] == [match for match in expected if match[0] in single]


QUESTION = "a farmer has seven cows and buys four more how many cows does the farmer own now"
ASKED = " ".join(f"q{number}" for number in range(12))


def test_an_item_is_found_whole_half_re_cased_and_inside_longer_rows() -> None:
    index, half = index_of({"cows": [QUESTION]}, 8), " ".join(QUESTION.split()[:9])
    padding = " ".join(WORDS * 40)
    rows = [[QUESTION], [QUESTION.upper() + "?!"], [f"{padding} {QUESTION} {padding}"], [half], [QUESTION[:30]]]
    assert [(row, share) for row, _, _, share, _ in found(index, rows, 0.5)] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, round(9 / 17, 9)),
    ]
    assert not found(index, [[QUESTION.replace("seven", "nine").replace("more", "fewer")]], 0.9)


def test_every_sixth_word_changed_is_the_limit() -> None:
    words = QUESTION.split()
    changed = [word if at % 6 != 5 else "x" for at, word in enumerate(words)]
    assert not found(index_of({"cows": [QUESTION]}, 8), [[" ".join(changed)]], 0.01)


def test_instructions_that_items_share_do_not_count() -> None:
    items = [f"{ASKED} and here is question number {number} of the test about cows" for number in range(COMMON)]
    index = index_of({"told": items, "few": items[: COMMON - 1]}, 8)
    assert [match[1] for match in found(index, [[ASKED]], 0.4)] == ["few"]
    alone = index_of({"told": items}, 8)
    assert not found(alone, [[ASKED]], 0.01)
    assert [match[2:4] for match in found(alone, [[items[3]]], 1.0)] == [(4, 1.0)]


def test_equal_items_count_once() -> None:
    index = index_of({"same": [QUESTION] * 50}, 8)
    assert found(index, [[QUESTION]], 1.0) == [(0, "same", 1, 1.0, 17)]


def test_short_items_are_whole_lines_or_texts() -> None:
    index = index_of({"short": ["Who invented the light bulb?", "What now", "one two\nthree four"]}, 8)
    rows = [
        ["WHO invented the light bulb"],
        ["Tell me:\nwho invented the light bulb?\nThanks"],
        ["Who invented the light bulb and when?"],
        ["what now"],
        ["one two", "three four"],
        ["one two three four"],
    ]
    assert [match[0] for match in found(index, rows, 0.5)] == [0, 1, 5]


@pytest.mark.parametrize("text", ["x " * 300_000, "x y " * 100_000])
def test_repetition_costs_no_memory(text: str) -> None:
    index = index_of({"again": ["x " * 5_000, "x y " * 2_000]}, 8)
    assert [match[:2] for match in found(index, [[text]] * 3, 0.9)] == [(row, "again") for row in range(3)]


@pytest.mark.parametrize("items", [[], [""], ["one two"], ["?!", "..."]])
def test_evaluations_without_words_match_nothing(items: list[str]) -> None:
    assert not found(index_of({"none": items}, 8), [[""], ["one two"], ["?!"]], 0.01)
