"""How deep JSON text is nested, found without parsing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.resources.tables import json_text
from tokenloom.resources.tables.json_text import is_deeper

TEXT = st.text(st.sampled_from('"\\[]{}a\n'), max_size=6)
VALUES = st.recursive(
    TEXT | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@pytest.fixture(scope="module", params=["an index of the quotes", "an expression"])
def _way(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "an expression":
            patch.setattr(json_text, "_INDEXED", 0)
        yield


@pytest.mark.usefixtures("_way")
@given(value=VALUES, levels=st.integers(0, 4), indent=st.sampled_from([None, 1]))
def test_the_depth_is_that_of_the_parsed_value(value: Any, levels: int, indent: int | None) -> None:
    assert is_deeper(json.dumps(value, indent=indent).encode(), levels) == (depth(value) > levels)


@given(text=st.text(st.sampled_from('"\\[]{}a'), max_size=40), levels=st.integers(0, 3))
def test_text_that_is_no_json_gets_the_same_depth_in_both_ways(text: str, levels: int) -> None:
    found = is_deeper(text.encode(), levels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_INDEXED", 0)
        assert is_deeper(text.encode(), levels) == found
