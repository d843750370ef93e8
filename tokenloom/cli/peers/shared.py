"""What the configurations of several tools have in common: fields and speakers of messages, splits and their slices,
validation sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tokenloom.assets.columns.message_objects import CONTENT_FIELDS, ROLE_FIELDS
from tokenloom.assets.schema.profiles import ROLE_NAMES
from tokenloom.assets.stage.forms import REASONING_FIELDS
from tokenloom.cli.peers.keys import Keys
from tokenloom.cli.peers.sheet import Sheet

_FIELDS = {"role": ROLE_FIELDS, "content": CONTENT_FIELDS, "reasoning_content": REASONING_FIELDS}

_SLICE = re.compile(r"([^\[\]]+)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?")


def note_field(keys: Keys, key: str, name: str) -> None:
    """Report a key with the name of a field of messages: fields are found by their usual names."""
    if (field := keys.get(key, str)) is None:
        return
    if field in _FIELDS.get(name, (name,)):
        keys.note("elsewhere", key, "fields of messages are found by their names")
    else:
        keys.note("differs", key, f"the field {field!r} is not found by its name; rename it to {name!r} in the data")


def note_speakers(keys: Keys, key: str, role: str, names: Sequence[Any]) -> None:
    """Report a key with the names of speakers: they are known by their usual names."""
    if other := [name for name in names if role_of(name) != role_of(role)]:
        keys.note("differs", key, f"speakers called {other[0]!r} are not read as {role}; rename them")
    else:
        keys.note("elsewhere", key, "the usual names of speakers are known")


def role_of(speaker: Any) -> str:
    """Return the role that a speaker is known by."""
    return ROLE_NAMES.get(str(speaker).lower(), str(speaker))


def set_split(keys: Keys, sheet: Sheet, name: str, default: str) -> None:
    """Set the split of a dataset. A slice such as `train[:500]` becomes a number or a fraction of rows.

    Raises:
        ConfigError: it is a slice that has no counterpart.
    """
    given = keys.get(name, str, default=default)
    if not (found := _SLICE.fullmatch(given)):
        raise keys.refuse(name, f"no counterpart for {given!r}; name one split, and set dataset.max_rows or fraction")
    split, start, end = found.groups()
    sheet.set("dataset.splits", [split], keys, name)
    if start in (None, "0", "0%") and end and end[0] != "-" and not end.endswith("%"):
        sheet.set("dataset.max_rows", int(end), keys, name, "the first rows")
    elif start or end:
        bounds = [(start or "0%"), (end or "100%")]
        if not all(bound.endswith("%") for bound in bounds):
            raise keys.refuse(name, f"no counterpart for {given!r}; set dataset.max_rows, or split the file")
        first, last = (int(bound[:-1]) for bound in bounds)
        share = ((last + 100 if last < 0 else last) - (first + 100 if first < 0 else first)) / 100
        if not 0 < share <= 1:
            raise keys.refuse(name, f"{given!r} has no rows")
        if share < 1:
            set_fraction(keys, sheet, name, share)


def set_fraction(keys: Keys, sheet: Sheet, name: str, share: float) -> None:
    """Set the fraction of the rows to read."""
    sheet.set("dataset.fraction", share, keys, name, "rows are chosen by their content")
    keys.warn(name, "as many rows, but other ones: dataset.fraction chooses by content")


def set_validation_fraction(keys: Keys, sheets: Sequence[Sheet], name: str) -> None:
    """Set `val_split` of the datasets that are trained on."""
    size = keys.number(name) or 0
    if size >= 1:
        keys.warn(name, f"{size:g} rows: set dataset.val_split to the fraction that they are of all rows")
        return
    keys.note("taken", name, "dataset.val_split" if size else "no validation set")
    if size and not any(sheet.evaluation for sheet in sheets):
        for sheet in sheets:
            sheet.set("dataset.val_split", size, keys, name, "rows are chosen by their content")
