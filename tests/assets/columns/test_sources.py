"""Source expressions: how they parse, and the text of each row, compared with a per-row oracle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.columns_stage import MAYBE, Row, canonical, codes, kept, mapped
from tokenloom.assets.columns.source_expressions import Choice, Placeholder, Template, parse_source
from tokenloom.config import Constant
from tokenloom.resources.tables.nested_paths import Path

NAME = st.text("ab.[]`{}:=0 ", min_size=1, max_size=5)
PATH = st.builds(Path, NAME, st.lists(st.one_of(NAME, st.integers(-2, 2)), max_size=2).map(tuple))
PART = st.one_of(
    st.text("ab{}`[]:", min_size=1, max_size=4),
    st.builds(Placeholder, PATH, st.sampled_from(["lines", "letters", "next_line"])),
)


def joined(parts: list[Any]) -> Template:
    """Join adjacent literals."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return Template(tuple(found))


@given(st.one_of(PATH, st.builds(Choice, PATH, PATH, st.one_of(st.none(), PATH))))
def test_the_text_of_a_path_or_choice_parses_back_to_it(source: Path | Choice) -> None:
    assert parse_source(str(source)) == source


@given(st.lists(PART, max_size=4).map(lambda parts: joined(["> ", *parts, " <", Placeholder(Path("a")), "."])))
def test_the_text_of_a_template_parses_back_to_it(source: Template) -> None:
    assert parse_source(str(source)) == source


@given(st.text("ab.[]`{}:= ", max_size=8))
def test_the_name_of_a_column_always_means_that_column(name: str) -> None:
    assert parse_source(name, [name]) == Path(name)
    assert parse_source(str(Path(name)), ["other"]) == Path(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("question", Path("question")),
        ("Best Answer", Path("Best Answer")),
        ("answers[0].text", Path("answers", (0, "text"))),
        ("Q: {question}\n{{x}}", Template(("Q: ", Placeholder(Path("question")), "\n{x}"))),
        ("{c:letters}", Template((Placeholder(Path("c"), "letters"),))),
        ("choices[{answer}]", Choice(Path("choices"), Path("answer"))),
        (
            "choices.text[choices.label={answerKey}]",
            Choice(Path("choices", ("text",)), Path("answerKey"), Path("choices", ("label",))),
        ),
        ("data[0].options[{meta.key}]", Choice(Path("data", (0, "options")), Path("meta", ("key",)))),
        ("{`odd {name}`}!", Template((Placeholder(Path("odd {name}")), "!"))),
        (Constant(constant="Be kind."), Constant(constant="Be kind.")),
    ],
)
def test_expressions_are_distinguished(text: Any, expected: Any) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{a", "unmatched '{'"), ("a}", "unmatched '}'"), ("{}", "unmatched '{'"), ("{a:b}", "letters")],
)
def test_an_invalid_template_is_an_error(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_source(text)


QUIZ = st.fixed_dictionaries(
    {
        "q": MAYBE,
        "n": st.one_of(st.none(), st.integers(-3, 30)),
        "choices": st.one_of(st.none(), st.lists(MAYBE, max_size=30)),
        "letter": st.sampled_from(["A", "b", " C", "0", "1", "02", "-1", "AA", "", None, "é", "1.0"]),
        "index": st.one_of(st.none(), st.integers(-2, 4)),
        "labelled": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "text": st.lists(st.sampled_from("uvw"), min_size=3, max_size=3),
                    "label": st.lists(st.sampled_from(["A", "B", "1"]), max_size=3),
                }
            ),
        ),
    }
)
QUIZ_TYPES: dict[str, pa.DataType] = {
    "q": pa.string(),
    "n": pa.int64(),
    "choices": pa.list_(pa.string()),
    "letter": pa.string(),
    "index": pa.int8(),
    "labelled": pa.struct([("text", pa.list_(pa.string())), ("label", pa.list_(pa.string()))]),
}


def letter(index: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index] if index < 26 else "A" + letter(index - 26)


def text_of(value: Any) -> str:
    return "" if value is None else str(value)


def index_of(key: Any) -> int | None:
    key = text_of(key).strip().upper()
    if key.isascii() and key.isdigit():
        return int(key)
    return ord(key) - ord("A") if len(key) == 1 and "A" <= key <= "Z" else None


def chosen(items: list[Any] | None, index: int | None) -> str | None:
    """Return the text of an item, or None if the row must be rejected."""
    return text_of(items[index]) if items is not None and index is not None and index < len(items) else None


def labelled(row: Row) -> str | None:
    if row["labelled"] is None or row["letter"] not in row["labelled"]["label"]:
        return None
    return chosen(row["labelled"]["text"], row["labelled"]["label"].index(row["letter"]))


ORACLES: dict[str, Any] = {
    "q": lambda row: text_of(row["q"]),
    "n": lambda row: text_of(row["n"]),
    "choices[1]": lambda row: text_of((row["choices"] or [])[1]) if len(row["choices"] or []) > 1 else "",
    "<{q}> {{{n}}}\n{q}": lambda row: f"<{text_of(row['q'])}> {{{text_of(row['n'])}}}\n{text_of(row['q'])}",
    "{choices}.": lambda row: "\n".join(map(text_of, row["choices"] or [])) + ".",
    "{choices:letters}.": lambda row: (
        "\n".join(f"{letter(k)}. {text_of(item)}" for k, item in enumerate(row["choices"] or [])) + "."
    ),
    "{q}{n:next_line}": lambda row: "\n".join([text_of(row["q"]), *filter(None, [text_of(row["n"])])]),
    "{choices:next_line}.": lambda row: (
        f"\n{lines}." if (lines := "\n".join(map(text_of, row["choices"] or []))) else "."
    ),
    "choices[{letter}]": lambda row: chosen(row["choices"], index_of(row["letter"])),
    "choices[{index}]": lambda row: chosen(row["choices"], index_of(row["index"])),
    "labelled.text[labelled.label={letter}]": labelled,
}


@pytest.mark.parametrize("expression", ORACLES)
@given(rows=st.lists(QUIZ, max_size=6))
def test_the_text_of_each_row_matches_the_oracle(expression: str, rows: list[Row]) -> None:
    out = canonical(rows, QUIZ_TYPES, **mapped({"prompt": expression, "completion": {"constant": "c"}}))
    expected = [ORACLES[expression](row) for row in rows]
    assert [row["prompt"] for row in kept(out)] == [text for text in expected if text is not None]
    assert codes(out) == {2 * k + 1: "index_out_of_range" for k, text in enumerate(expected) if text is None}


@pytest.mark.parametrize(("value", "text"), [("x", "x"), (True, "True"), (3, "3"), (1.5, "1.5")])
def test_a_constant_is_the_value_of_every_row(value: Any, text: str) -> None:
    out = canonical([{"q": "a"}, {"q": None}], **mapped({"prompt": {"constant": value}, "completion": "q!{q}"}))
    assert [row["prompt"] for row in kept(out)] == [text, text]


def test_times_become_text_and_nested_values_in_one_chunk_are_rejected() -> None:
    from datetime import date

    out = canonical([{"day": date(2020, 1, 2)}], **mapped({"text": "{day}"}))
    assert kept(out) == [{"text": "2020-01-02"}]


@pytest.mark.parametrize("text", ["ls[{n}].text", "ls[{n}] x", "ls[{n}][0]"])
def test_nothing_can_follow_a_choice(text: str) -> None:
    with pytest.raises(ValueError, match=r"nothing can follow a choice.*ls\.text\[\{n\}\]"):
        parse_source(text, ["ls", "n"])
    assert isinstance(parse_source(text, ["n"]), Template)
