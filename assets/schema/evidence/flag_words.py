"""Words and numbers that say whether an answer is wanted."""

from __future__ import annotations

from collections.abc import Collection

_SURE = {
    **dict.fromkeys(("true", "yes", "1", "+1", "1.0", "desirable", "good", "chosen", "accepted"), True),
    **dict.fromkeys(("false", "no", "0", "-1", "0.0", "-1.0", "undesirable", "bad", "rejected"), False),
}
_WORDS = {
    **_SURE,
    **dict.fromkeys(("preferred", "positive", "correct", "right", "like", "liked", "up", "upvote", "win"), True),
    **dict.fromkeys(("winner", "pos", "pass", "success", "thumbs_up", "t", "y"), True),
    **dict.fromkeys(("dispreferred", "negative", "incorrect", "wrong", "dislike", "disliked", "down"), False),
    **dict.fromkeys(("downvote", "lose", "loser", "neg", "fail", "failure", "thumbs_down", "f", "n"), False),
}
TRUE_WORDS = tuple(word for word, wanted in _WORDS.items() if wanted)
FALSE_WORDS = tuple(word for word, wanted in _WORDS.items() if not wanted)


def fits_flag_words(values: Collection[str]) -> float:
    """Return how well values, as text, fit a flag: 0.75, or 0.7 if they could also mean something else."""
    found = {value.strip().lower() for value in values}
    if not found or not found <= _WORDS.keys():
        return 0.0
    return 0.75 if found <= _SURE.keys() and not (found & {"0", "0.0"} and found & {"-1", "-1.0"}) else 0.7


def unsure_flags(values: Collection[str]) -> str | None:
    """Return how values that could mean something else than a flag are read, in words; None for others."""
    if fits_flag_words(values) != 0.7:
        return None
    wanted = [value for value in values if _WORDS[value.strip().lower()]]
    unwanted = [value for value in values if value not in wanted]
    return f"{' and '.join(wanted) or 'none'} would be read as wanted, {' and '.join(unwanted) or 'none'} as unwanted"
