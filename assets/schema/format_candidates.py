"""Candidates for the format of a dataset, by the names and values of its columns.

The score of a column for a role is the product of how well its name and its values fit. The confidence of a format is
based on the geometric mean of the scores of its roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenloom.assets.schema.evidence.profiles import profiles
from tokenloom.assets.schema.formats import (
    classification,
    completions,
    conversations,
    dialogues,
    kto,
    lists,
    multiple_choice,
    plain_text,
    preferences,
    prompts,
    segments,
    summaries,
    table,
    unnamed,
    unread,
)
from tokenloom.assets.schema.formats.candidate import FormatCandidate

FORMATS = (
    unread,
    segments,
    conversations,
    dialogues,
    prompts,
    preferences,
    kto,
    completions,
    multiple_choice,
    classification,
    summaries,
    plain_text,
    unnamed,
    lists,
    table,
)
"""The modules of all formats; of equal candidates, the one of the earlier module counts."""


def format_candidates(columns: Sequence[Mapping[str, object]]) -> list[FormatCandidate]:
    """Return all formats that a dataset could have, the most likely first; one per mapping of roles.

    Args:
        columns: profiles as `tokenloom.assets.schema.merge` returns them.
    """
    paths = profiles(columns)
    best: dict[tuple[str, tuple[tuple[str, str], ...]], FormatCandidate] = {}
    for candidate in (candidate for module in FORMATS for candidate in module.detect(paths)):
        key = candidate.form, tuple(sorted(candidate.roles.items()))
        if key not in best or candidate.confidence > best[key].confidence:
            best[key] = candidate
    return sorted(best.values(), key=lambda candidate: -candidate.confidence)
