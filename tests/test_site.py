"""The website that `make site` writes: its navigation has all pages, no link is broken, nothing is from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from support.browsers import Browser, browser, missing_browser
from support.paths import ROOT
from support.processes import Ended, run
from support.soak import machine, smoke
from support.waiting import until

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SHAPED = ("li", "ol", "ul", "table", "tr", "th", "td", "pre", "code", "em", "strong", "h1", "h2", "h3", "h4", "img")


def build(checkout: Path, target: Path) -> Ended:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    return run(command, cwd=checkout, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


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


def faults_at_the_start(page: str) -> list[str]:
    """What a page's first lines lack of a title, a blank line, and a sentence of purpose."""
    title, blank, purpose = [*page.splitlines(), "", "", ""][:3]
    return [
        *([] if re.match(r"# \S", title) else [f"the title is {title!r}"]),
        *([f"{blank!r} comes after the title, not a blank line"] if blank else []),
        *([] if re.match(r"[A-Z`]|tokenloom ", purpose) else [f"the page starts with {purpose!r}"]),
    ]


def article_of(html: str) -> str:
    article = html[html.index("<article") : html.index("</article>")]
    return article[article.index(">") + 1 :]


def differences(article: str, page: str) -> list[str]:
    """Where an article first differs from what CommonMark makes of its page, in lists, tables and texts."""
    shown = Shape(article).text
    meant = Shape(MarkdownIt("commonmark").enable("table").render(page)).text
    if shown == meant:
        return []
    at = next(at for at, (one, other) in enumerate(zip_longest(shown, meant)) if one != other)
    return [f"the site shows {shown[at : at + 60]!r} instead of {meant[at : at + 60]!r}"]


def loaded_from_elsewhere(html: str) -> list[str]:
    """The addresses on other hosts that a page loads from, without links, which a reader may follow."""
    loaded = [target for tag, target in Shape(html).links if tag != "a"]
    return [target for target in loaded if re.match(r"(\w+:)?//", target)]


def imported_from_elsewhere(sheet: str) -> list[str]:
    return [found[0] for found in re.finditer(r"(url\(|@import)\s*[\"']?(https?:)?//[^\s\"')]*", sheet)]


def test_every_page_has_a_title_and_a_sentence_of_purpose() -> None:
    faults = [f"{page.relative_to(DOCS)}: {fault}" for page in PAGES for fault in faults_at_the_start(page.read_text())]
    assert not faults, "\n".join(faults)


def test_every_page_reads_as_it_does_in_a_checkout(site: Path) -> None:
    """The site's Markdown and CommonMark's find the same lists, tables and texts in it."""
    articles = {page: article_of(written(site, page).read_text()) for page in PAGES}
    faults = [
        f"{page.relative_to(DOCS)}: {fault}"
        for page, article in articles.items()
        for fault in differences(article, page.read_text())
    ]
    assert not faults, "\n".join(faults)


def test_every_fault_of_a_page_is_found() -> None:
    assert faults_at_the_start("# A title\n\nShows it.\n") == faults_at_the_start("# B\n\n`c` is it.\n") == []
    assert faults_at_the_start("A title\nwithout\nany purpose\n") == [
        "the title is 'A title'",
        "'without' comes after the title, not a blank line",
        "the page starts with 'any purpose'",
    ]
    assert faults_at_the_start("") == ["the title is ''", "the page starts with ''"]
    assert differences("<p>a <em>b</em></p>\n<ul><li>c</li></ul>", "a *b*\n\n- c\n") == []
    assert differences("<p>a - c</p>", "a\n\n- c\n") == ["the site shows '-c' instead of '<ul><li>c'"]
    page = '<a href="https://a/"><img src="//b/c.png"></a><script src="d.js"></script><link href="https://e/f.css">'
    assert loaded_from_elsewhere(page) == ["//b/c.png", "https://e/f.css"]
    sheet = "a{background:url(b.png)} @import 'https://c/d.css'; e{src: url(//f/g.woff)}"
    assert imported_from_elsewhere(sheet) == ["@import 'https://c/d.css", "url(//f/g.woff"]


def test_the_front_page_leads_to_every_page(site: Path) -> None:
    html = (site / "index.html").read_text()
    sidebar = html[html.index('aria-label="Navigation"') : html.index("<article")]
    listed = {target for tag, target in Shape(sidebar).links if tag == "a"}
    assert {written(site, page).relative_to(site).as_posix() for page in PAGES} <= listed


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = {page: loaded_from_elsewhere(page.read_text()) for page in site.rglob("*.html")}
    sheets = {sheet: imported_from_elsewhere(sheet.read_text()) for sheet in site.rglob("*.css")}
    assert pages and sheets
    loaded = [(path.relative_to(site), source) for path, sources in (pages | sheets).items() for source in sources]
    assert not loaded, "\n".join(f"{path} loads {source}" for path, source in loaded)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the site is built from, in a folder that a test can change."""
    copied = tmp_path / "checkout"
    shutil.copytree(DOCS, copied / "docs")
    rooms = (page for page in ROOT.glob("[!.]*/**/README.md") if "build" not in page.relative_to(ROOT).parts)
    for page in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", *rooms, *ROOT.glob("examples/*.py")):
        (copied / page.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
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


@machine("programs")
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


@machine("browser")
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


@smoke
@machine("browser")
def test_the_search_finds_a_setting(tab: tuple[Browser, str]) -> None:
    opened, address = tab
    opened.open(f"{address}/index.html?q=give_up", 1400)
    found = "return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    links: list[str] = until(lambda: opened.run(found))
    assert any("lengths.html" in link for link in links), links
