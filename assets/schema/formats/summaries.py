"""Documents or dialogues with a summary."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.name_similarity import likeness
from tokenloom.assets.schema.evidence.profiles import fits_text, ramp
from tokenloom.assets.schema.formats.candidate import FormatCandidate, Profiles, candidate, columns_of, ranked

SUMMARIZED = ("dialogue", "dialog", "article", "document", "passage", "transcript", "conversation", "report", "text")
SUMMARIES = ("summary", "highlights", "tldr", "abstract")


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for document in ranked(columns, SUMMARIZED, fits_text)[:2]:
        for summary in ranked(columns, SUMMARIES, fits_text)[:2]:
            long, short = document.profile.typical_length, summary.profile.typical_length
            factor = 1 - 0.4 * ramp(short / long, 0.5, 1.5) if long and short else 1.0
            dialogue = document.profile.trait("turns") >= 0.5 or likeness(document.profile.name, SUMMARIZED[:2]).score
            name = "dialogue summary" if dialogue else "summary"
            if document.source != summary.source:
                yield candidate(paths, name, "completion", {"prompt": document, "completion": summary}, factor)
