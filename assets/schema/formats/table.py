"""Tables without a known format."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.formats.candidate import FormatCandidate, Profiles, columns_of


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield the candidate for a table without a known format, which has no roles."""
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    if columns:
        evidence = f"{len(columns)} columns; map those to train on"
        yield FormatCandidate("table", "", {}, 0.5 if len(columns) > 2 else 0.3, (evidence,))
