"""Known formats that no form can hold."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.assets.schema.evidence.profiles import Profile
from tokenloom.assets.schema.formats.candidate import MAX_CONFIDENCE, FormatCandidate, Profiles, columns_of


def detect(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield known formats that no form can hold. They have no roles, and the reason is their doubt."""
    columns = {profile.name: profile for profile in columns_of(paths)}

    def kinds(name: str) -> tuple[str, str]:
        items = columns[name].items if name in columns else None
        return (columns[name].kind, items.kind if items else "") if name in columns else ("", "")

    name = found = ""
    if kinds("completions") == ("list", "text") and kinds("labels") in (("list", "boolean"), ("list", "number")):
        name = "stepwise supervision"
        found = (
            "each item of labels rates a step in completions, and no form has a label per step; to train on all steps, "
            "the wrong ones too, map completion to '{completions}' besides the prompt"
        )
    elif kinds("input_ids") == ("list", "number") and not any(column.kind == "text" for column in columns.values()):
        name, found = "token ids", "the rows are already tokenized (input_ids); tokenloom.loaders reads such datasets"
    elif columns and all(_is_column(profile) for profile in columns.values()):
        name = "columns"
        found = (
            f"the file is one object with a list for each column ({', '.join(list(columns)[:5])}); write an object for "
            "each row, with pandas: to_json(orient='records', lines=True)"
        )
    if found:
        yield FormatCandidate(name, "", {}, MAX_CONFIDENCE, (found,), {"rows": found})


def _is_column(profile: Profile) -> bool:
    """Return whether the only value is a list of several scalars."""
    scalars = profile.items is not None and profile.items.kind in ("text", "number", "boolean")
    return scalars and profile.facts.get("rows") == 1 and profile.typical_length > 2
