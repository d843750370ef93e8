"""Texts of data are not live in pages that render Markdown: no image is loaded, no link made, no HTML passed on.

Dagster renders Markdown in metadata of that type, descriptions of assets, events, checks and their results, and of
columns of a table's schema. The oracle is markdown-it, with tables as on GitHub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from markdown_it import MarkdownIt
from markdown_it.token import Token

from support.dagster_project import SECTIONS, Project, new_project, runnable
from tokenloom.assets.dagster.checks import Verdict
from tokenloom.assets.dagster.definitions import faulty_asset
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.errors import ConfigError
from tokenloom.resources.visible import as_markdown, visible

GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
PLAIN = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak", "hardbreak", "code_inline", "fence"}
LINKED = re.compile(r"https?://|www\.|[\w.+-]+@[\w-]+", re.IGNORECASE)
"""What GitHub's Markdown makes a link in a text that is not code."""

HOSTILE = [
    "![x](http://evil.example/x.png)",
    "[x]: http://evil.example\n\n![x]",
    "<img src=//evil.example/x onerror=alert(1)>",
    "| a | b |\n|---|---|\n| c | d |",
    "a | b\n--- | ---",
    "``` \n![x](http://evil.example)",
    "`` ` ![x](u)",
    "~~~\n",
    "www.evil.example me@evil.example HTTP://evil.example",
    "# title\n===\n- list\n1. list\n2) list\n> quote\n***\n[ ] &lt;&#x21; ~~a~~ __a__ *a* \\",
    "\r![x](u)\r\n\x0b\x85\u2028\u2029\u202e\x1b[31m\x00",
    "<!--",
    "javascript:alert(1)",
]
TOKENS = st.sampled_from([*"`*_[]()<>|!#-+.&\\~=:/@ \t\n\r", "http://", "www.", "![", "](", "<a>", "```", "1.", "ab"])
TEXTS = st.one_of(st.text(max_size=30), st.lists(TOKENS, max_size=12).map("".join))


def tokens(markdown: str) -> Iterator[Token]:
    for token in GITHUB.parse(markdown):
        yield token
        yield from token.children or ()


def live(markdown: str, allowed: str = "") -> list[str]:
    """What is neither text nor code, or is a link on GitHub."""
    found = [*tokens(markdown)]
    wrong = [f"{token.type} {token.content}" for token in found if token.type not in PLAIN | {*allowed.split()}]
    return wrong + [token.content for token in found if token.type == "text" and LINKED.search(token.content)]


def test_the_oracle_sees_what_is_live() -> None:
    assert [text for text in HOSTILE if not live(text)] == [
        "``` \n![x](http://evil.example)",
        "~~~\n",
        "javascript:alert(1)",
    ]


@given(TEXTS)
@example("1. a")
@example("a__b a_b _")
def test_any_text_is_shown_and_nothing_else(text: str) -> None:
    """Line by line, character by character."""
    shown = as_markdown(text)
    assert not live(shown), shown
    lines = [line.strip() for line in visible(text).replace("\t", " ").split("\n")]
    read = "".join(
        "\n" if token.type in ("hardbreak", "paragraph_close") else token.content
        for token in tokens(shown)
        if token.type != "inline"
    )
    assert [line.strip() for line in read.replace("\t", " ").split("\n") if line.strip()] == [
        each for each in lines if each
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts(text: str) -> None:
    assert not live(as_markdown(text))
    result = Verdict(False, f"column {text} is missing").result(dg.AssetKey("a"), "b")
    assert not live(result.description or "")
    faulty = faulty_asset(
        Path("x.yaml"), ConfigError.at("x.yaml:1", f"unknown key {text!r}: {text}"), set(), Embedding()
    )
    (spec,) = faulty.resolve_all_asset_specs()
    assert not live(spec.description or "")


def rendered(value: Any) -> Iterator[str]:
    """The Markdown in an event or a specification."""
    if isinstance(value, dg.MarkdownMetadataValue):
        yield value.value
    elif isinstance(value, dg.TableSchemaMetadataValue):
        yield from (column.description or "" for column in value.schema.columns)
    elif isinstance(value, dict):
        for each in value.values():
            yield from rendered(each)
    elif hasattr(value, "description"):
        yield value.description or ""
        yield from rendered(value.metadata)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_pages_of_a_dataset(tmp_path: Path, fraction: float) -> None:
    """Hostile values, columns, files: every Markdown that a build shows, also of one that fails for its rejects."""
    project: Project = new_project(tmp_path)
    bait = "![x](http://evil.example/x.png) <img src=//evil.example> | www.evil.example"
    rows = [{"instruction": f"{text} {bait}", "input": "", "output": text or "a", bait: text} for text in HOSTILE]
    rows.append({"instruction": bait, "input": "", "output": "", bait: bait})
    (project.pipelines / "rows" / "![x](h) www.evil.jsonl").write_text("\n".join(map(json.dumps, rows)))
    project.write(
        dataset={"name": "rows", "keep_columns": [bait]},
        tokenizer={**SECTIONS["tokenizer"], "max_length": 512},
        validation={"max_reject_fraction": fraction},
    )
    result = project.run()
    assert result.success == bool(fraction)
    specs = runnable(project.config).resolve_all_asset_specs()
    found: list[str] = []
    for event in result.all_events:
        data: Any = event.event_specific_data
        for name in ("materialization", "asset_observation"):
            found += [*rendered(getattr(data, name))] if hasattr(data, name) else []
    for check in result.get_asset_check_evaluations():
        found += [*rendered(check)]
    found += [text for spec in specs for text in rendered(spec)]
    assert any("evil" in text for text in found)
    pictures = re.compile(r"!\[\w+\]\(data:image/png;base64,[\w+/=]+\)")
    assert not [wrong for text in found for wrong in live(pictures.sub("", text))]
