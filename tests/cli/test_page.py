"""The page of `preview --html`: what it shows, that it loads nothing, and that data cannot become part of it."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.browsers import browser, missing_browser
from support.canonical_tables import CHATML
from support.datasets_on_disk import write_dataset
from support.html_page import Element, parsed
from support.soak import machine
from support.terminal import run_here
from tokenloom.assets.shown_rows.token_runs import ShownRow, TokenRun
from tokenloom.cli.page import LISTED, Page, rendered_page
from tokenloom.resources.store import ArtifactStore

HOSTILE = (
    "</div></article></script><script>window.evil = 1</script><img src=x onerror=window.evil=1> "
    "\"'><b>{{ 7 * 7 }}{% raw %}&lt;\u202e\x1b[31m"
)
ESCAPED = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\u001b")
EMPTY = 25
"""Rows without an answer, which is more than are listed per code."""

DOWN, TAB = "\ue015", "\ue004"
"""Keys, as WebDriver names them."""

SHOWN = (0, 1, 2, 3, 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset with hostile, long and rejected rows, and the page of some of them."""
    folder = tmp_path_factory.mktemp("page")
    tokenizer = {"train": {"vocab_size": 600}, "special_tokens": {"eos": "<|end|>"}, "max_length": 200}
    write_dataset(
        folder,
        200,
        dataset={"name": "small.jsonl", "val_split": 0.2, "column_mapping": {}},
        tokenizer=tokenizer,
        validation={"max_reject_fraction": 1.0, "max_unstopped_fraction": 1.0},
    )
    lines = (folder / "small.jsonl").read_text().splitlines()
    rows: list[Any] = [json.loads(line) for line in lines]
    rows[0] = {"instruction": HOSTILE, "input": HOSTILE, "output": "fine"}
    rows[1] = {"instruction": "a long answer", "input": "", "output": "word after word " * 3000}
    rows[2] = {"instruction": "\u0627\u0643\u062a\u0628", "input": "", "output": "A" * 3000}
    for number in (3, *range(20, 19 + EMPTY)):
        rows[number] = {"instruction": "q", "input": "", "output": ""}
    text = [json.dumps(row) for row in rows]
    text[60] = '{"instruction": "<script>'
    (folder / "small.jsonl").write_text("\n".join(text) + "\n")
    assert run_here("build", "small.yaml", folder=folder).returncode == 0
    done = run_here("preview", "small.yaml", "--row", *SHOWN, "--html", "page.html", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Element:
    return parsed((folder / "page.html").read_text())


def table(page: Element, caption: str) -> dict[str, list[int]]:
    (found,) = (table for table in page.all("table") if table.all("caption")[0].text == caption)
    (body,) = found.all("tbody")
    return {
        row.all("th")[0].text: [int(cell.text.replace(",", "")) for cell in row.all("td")] for row in body.all("tr")
    }


def test_the_page_loads_nothing_and_runs_only_its_own_script(page: Element) -> None:
    elements = page.all()
    assert not {"src", "href", "action", "style", "srcset"} & {name for found in elements for name in found.attributes}
    assert not [name for found in elements for name in found.attributes if name.startswith("on")]
    assert not {found.tag for found in elements} & {"link", "img", "iframe", "object", "embed", "base", "a"}
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    (style,), (script,) = page.all("style"), page.all("script")
    assert not re.search(r"url\(|@import|//", style.text)
    rules = dict(rule.split(" ", 1) for rule in policy.attributes["content"].split("; "))
    hashes = [
        f"'sha256-{b64encode(hashlib.sha256(found.text.encode()).digest()).decode()}'" for found in (style, script)
    ]
    assert rules == {
        "default-src": "'none'", "style-src": hashes[0], "script-src": hashes[1],
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    place = page.all("head")[0].all()
    assert place.index(policy) < place.index(style)


def test_data_is_text(page: Element) -> None:
    first = page.all("article")[0]
    assert first.all("div", role="region")[0].text.count(ESCAPED) == 2
    assert not {found.tag for found in first.all()} - {"h3", "p", "span", "div", "mark"}
    (broken,) = (found for found in page.all("article") if found.attributes["data-code"] == "invalid_json")
    assert "<script>" in broken.text


def test_counts_are_those_of_the_manifests(folder: Path, page: Element) -> None:
    store = ArtifactStore(folder / "store")
    stages = ("raw", "schema", "columns", "prompts", "tokens", "sequences")
    manifests = {stage: store.manifest("small", stage) for stage in stages}
    last = manifests["sequences"]
    facts = dict(zip((name.text for name in page.all("dt")), (value.text for value in page.all("dd")), strict=True))
    rejected = sum(manifest.total("rejected") for manifest in manifests.values())
    assert facts == {
        "stage": "sequences",
        "version": last.digest[:12],
        "split": "train, validation",
        "rows": str(last.total("rows_out")),
        "sequences": str(last.total("table_rows")),
        "tokens": f"{last.total('tokens'):,}",
        "trained tokens": f"{last.counters['tokens_trained']:,}",
        "rejected rows": str(rejected),
        "filtered rows": "0",
        "max_length": "200",
        "strategy": "smart",
        "packing": "none",
    }
    assert table(page, "Rows of each stage") == {
        stage: [manifest.total(count) for count in ("rows_in", "rows_out", "rejected", "filtered")]
        for stage, manifest in manifests.items()
    }
    assert table(page, "Trained tokens by role") == {"answer": [last.counters["trained_tokens.answer"]]}
    assert table(page, "Rejected and dropped rows by code") == {"empty_answer": [EMPTY], "invalid_json": [1]}
    assert rejected == EMPTY + 1
    lengths = table(page, "Lengths in tokens")
    histogram = [count for name, count in last.counters.items() if name.startswith("sequences_of_length/")]
    assert Counter(after for _, after in lengths.values() if after) == Counter(histogram)
    titles = [re.search(r"[\d,]+$", found.text) for found in page.all("svg")[1].all("title")]
    assert Counter(int(found.group()) for found in titles if found) == Counter(histogram)
    assert all(f"max_length {200}" in chart.text for chart in page.all("svg"))


def test_rejected_rows_are_listed_with_code_and_place_and_can_be_filtered(page: Element) -> None:
    codes = {found.attributes["value"] for found in page.all("select", name="code")[0].all("option")}
    listed = page.all("section", **{"class": "cards"})[1].all("article")
    assert codes == {"", "empty_answer", "invalid_json"}
    found = Counter(article.attributes["data-code"] for article in listed)
    assert found == {"empty_answer": LISTED, "invalid_json": 1}
    assert all("small.jsonl:" in article.all("h3")[0].text for article in listed)
    states = [article.attributes["data-state"] for article in page.all("article")[: len(SHOWN)]]
    assert states == ["shown", "shown cut", "shown", "rejected", "shown"]
    assert page.all("form")[0].attributes.get("hidden") == ""
    assert not [article for article in page.all("article") if "hidden" in article.attributes], "all without the script"


def test_the_page_has_a_language_a_title_headings_and_labels(page: Element) -> None:
    assert page.all("html")[0].attributes["lang"] == "en"
    assert page.all("title")[0].text == "small: tokenloom preview"
    assert len(page.all("h1")) == 1
    assert all(len(table.all("caption")) == 1 for table in page.all("table"))
    assert len(page.all("select")) == len([found for label in page.all("label") for found in label.all("select")])
    assert all(found.attributes["aria-label"] for found in page.all("svg") + page.all("div", role="region"))


def test_a_page_without_a_build_has_the_rows_alone() -> None:
    runs = (TokenRun("a\nb", False, False, 2), TokenRun("<", True, False, 1), TokenRun("<e>", True, True, 1))
    root = parsed(rendered_page(Page("<x>", [ShownRow(0, "train", "a.jsonl:1", {"": runs}, label=True)])))
    assert root.all("title")[0].text == "<x>: tokenloom preview"
    assert not root.all("table") + root.all("svg") + root.all("dl") + root.all("select", name="code")
    (article,) = root.all("article")
    assert [mark.text for mark in article.all("mark")] == ["<", "<e>"]
    assert article.all("div", role="region")[0].text == "a\nb<<e>"
    assert "label true" in article.text


CHAT = [
    ("system", "Answer at length. " * 3),
    *[("user", "Why is it so? " * 4), ("assistant", "Because of it. " * 6)] * 4,
]


@pytest.mark.parametrize("strategy", ["truncate_right", "truncate_left", "truncate_middle", "smart", "drop_turns"])
def test_the_preview_shows_what_was_cut_where_it_was(tmp_path: Path, strategy: str) -> None:
    turns = [{"role": role, "content": f"{number} {text}"} for number, (role, text) in enumerate(CHAT)]
    special = {"eos": "<|end|>", "additional": ["<|im_start|>", "<|im_end|>"]}
    write_dataset(
        tmp_path,
        tokenizer={
            "train": {"vocab_size": 320}, "special_tokens": special, "max_length": 180, "chat_template": CHATML,
        },
        prompt_template={"format_type": "chat", "add_eos": False},
        length={"strategy": strategy},
        validation={"max_unstopped_fraction": 1.0},
    )  # fmt: skip
    (tmp_path / "small.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 3)
    text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
    assert run_here("build", "small.yaml", folder=tmp_path).returncode == 0
    shown = run_here("preview", "small.yaml", "--row", 0, "--html", "page.html", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    (article,) = parsed((tmp_path / "page.html").read_text()).all("article")
    (region,) = article.all("div", role="region")
    cuts = [int(cut.text.split()[2].replace(",", "")) for cut in region.all("summary")]
    for summary in region.all("summary"):
        summary.content.clear()
    assert region.text == text
    counters = ArtifactStore(tmp_path / "store").manifest("small", "sequences").counters
    assert 3 * sum(cuts) == counters["tokens_cut"] > 0
    assert f"cut: {sum(cuts):,} tokens dropped" in article.all("span", **{"class": "tag cut"})[0].text
    printed = run_here("preview", "small.yaml", "--row", 0, folder=tmp_path).stdout
    lines = " ".join(line.strip("\u2502 ") for line in printed.splitlines())
    assert [int(count) for count in re.findall(r"cut: (\d+) tokens? dropped here\]", lines)] == cuts
    assert f"{sum(cuts)} cut" in lines


def test_rows_of_a_packed_sequence_are_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, 40, length={"packing": "best_fit"})
    wanted = ["preview", "small.yaml", "--row", 0, "--html", "page.html"]
    assert run_here(*wanted, folder=tmp_path).returncode == 0
    unbuilt = parsed((tmp_path / "page.html").read_text())
    assert "straight from the source" in unbuilt.all("header")[0].text and not unbuilt.all("table")
    assert run_here("build", "small.yaml", folder=tmp_path).returncode == 0
    assert run_here(*wanted, folder=tmp_path).returncode == 0
    (article,) = parsed((tmp_path / "page.html").read_text()).all("article")
    places = [found.text for found in article.all("div", **{"class": "opens"})]
    assert "small.jsonl:1" in places and len(places) == len(set(places)) > 1
    numbers = [int(number) for number in re.findall(r"Instruction:\n(\d+):", article.text)]
    assert places == [f"small.jsonl:{number + 1}" for number in numbers]


@machine("browser")
def test_in_a_browser_the_filter_works_by_keyboard_and_nothing_is_wider_than_the_window(folder: Path) -> None:
    if why := missing_browser():
        pytest.skip(f"needs a browser: {why}")
    visible = "return [...document.querySelectorAll('article')].filter(card => card.offsetParent !== null).length"
    listed = len(SHOWN) + LISTED + 1
    with browser() as tab:
        for width in (390, 1280):
            tab.open(folder / "page.html", width)
            assert tab.run("return innerWidth") == width
            assert tab.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert tab.run("return window.evil === undefined && performance.getEntriesByType('resource').length === 0")
            assert tab.run(visible) == listed
            tab.run("document.querySelector('select[name=state]').focus()")
            tab.press(2 * DOWN)
            assert tab.run(visible) == 1, "rows that were cut"
            tab.press(DOWN)
            assert tab.run(visible) == LISTED + 2, "rejected rows"
            tab.press(TAB + 2 * DOWN)
            assert tab.run(visible) == 1
            assert tab.run("return document.querySelector('output').textContent") == f"1 of {listed} rows listed"
        assert tab.messages() == []
