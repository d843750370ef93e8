"""What speaks against a reading that names and shapes speak for.

Rows that a build would reject, and values beside it that say that its rows mean little without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tokenloom.assets.schema.names import likeness, role_likeness, words
from tokenloom.assets.schema.profiles import Profile, fits_few, message_fields, unknown_speakers
from tokenloom.assets.schema.speakers import SPEAKERS, role_of
from tokenloom.config import ValidationConfig

REJECTED = float(ValidationConfig.model_fields["max_reject_fraction"].default)
"""The share of rejected rows above which a build fails."""

FEW_ROWS = 4
"""So many rejected rows are no reason for a doubt, whatever their share."""

PASSAGES = ("context", "passage", "background", "paragraph", "document", "evidence")
PLACES = {"start", "end", "offset", "offsets", "position", "span"}

Found = Sequence[Profile]


def emptiness(profile: Profile) -> str | None:
    """Where a path is null or empty, or the first of an empty list, in more rows than a build puts up with."""
    above = [profile.within[profile.steps[: depth + 1]] for depth in range(len(profile.steps))]
    gone = 1 - prod(1 - one.share("nulls") - one.share("empty") for one in above)
    if _too_many(gone * profile.column.facts.get("rows", 0), profile.column):
        return f"{gone:.0%} of rows have nothing there and would be rejected"
    return None


def strangers(conversation: Profile) -> str | None:
    """Speakers whose role is not known."""
    unknown, names = unknown_speakers(conversation)
    if _too_many(unknown, conversation):
        return f"who speaks is not known{': ' * bool(names)}{', '.join(names[:4])}"
    return None


def unanswered(conversation: Profile) -> str | None:
    """Messages of which none is the assistant's."""
    speaker = conversation.items and conversation.items.field(message_fields(conversation)[0] or "")
    values = speaker.facts.get("values") if speaker else None
    answered = not values or any(role_of(value) == "assistant" for value in values)
    return None if answered else "no message is an assistant's"


def several(profile: Profile) -> str | None:
    """The first of a list that usually holds several, unless they are spans of a text, which say the same."""
    depths = [depth for depth, step in enumerate(profile.steps) if step is None]
    typical = max((profile.within[profile.steps[:depth]].typical_length for depth in depths), default=0)
    if typical < 2:
        return None
    steps = profile.steps[:-1] if profile.steps[-1] is None else profile.steps
    struct = profile.within.get(steps[:-1])
    beside = {word for name in (struct.fields if struct else ()) for word in words(name)}
    return None if beside & PLACES else f"most rows hold {typical} or more of them, of which it is the first"


def passages(columns: Found) -> str | None:
    """Passages that answers come from, in lists or structs that no role takes."""
    for profile in columns:
        if profile.kind in ("list", "struct") and likeness(profile.name, PASSAGES).score >= 0.7:
            return f"it leaves out {profile.name!r}, which answers may come from"
    return None


def thread(columns: Found) -> str | None:
    """A column that says whose message a text is, or which one it answers."""
    for profile in columns:
        spoken = profile.name.lower() in SPEAKERS and profile.facts.get("values")
        if spoken or "parent" in words(profile.name):
            return f"{profile.name!r} beside it says that each is one message of a conversation"
    return None


def labelled(columns: Found) -> str | None:
    """A column of few values that is called a label."""
    for profile in columns:
        if role_likeness(profile.name, "label").score >= 0.7 and fits_few(profile) >= 0.5:
            return f"{profile.name!r} beside it may be what to tell from it"
    return None


def miscounted(key: Profile, choices: Profile) -> str | None:
    """Indices of choices of which none is 0, or that lead outside of the longest list."""
    longest = (choices.facts.get("lengths") or {}).get("longest", 0)
    numbers = sorted(_numbers(key))
    if numbers and numbers[0] != 0:
        counted = f"counts from {numbers[0]:g}" if numbers[0] > 0 else f"holds {numbers[0]:g}"
        return f"{key.name!r} {counted}, indices from 0"
    if numbers and longest and numbers[-1] >= longest:
        return f"{key.name!r} goes up to {numbers[-1]:g}, the choices' index to {longest - 1}"
    return None


def unprompted(chosen: Profile) -> str | None:
    """Answers as plain texts, with no prompt in front of or beside them."""
    told = chosen.trait("transcript") + chosen.trait("json")
    return "there is no prompt for the answers" if chosen.kind == "text" and told < 0.5 else None


def _numbers(key: Profile) -> Iterator[float]:
    for value in key.facts.get("values") or ():
        try:
            yield float(value)
        except ValueError:
            continue


def _too_many(rejected: float, column: Profile) -> bool:
    return rejected > max(FEW_ROWS, REJECTED * column.facts.get("rows", 0))
