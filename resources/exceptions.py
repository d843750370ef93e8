"""Exceptions of other libraries: their causes, and their text in one line."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, then the exceptions that it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
