"""What `make site` adds to the pages of docs/: the navigation, and the files outside docs/ that pages link to.

Each file is known by its path in the repository, so that the links that work in a checkout work in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


class SourceFile(File):
    """A file of code, shown as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages and pictures of docs/ under their path in the repository, with what they link to."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    own = [file for file in files if file.src_dir == config.docs_dir]
    for file in own:
        if Path(file.src_uri).suffix in (".md", ".png", ".svg", ".css"):
            found.append(_copy(f"docs/{file.src_uri}", file.dest_uri, config))
    config.nav = entries = navigation()
    listed = {path for entry in entries for pages in entry.values() for path in paths_of(pages)}
    waiting = [file.src_uri for file in found.documentation_pages()]
    while waiting:
        for path in linked(waiting.pop()):
            inside = not path.startswith("..") and (ROOT / path).is_file()
            if inside and found.get_file_from_path(path) is None:
                found.append(page := _outside(path, config))
                waiting += [path] * path.endswith(".md")
                if path not in listed:
                    page.inclusion = InclusionLevel.NOT_IN_NAV  # a page of a room: the page of its folder leads to it
    return found


def linked(page: str) -> list[str]:
    """Return the paths in the repository that a page links to."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in LINK.findall(text)]


def navigation() -> list[Any]:
    """Return the navigation: the front page, and its sections with the pages that their tables list."""
    nav: list[Any] = [{"Start": INDEX}]
    text = (ROOT / INDEX).read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        rows = re.findall(r"^\| \[([^]]+)\]\(([^)#]+)\) \|", body, re.MULTILINE)
        pages = [{title: posixpath.normpath(f"docs/{target}")} for title, target in rows]
        nav += [{heading: pages}] if pages else []
    return nav


def paths_of(pages: Any) -> Iterator[str]:
    """Yield the paths of a part of the navigation: a page, or a list of pages by their titles."""
    for page in [{"": pages}] if isinstance(pages, str) else pages:
        yield from page.values()


def on_page_content(html: str, **_: Any) -> str:
    """Return a page's HTML with `\\|` in tables as GitHub shows it; Python-Markdown keeps the backslash in code."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)


def _outside(path: str, config: MkDocsConfig) -> File:
    """Return a page for a file outside docs/: a Markdown page, or the text of another file."""
    place = f"repository/{path.removesuffix('.md')}.html"
    if path.endswith(".md"):
        return _copy(path, place, config)
    text = (ROOT / path).read_text(encoding="utf-8")
    content = f"# {path}\n\n~~~~{Path(path).suffix[1:]}\n{text}~~~~\n"
    page = SourceFile.generated(config, path, content=content)
    page.dest_uri = place
    return page


def _copy(path: str, place: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=place)
