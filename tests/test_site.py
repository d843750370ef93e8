"""The website that `make site` writes: its navigation has all pages, no link is broken, nothing is from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from support.html_page import Browser, browser, missing_browser
from support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
SHAPED = ("li", "ol", "ul", "table", "tr", "th", "td", "pre", "code", "em", "strong", "h1", "h2", "h3", "h4", "img")


def build(checkout: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def written(site: Path, page: Path) -> Path:
    name = page.relative_to(DOCS).with_suffix(".html")
    return site / (name.with_name("index.html") if name.name == "README.html" else name)


class Shape(HTMLParser):
    """The texts of a page, without spaces, between its lists, tables, blocks and emphases."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.links: list[tuple[str, str]] = []
        self._skipped = False
        self.feed(html)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self._skipped = attributes.get("class") == "headerlink"
        self.parts += [f"<{tag}>"] * (tag in SHAPED)
        self.links += [(tag, value) for name, value in attrs if name in ("src", "href", "srcset", "action") and value]

    def handle_endtag(self, tag: str) -> None:
        self._skipped = self._skipped and tag != "a"

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.parts += data.split()


@EVERY_PAGE
def test_a_page_has_a_title_and_a_sentence_of_purpose(page: Path) -> None:
    title, blank, purpose = page.read_text().splitlines()[:3]
    assert re.match(r"# \S", title)
    assert not blank
    assert re.match(r"[A-Z`]|tokenloom ", purpose), f"the page starts with {purpose}"


@EVERY_PAGE
def test_a_page_reads_as_it_does_in_a_checkout(site: Path, page: Path) -> None:
    """The site's Markdown and CommonMark's find the same lists, tables and texts in it."""
    html = written(site, page).read_text()
    article = html[html.index("<article") : html.index("</article>")]
    markdown = MarkdownIt("commonmark").enable("table").render(page.read_text())
    assert Shape(article[article.index(">") + 1 :]).text == Shape(markdown).text


def test_the_front_page_leads_to_every_page(site: Path) -> None:
    html = (site / "index.html").read_text()
    sidebar = html[html.index('aria-label="Navigation"') : html.index("<article")]
    listed = {target for tag, target in Shape(sidebar).links if tag == "a"}
    assert {written(site, page).relative_to(site).as_posix() for page in PAGES} <= listed


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = [target for tag, target in Shape(page.read_text()).links if tag != "a"]
        assert [target for target in loaded if re.match(r"(\w+:)?//", target)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the site is built from, in a folder that a test can change."""
    copied = tmp_path / "checkout"
    shutil.copytree(DOCS, copied / "docs")
    for page in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", *ROOT.glob("*/README.md"), *ROOT.glob("examples/*.py")):
        (copied / page.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(page, copied / page.relative_to(ROOT))
    shutil.copytree(ROOT / "tests" / "loaders" / "collation", copied / "tests" / "loaders" / "collation")
    return copied


FAULTS = {
    "[a page](no_page.md)": "no_page.md",
    "[an anchor](prepare/prepare.md#no-part-there)": "no-part-there",
    "[an anchor of this page](#no-part-here)": "no-part-here",
    "[a file of code](../examples/no_script.py)": "no_script.py",
    "[a file above the checkout](../../no_file.md)": "no_file.md",
    "[a folder](prepare/)": "'prepare/'",
    "![a picture](images/no_picture.png)": "no_picture.png",
}


def test_broken_links_and_pages_in_no_section_are_errors(checkout: Path) -> None:
    assert build(checkout, checkout / "site").returncode == 0
    with (checkout / "docs" / "README.md").open("a") as index:
        index.write("".join(f"\n{link}\n" for link in FAULTS))
    (checkout / "docs" / "prepare" / "unlisted.md").write_text("# Unlisted\n\nIn no section.\n")
    done = build(checkout, checkout / "site")
    assert done.returncode == 1
    assert f"Aborted with {len(FAULTS) + 1} warnings" in done.stdout
    assert [name for name in (*FAULTS.values(), "prepare/unlisted.md") if name not in done.stdout + done.stderr] == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def tab(site: Path) -> Iterator[tuple[Browser, str]]:
    if why := missing_browser():
        pytest.skip(why)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server, browser() as opened:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield opened, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


WIDE = ("index", "configuration/prompts", "api/load", "coming_from/trl", "prepare/prompts", "internals/contracts")


@pytest.mark.parametrize("page", WIDE)
def test_a_phone_shows_a_page_without_scrolling_sideways(tab: tuple[Browser, str], page: str) -> None:
    """Wide tables and code scroll inside their boxes; all that is loaded comes from the site."""
    opened, address = tab
    opened.open(f"{address}/{page}.html", 390, 844)
    assert opened.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    wide = "[...document.querySelectorAll('article table, article pre code')].filter((box) => box.scrollWidth > 375)"
    scrolls = "['auto', 'scroll'].includes(getComputedStyle(at).overflowX)"
    reached = f"(box) => {{ for (let at = box; at; at = at.parentElement) if ({scrolls}) return true; return false }}"
    assert opened.run(f"return {wide}.every({reached})")
    loaded = opened.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert [name for name in loaded if not name.startswith(address)] == []
    assert opened.messages() == []


def test_the_search_finds_a_setting(tab: tuple[Browser, str]) -> None:
    opened, address = tab
    opened.open(f"{address}/index.html?q=give_up", 1400)
    found = "return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    links: list[str] = []
    for _ in range(200):
        if links := opened.run(found):
            break
        time.sleep(0.1)
    assert any("lengths.html" in link for link in links), links
