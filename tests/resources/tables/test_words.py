"""Words of texts against a plain loop over code points, written from the rules of folding."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.assets.stage.definition import FIXED_TEXTS
from tokenloom.resources.tables.hashes import HashSet, Words

OPERATORS = set("+*/=<>%^&|~#$@\\")
ALONE = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0002a6df]")
PIECES = st.sampled_from([*"aB \n=!éßﬁ你かไิक٣€🌊", "\u0301"])


def words_of(text: str) -> list[str]:
    """The words of a text, one code point at a time."""
    words, word = [], ""
    for part in unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold()):
        kind = unicodedata.category(part)
        silent = kind in ("Cf", "Me") or (kind in ("Mn", "Mc") and unicodedata.combining(part) > 0)
        if silent or "\ufe00" <= part <= "\ufe0f":
            continue
        alone = bool(ALONE.fullmatch(part)) and kind[0] in "LM"
        operator = part in OPERATORS or (kind in ("Sm", "Sc") and ord(part) > 127)
        if kind == "Nd":
            word += str(unicodedata.decimal(part))
        elif kind[0] in "LNM" and not alone:
            word += part
        else:
            words += [word, part if alone or operator else ""]
            word = ""
    return [found for found in [*words, word] if found]


def shown(words: Words, text: int) -> list[str]:
    first, last = words.offsets[text : text + 2].tolist()
    places = np.arange(first, last)
    return words.joined(places, np.ones_like(places)).to_pylist()


def all_words(texts: list[str]) -> list[list[str]]:
    words = Words.of(pa.array(texts, pa.string()))
    return [shown(words, text) for text in range(len(texts))]


CORNERS = [
    "",
    " ",
    "x == y != z",
    "a+b",
    "don't_stop-me",
    "Ünï 12ͤ",
    "x\0y\u2028z",
    "\0é\0",
    "½ km² ①",
    "ΣΊΣΥΦΟΣ σίσυφος",
    "€5 ≤ 3 × 2",
    "ไทยสวย ကမ္ဘာ ភាសា",
    "हिन्दी में",
    "soft\u00adhyphen zero\u200dwidth",
]


def test_words_are_those_of_the_rules() -> None:
    texts = [*FIXED_TEXTS, *CORNERS]
    assert all_words(texts) == [words_of(text) for text in texts]
    assert all_words(["X==y, Don't!"]) == [["x", "=", "=", "y", "don", "t"]]


@given(st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=6))
def test_any_texts_have_the_words_of_the_rules(texts: list[str]) -> None:
    assert all_words(texts) == [words_of(text) for text in texts]


@given(st.lists(st.text(max_size=8), max_size=4))
def test_a_text_has_the_same_words_beside_any_others(texts: list[str]) -> None:
    assert all_words(texts) == [all_words([text])[0] for text in texts]
    assert all_words([text.upper() for text in texts]) == all_words([text.upper().casefold() for text in texts])


@given(st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=6), st.integers(1, 4))
def test_ngrams_and_lines_are_those_of_a_loop(texts: list[str], size: int) -> None:
    words = Words.of(pa.array(texts, pa.string()))
    hashes, first = words.ngrams(size)
    expected = [
        (int(words.offsets[text]) + place, tuple(own[place : place + size]))
        for text, own in enumerate(map(words_of, texts))
        for place in range(len(own) - size + 1)
    ]
    assert first.tolist() == [place for place, _ in expected]
    by_ngram: dict[tuple[str, ...], set[int]] = {}
    for (_, ngram), found in zip(expected, hashes.tolist(), strict=True):
        by_ngram.setdefault(ngram, set()).add(found)
    assert all(len(found) == 1 for found in by_ngram.values())
    assert len(set(hashes.tolist())) == len(by_ngram)
    lines = words.lines()
    spans = [words.joined(lines[:-1], np.diff(lines))[at].as_py() for at in range(len(lines) - 1)]
    assert spans == [" ".join(words_of(line)) for text in texts for line in text.split("\n") if words_of(line)]
    same: dict[str, set[int]] = {}
    for span, found in zip(spans, words.hashes(lines[:-1], lines[1:]).tolist(), strict=True):
        same.setdefault(span, set()).add(found)
    assert all(len(found) == 1 for found in same.values())
    assert len(set(words.hashes(lines[:-1], lines[1:]).tolist())) == len(same)


@pytest.mark.parametrize("count", [0, 1, 5, 5000])
def test_membership_is_exact(count: int) -> None:
    random = np.random.default_rng(count)
    known = np.unique(random.integers(0, 2**63, count).astype(np.uint64))
    near = np.concatenate([known, known + np.uint64(1), random.integers(0, 2**63, 1000).astype(np.uint64)])
    found, place = HashSet(known).find(near)
    assert np.array_equal(found, np.flatnonzero(np.isin(near, known)))
    assert np.array_equal(known[place], near[found])
