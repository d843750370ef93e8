"""Writes the page of `tokenloom preview`: one HTML file that loads nothing and runs only its own script."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tokenloom.assets.shown_rows.marked_text import cut_marker
from tokenloom.cli.output.targets import write_file
from tokenloom.cli.page.contents import LISTED, Page
from tokenloom.resources.visible import visible

LONGEST_CUT = 2000
"""Characters shown of the text that was cut in one place."""


def write_page(target: str, page: Page) -> None:
    """Write the page to the file that `--html` names.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_file("--html", target, rendered_page(page))


def rendered_page(page: Page) -> str:
    """Return the page as HTML. Every value is escaped; the policy allows this style and this script by their hashes."""
    template, style, script = (
        files("tokenloom.cli.page").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    return environment.from_string(template).render(
        page=page, style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script),
        cut_marker=cut_marker, listed=LISTED, longest_cut=LONGEST_CUT,
    )  # fmt: skip


def _shown(value: Any) -> Any:
    return visible(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
