"""Two columns without names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenloom.assets.schema.evidence.profiles import ramp
from tokenloom.assets.schema.formats.candidate import FormatCandidate, Match, Profiles, candidate, columns_of

_GENERIC = re.compile(r"(?:column|col|field|f|c|_c|v)?_?\d+", re.IGNORECASE)


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield candidates for two columns without names: one with questions, the other with numbers that vary."""
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    if len(columns) != 2 or not all(_GENERIC.fullmatch(profile.name) for profile in columns):
        return
    for prompt, answer in (columns, columns[::-1]):
        questions, numbers = prompt.trait("question"), answer.numbers * ramp(answer.variety, 0.02, 0.2)
        if prompt.kind == "text" and (score := 0.8 * questions * numbers) >= 0.2:
            roles = {
                "prompt": Match(prompt.source, score, f"no name, {prompt.shape()}", prompt),
                "completion": Match(answer.source, score, f"no name, {answer.shape()}, varied", answer),
            }
            yield candidate(paths, "question/answer", "completion", roles)
