"""Texts with one of few labels."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.profiles import fits_label, fits_text
from tokenloom.assets.schema.formats.candidate import FormatCandidate, Profiles, candidate, columns_of, ranked

CLASSIFIED = ("text", "sentence", "utterance", "review", "tweet", "headline", "comment", "query", "content", "title")


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for text in ranked(columns, CLASSIFIED, fits_text)[:2]:
        for label in ranked(columns, "label", fits_label, 0.25)[:2]:
            if text.source != label.source:
                names = f"{label.profile.facts.get('distinct', 'several')} labels"
                roles = {"prompt": text, "completion": label}
                yield candidate(paths, "classification", "completion", roles, 1.0, [names])
