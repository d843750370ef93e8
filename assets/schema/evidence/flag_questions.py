"""What to ask about columns and fields of messages that could say what is trained, given their profiles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tokenloom.assets.schema.evidence.name_similarity import names_metadata, words
from tokenloom.assets.schema.evidence.profiles import Profile, Steps, message_fields
from tokenloom.assets.schema.evidence.training_flags import FLAG_WORDS, KNOWN, ROW_WEIGHTS, kind_of

RANGE_FIELDS = {"begin_offset", "end_offset"}

Profiles = Mapping[Steps, Profile]


def weight_columns(paths: Profiles, used: Collection[Steps]) -> list[str]:
    """Return the columns of numbers or flags that have the name of a weight of rows, and that nothing uses."""
    columns = (profile for profile in paths.values() if profile.is_column and profile.steps not in used)
    return [profile.name for profile in columns if _weighs_rows(profile)]


def _weighs_rows(profile: Profile) -> bool:
    if profile.kind == "boolean":
        return kind_of(profile.name) == "trained"
    return profile.numbers >= 0.9 and "_".join(words(profile.name)) in ROW_WEIGHTS


def weight_question(name: str) -> str:
    """Return the sentence that asks about such a column."""
    return (
        f"the column {name} could be the weight of each row's loss, and is not used; to multiply the loss weights of "
        f"the row's trained tokens by it, set dataset.column_mapping: {{weight: {name}, …}}"
    )


def segment_questions(segments: Profile | None) -> list[str]:
    """Return sentences about flags of labelled segments that are not read."""
    items = segments.items if segments is not None else None
    flags = [field for name in items.fields if kind_of(name) and (field := items.field(name))] if items else []
    named = _listed({field.name: _count(field) for field in flags if _count(field)})
    return [f"the label of a segment decides whether it is trained; not used are {named}"] if named else []


def range_fields(paths: Profiles, used: Collection[Steps]) -> dict[str, int]:
    """Return the fields of messages that hold ranges to train, each with its number of messages."""
    found = {}
    for field in _fields(paths, used):
        if field.items is not None and {*field.items.fields} >= RANGE_FIELDS:
            found[field.name] = _count(field)
    return found


def message_questions(paths: Profiles, used: Collection[Steps], ranges: str | None = None) -> list[str]:
    """Return sentences about the fields of messages that could change what is trained.

    Args:
        used: the columns and paths that are read as messages.
        ranges: the setting `prompt_template.train_ranges`.
    """
    asked = [
        f"{count:,} messages have ranges of text to train in the field {name}; to train only these, set "
        f"prompt_template.train_ranges: {name}"
        for name, count in range_fields(paths, used).items()
        if name != ranges
    ]
    unclear, unknown = {}, {}
    for field in _fields(paths, used):
        count = _count(field)
        if count and kind_of(field.name) == "unclear":
            unclear[field.name] = count
        elif count and _is_unknown(field) and field.name not in range_fields(paths, used):
            unknown[field.name] = count
    if unclear:
        asked.append(
            f"fields of messages that train in some tools and mask in others, so that their rows are rejected: "
            f"{_listed(unclear)}; rename them to train or masked"
        )
    if unknown:
        asked.append(
            f"fields of messages that are used only if the chat template reads them: {_listed(unknown)}; rename a flag "
            "to train or weight. Answers that lose their text with such a field are rejected"
        )
    return asked


def _fields(paths: Profiles, used: Collection[Steps]) -> Iterator[Profile]:
    """Yield the fields of messages, without those of the speaker and the text."""
    for steps in used:
        profile = paths.get(steps)
        said = message_fields(profile) if profile is not None else ()
        if profile is not None and profile.items is not None and all(said):
            inner = (profile.items.field(name) for name in profile.items.fields if name not in said)
            yield from (field for field in inner if field is not None)


def _count(field: Profile) -> int:
    return field.facts["rows"] - field.facts["nulls"]


def _is_unknown(field: Profile) -> bool:
    if field.name in KNOWN or kind_of(field.name):
        return False
    if field.kind in ("boolean", "number"):
        return bool({*words(field.name)} & FLAG_WORDS)
    holds = _count(field) > field.facts["empty"]
    return holds and field.name not in _READ and not names_metadata(field.name)


_READ = {"reasoning_content", "reasoning", "thinking"}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())
