"""Shows what others wrote: texts of data without control over the terminal or over a page that renders Markdown, and
exceptions of other libraries with their causes, in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenloom.errors import visible


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, then the exceptions that it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_WORDS = re.compile(
    r"(?!\d+[.)](?: |$)|.*(?://|www\.))[^\W_](?:[^\W_]|[ ,;:%()/'\".+=…-]|(?<=[^\W_])_(?=[^\W_]))*", re.IGNORECASE
)
"""A line that Markdown shows as it is: no mark-up, no list, no address that is made a link."""


def as_markdown(text: str) -> str:
    """Return Markdown that shows a text line by line: what is not plain words becomes code, in which nothing is
    rendered, linked or loaded."""
    shown = list[str]()
    for line in visible(text).split("\n"):
        fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))  # more than the line has in a row
        shown.append(line if not line.strip() or _WORDS.fullmatch(line) else f"{fence} {line} {fence}")
    return "  \n".join(shown)
