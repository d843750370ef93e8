"""Row conditions, compared with the evaluation of each row in Python with None as unknown."""

from __future__ import annotations

import json
import operator
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tokenloom.assets.raw.filters import Filter
from tokenloom.errors import ConfigError
from tokenloom.resources.tables.json_values import typed

Row = dict[str, Any]

ROW = st.fixed_dictionaries(
    {
        "text": st.one_of(st.none(), st.text("abÄß \n\u00a0", max_size=5)),
        "n": st.one_of(st.none(), st.integers(-9, 9)),
        "x": st.one_of(st.none(), st.floats(-9, 9, width=16)),
        "flag": st.one_of(st.none(), st.booleans()),
        "tags": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from("abc")), max_size=3)),
        "Best Answer": st.one_of(st.none(), st.text("ab", max_size=3)),
        "meta.lang": st.sampled_from(["de", "en", None]),
        "answers": st.one_of(
            st.none(), st.lists(st.fixed_dictionaries({"text": st.text("ab", max_size=2)}), max_size=2)
        ),
    }
)
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("Best Answer", pa.string()),
        ("meta.lang", pa.string()),
        ("answers", pa.list_(pa.struct([("text", pa.string())]))),
    ]
)
ROWS = st.lists(ROW, max_size=8)

# An oracle's expression is a tree: ("op", part, …); leaves are ("const", value) or ("get", text, function of the row).
GETS: dict[str, tuple[str, Any]] = {
    "text": ("text", lambda r: r["text"]),
    "odd": ("`Best Answer`", lambda r: r["Best Answer"]),
    "dotted": ("`meta.lang`", lambda r: r["meta.lang"]),
    "first": ("answers[0].text", lambda r: r["answers"][0]["text"] if r["answers"] else None),
    "last": ("answers.text[-1]", lambda r: r["answers"][-1]["text"] if r["answers"] else None),
}
TEXTS = st.one_of(
    st.sampled_from(list(GETS.values())),
    st.sampled_from(
        [
            ("text.strip()", lambda r: None if r["text"] is None else r["text"].strip()),
            ("text.lower()", lambda r: None if r["text"] is None else r["text"].lower()),
            ("`Best Answer`.upper()", lambda r: None if r["Best Answer"] is None else r["Best Answer"].upper()),
            ("'ab'", lambda r: "ab"),
        ]
    ),
)
NUMBERS = st.recursive(
    st.one_of(
        st.just(("n", lambda r: r["n"])),
        st.just(("x", lambda r: r["x"])),
        st.just(("len(tags)", lambda r: None if r["tags"] is None else len(r["tags"]))),
        st.integers(-3, 3).map(lambda k: (str(k), lambda r: k)),
        TEXTS.map(lambda t: (f"len({t[0]})", lambda r: unless_none(t[1](r), len))),
    ),
    lambda inner: st.builds(
        lambda sign, a, b: (f"({a[0]} {sign} {b[0]})", lambda r: arithmetic(sign, a[1](r), b[1](r))),
        st.sampled_from(["+", "-", "*", "/", "//", "%"]),
        inner,
        inner,
    ),
    max_leaves=4,
)


def arithmetic(sign: str, left: Any, right: Any) -> Any:
    names = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod"}
    if left is None or right is None or (sign in ("/", "//", "%") and right == 0):
        return None
    return getattr(operator, names[sign])(left, right)


def compared(ops: list[str], values: list[Any]) -> bool | None:
    signs = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    pairs = [
        None if a is None or b is None else bool(getattr(operator, signs[op])(a, b))
        for op, a, b in zip(ops, values, values[1:], strict=False)
    ]
    return conjunction(pairs)


def conjunction(parts: list[bool | None]) -> bool | None:
    return False if False in parts else None if None in parts else True


def negation(part: bool | None) -> bool | None:
    return None if part is None else not part


def unless_none(value: Any, test: Any) -> Any:
    return None if value is None else test(value)


OPS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def comparisons(sides: Any) -> Any:
    return st.lists(st.tuples(OPS, sides), min_size=1, max_size=2).flatmap(
        lambda rest: sides.map(
            lambda first: (
                first[0] + "".join(f" {op} {side[0]}" for op, side in rest),
                lambda r: compared([op for op, _ in rest], [first[1](r), *(side[1](r) for _, side in rest)]),
            )
        )
    )


CONDITIONS = st.recursive(
    st.one_of(
        comparisons(TEXTS),
        comparisons(NUMBERS),
        st.just(("flag", lambda r: r["flag"])),
        st.sampled_from(["text", "n", "tags", "flag"]).map(lambda c: (f"{c} is None", lambda r: r[c] is None)),
        st.sampled_from(["text", "n", "tags"]).map(lambda c: (f"{c} is not None", lambda r: r[c] is not None)),
        TEXTS.map(lambda t: (f"{t[0]} in ['ab', '']", lambda r: unless_none(t[1](r), lambda v: v in ("ab", "")))),
        st.just(("n not in (1, 2, -3)", lambda r: unless_none(r["n"], lambda v: v not in (1, 2, -3)))),
        TEXTS.map(lambda t: (f"'a' in {t[0]}", lambda r: unless_none(t[1](r), lambda v: "a" in v))),
        st.just(("'a' not in tags", lambda r: unless_none(r["tags"], lambda v: "a" not in v))),
        TEXTS.map(lambda t: (f"{t[0]}.startswith('a')", lambda r: unless_none(t[1](r), lambda v: v.startswith("a")))),
        TEXTS.map(lambda t: (f"{t[0]}.endswith('b')", lambda r: unless_none(t[1](r), lambda v: v.endswith("b")))),
        TEXTS.map(lambda t: (f"{t[0]}.contains('ab')", lambda r: unless_none(t[1](r), lambda v: "ab" in v))),
        TEXTS.map(
            lambda t: (
                f"matches({t[0]}, '^a+b?$')",
                lambda r: unless_none(t[1](r), lambda v: bool(re.search(r"^a+b?\Z", v))),
            )
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: (
                "(" + " and ".join(part[0] for part in parts) + ")",
                lambda r: conjunction([part[1](r) for part in parts]),
            )
        ),
        st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: (
                "(" + " or ".join(part[0] for part in parts) + ")",
                lambda r: negation(conjunction([negation(part[1](r)) for part in parts])),
            )
        ),
        inner.map(lambda part: (f"not ({part[0]})", lambda r: negation(part[1](r)))),
    ),
    max_leaves=5,
)


@given(rows=ROWS, condition=CONDITIONS)
def test_rows_are_kept_if_the_condition_is_true(rows: list[Row], condition: tuple[str, Any]) -> None:
    text, holds = condition
    table = pa.Table.from_pylist(rows, SCHEMA)
    kept = Filter.parse(text).keep(table)
    assert kept.tolist() == [holds(row) is True for row in rows]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("len(output) > 0", ("output",)),
        ("answers[0].text != '' and meta.lang == 'de'", ("answers", "meta")),
        ("`Best Answer` is not None or `a.b`.c[-1] == 1 or a == a", ("Best Answer", "a.b", "a")),
        ("'`not a name`' in text", ("text",)),
        ("1 < 2", ()),
    ],
)
def test_a_condition_names_the_columns_that_it_reads(text: str, columns: tuple[str, ...]) -> None:
    assert Filter.parse(text).columns == columns


def test_a_missing_column_is_unknown() -> None:
    table = pa.table({"a": [1, 2]})
    for text in ("gone > 1", "not gone", "len(gone) == 0", "gone.x.lower() == ''", "'a' in gone", "gone in [1]"):
        assert Filter.parse(text).keep(table).tolist() == [False, False]
    assert Filter.parse("gone is None and a > 1").keep(table).tolist() == [False, True]


def test_dates_are_compared_with_text() -> None:
    table = pa.table({"day": pa.array(["2020-01-01", None, "2021-05-05"]).cast(pa.date32())})
    assert Filter.parse("day >= '2021-01-01'").keep(table).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a condition"),
        ("a >", "not a condition"),
        ("a = 1", "not a condition"),
        ("a == None", "is None"),
        ("a is 1", "use =="),
        ("len(a, b)", "unknown call"),
        ("open('x')", "unknown call"),
        ("__import__('os').system('x')", "unknown call"),
        ("a.__class__()", "unknown call"),
        ("a.contains(b)", "text in quotes"),
        ("matches(a, '(')", "regular expression"),
        ("matches(a, '(?=x)')", "regular expression"),
        ("a[b] == 1", "must be an integer"),
        ("a['x'] == 1", "must be an integer"),
        ("a[0:1] == 1", "must be an integer"),
        ("[x for x in a]", "not supported in a condition"),
        ("lambda: 1", "not supported in a condition"),
        ("a if b else c", "not supported in a condition"),
        ("f'{a}' == ''", "not supported in a condition"),
        ("a ** 9 == 1", "not supported in a condition"),
        ("a in b", "list of constants"),
        ("a in [b]", "constants only"),
        ("a in [1, 'x']", "mixes"),
        ("a == b'x'", "is not text, True, False"),
        ("a == 99999999999999999999", "is not text, True, False"),
        ("not " * 60 + "a", "nested too deeply"),
        ("(" * 300 + "a" + ")" * 300, "not a condition"),
        ("a" * 5000, "longer than"),
    ],
)
def test_an_invalid_condition_is_an_error_with_its_text(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as raised:
        Filter.parse(text)
    assert text[:60] in raised.value.faults[0].message


@pytest.mark.parametrize(
    "text",
    ["n", "text", "not text", "n and flag", "text > 1", "len(n) > 0", "n + text > 1", "n.lower() == 'a'", "tags == 'a'",
     "1 in text", "flag + 1 > 1", "n in ['a']", "x", "answers[0] == 'a'", "n * 9223372036854775807 > 0"],
)  # fmt: skip
def test_an_unsuitable_type_is_one_clear_error(text: str) -> None:
    row = {"text": "a", "n": 2, "x": 1.5, "flag": True, "tags": ["a"], "answers": [{"text": "a"}]}
    condition = Filter.parse(text)
    with pytest.raises(ConfigError) as raised:
        condition.keep(pa.Table.from_pylist([row], SCHEMA))
    (fault,) = raised.value.faults
    assert text in fault.message
    assert "\n" not in fault.message


@given(st.text("abn()[]._`'\"<>=! +-*/%,0123456789", max_size=20))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = Filter.parse(text)
        kept = condition.keep(pa.table({"a": ["x", None], "n": [1, None]}))
    except ConfigError:
        return
    assume(condition.columns or kept.all() == kept.any())
    assert kept.shape == (2,)


@pytest.mark.parametrize(
    "text",
    [f"foo({'-' * 900}n)", f"foo({'n+' * 1500}n)", f"x[{'n+' * 1500}n]", f"foo(n{'.a' * 1500})", "q == '\\ud800'"],
)
def test_deep_nesting_and_lone_surrogates_are_errors_of_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Filter.parse(text)
    assert len(str(raised.value).splitlines()) == 1


@given(st.lists(st.one_of(st.none(), st.text("0123456789.-eE+ x", max_size=6)), max_size=20))
def test_number_reads_what_python_reads_as_a_plain_number(texts: list[str | None]) -> None:
    def number(text: str) -> float | None:
        return float(text) if re.fullmatch(r"\s*-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", text) else None

    table = pa.table({"s": pa.array(texts, pa.string())})
    found = [value is not None and (held := number(value)) is not None and held > 3 for value in texts]
    assert Filter.parse("number(s) > 3").keep(table).tolist() == found


def test_paths_that_do_not_exist_are_reported() -> None:
    table = pa.table({"s": [{"t": [{"u": 1}]}], "n": pa.nulls(1), "x": ["a"]})
    condition = Filter.parse(
        "s.t[0].u == 1 and s.t.u is None or s.v == 1 or y == 2 or x.z == 1 or n.a.b == 1 or s[0] == 1"
    )
    assert sorted(map(str, condition.lacking(table))) == ["s.v", "s[0]", "x.z", "y"]


LOOSE = st.fixed_dictionaries(
    {
        "m": st.one_of(
            st.none(), st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"])}), max_size=3)
        ),
        "t": st.one_of(st.none(), st.text("ab", max_size=3), st.lists(st.integers(), max_size=3)),
        "n": st.one_of(st.none(), st.sampled_from([0, 1, 1.0, 1.5, 2**53 + 1, 2**53, 2**63, -(2**70), 1e300])),
        "l": st.one_of(st.none(), st.lists(st.sampled_from([None, 1, 1.0, 2, 2.5, 2**70]), max_size=3)),
        "w": st.one_of(st.none(), st.lists(st.sampled_from([None, "x", "y"]), max_size=2)),
        "s": st.one_of(st.none(), st.sampled_from(["4", " 5 ", "a", 2, 3.5, 2**70])),
        "x": st.one_of(st.none(), st.booleans(), st.integers(), st.just({}), st.just([]), st.just("")),
        "o": st.one_of(
            st.none(), st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.just("c"), st.integers(0, 3)))
        ),
    }
)
VERDICTS: dict[str, Any] = {
    "len(m) > 1": lambda row: row["m"] is not None and len(row["m"]) > 1,
    "m[0].role == 'user'": lambda row: bool(row["m"]) and row["m"][0]["role"] == "user",
    "'tool' in m.role": lambda row: any(item["role"] == "tool" for item in row["m"] or ()),
    "len(t) == 2": lambda row: row["t"] is not None and len(row["t"]) == 2,
    "n > 1": lambda row: row["n"] is not None and row["n"] > 1,
    "n == 9007199254740993": lambda row: row["n"] == 9007199254740993,
    "n in [1, 1.5]": lambda row: row["n"] in (1, 1.5),
    "-n < 0 and n / 2 <= 1": lambda row: row["n"] is not None and -row["n"] < 0 and row["n"] / 2 <= 1,
    "1 in l": lambda row: 1 in (row["l"] or ()),
    "'x' in w": lambda row: "x" in (row["w"] or ()),
    "number(s) > 3": lambda row: row["s"] not in (None, "a") and float(row["s"]) > 3,
    "x is None": lambda row: row["x"] is None,
    "o.a.c >= 2": lambda row: (((row["o"] or {}).get("a") or {}).get("c") or 0) >= 2,
    "o.a is not None or n is None": lambda row: (row["o"] or {}).get("a") is not None or row["n"] is None,
}


@pytest.mark.parametrize("text", VERDICTS)
@given(rows=st.lists(LOOSE, min_size=1, max_size=6))
def test_the_verdict_on_a_json_row_is_that_of_python_whatever_its_neighbours(
    text: str, rows: list[dict[str, Any]]
) -> None:
    def table(part: list[dict[str, Any]]) -> pa.Table:
        texts = {name: [None if row[name] is None else json.dumps(row[name]) for row in part] for name in part[0]}
        return pa.table({name: typed(pa.array(column, pa.string())) for name, column in texts.items()})

    condition, expected = Filter.parse(text), [VERDICTS[text](row) for row in rows]
    assert condition.keep(table(rows)).tolist() == expected
    assert [condition.keep(table([row]))[0] for row in rows] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("x > 1", "cannot compare text"), ("len(x)", "true or false"), ("x", "text")]
)
def test_an_operator_must_fit_every_kind_of_a_json_column(text: str, expected: str) -> None:
    for texts in (['"a"'], ["2", '"a"'], ['"a"', "[]", "true"]):
        with pytest.raises(ConfigError, match=expected):
            Filter.parse(text).keep(pa.table({"x": typed(pa.array(texts))}))
