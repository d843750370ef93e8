"""Rows that are lists of two values."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.unused_columns import unused_columns
from tokenloom.assets.schema.formats.candidate import FormatCandidate, Match, Profiles, candidate
from tokenloom.resources.tables.nested_paths import quoted


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield the candidate for rows that are lists of two values, such as `["text", "label"]`."""
    columns = unused_columns(paths, ())
    for profile in columns if len(columns) == 1 else ():
        pair = (profile.facts.get("lengths") or {}).get("longest") == 2 == profile.typical_length
        is_flat = profile.kind == "list" and (profile.items is None or profile.items.kind != "struct")
        if pair and is_flat:
            name = quoted(profile.name)
            roles = {
                role: Match(f"{name}[{index}]", 1.0, f"item {index} of each list", profile)
                for index, role in enumerate(("prompt", "completion"))
            }
            doubts = {"prompt": "the items of the lists have no names"}
            yield candidate(paths, "lists of two", "completion", roles, doubts=doubts)
