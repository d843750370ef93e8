"""Whether a source leads to values that its role can hold: the faults of paths that lead nowhere, or to other kinds.

The profiles of the schema say which paths the rows have and of which kinds their values are. A path that they do not
describe, such as one inside JSON with too many paths, can lead to anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenloom.assets.columns.source_expressions import (
    Placeholder,
    SourceExpression,
    Template,
    Turns,
    WithContext,
    paths_of,
)
from tokenloom.assets.schema.candidates import Profiles
from tokenloom.assets.schema.doubts import is_spoken
from tokenloom.assets.schema.profiles import Profile, Steps
from tokenloom.assets.stage.forms import ANYTHING, LIST, TEXT, TEXT_OR_TEXTS, TEXTS, TEXTS_OR_PAIRS, Form, Need
from tokenloom.config import Constant, PipelineConfig
from tokenloom.errors import Fault, did_you_mean
from tokenloom.resources.tables.nested_paths import Path

_UNKNOWN = frozenset({"null", "json"})
"""Kinds of values that could be anything: null in every row, and what the schema does not describe."""


@dataclass(frozen=True)
class Place:
    """What the schema says of the values at a path.

    Args:
        profile: the profile of the values.
        lists: how many lists each row has them in: a field of the items of a list is the list of these fields.
    """

    profile: Profile
    lists: int = 0

    @property
    def kinds(self) -> Sequence[str]:
        return ("list",) if self.lists else self.profile.kinds

    @property
    def items(self) -> Sequence[str]:
        """The kinds of the items of lists; empty if they are not known."""
        if self.lists:
            return Place(self.profile, self.lists - 1).kinds
        return items.kinds if (items := self.profile.field(None)) else ()

    @property
    def name(self) -> str:
        """What the values are, for messages."""
        return self.kinds[0] if self.kinds[0] in ("list", "struct") else self.profile.type

    def inside(self, step: str | int) -> Place | None:
        """Return where a step leads to; None if the schema has no such path."""
        if self.lists and isinstance(step, int):
            return Place(self.profile, self.lists - 1)
        if not isinstance(step, int) and (field := self.profile.field(step)):
            return Place(field, self.lists)
        items = self.profile.field(None)
        if items is None or isinstance(step, int):
            return items and Place(items)
        # A field of a list is the list of that field of its items.
        return Place(items, self.lists + 1).inside(step)

    def is_open(self) -> bool:
        """Return whether rows can have paths inside that the schema does not describe."""
        inner = self.profile.innermost
        undescribed = {"list", "struct"} & {*inner.kinds} and not inner.fields
        return bool(undescribed or _UNKNOWN & {*inner.kinds})

    def fits(self, need: Need) -> bool:
        """Return whether any of the values can be what a role needs."""
        if {*self.kinds} & (need.values | _UNKNOWN):
            return True
        # Lists that are empty in every row fit what any list fits.
        items_fit = not self.items or {*self.items} & (need.items | _UNKNOWN)
        return bool("list" in self.kinds and need.items and items_fit)


def follow(paths: Profiles, path: Path) -> tuple[Place, int]:
    """Return the last place on a path that the schema has, and the number of steps to it."""
    place = Place(paths[(path.column,)])
    for taken, step in enumerate(path.steps):
        if (inner := place.inside(step)) is None:
            return place, taken
        place = inner
    return place, len(path.steps)


def steps_of(path: Path) -> Steps:
    """Convert a path to the form that profiles use, where None stands for any item of a list."""
    return (path.column, *(None if isinstance(step, int) else step for step in path.steps))


def column_names(paths: Profiles) -> list[str]:
    """Return the names of the columns."""
    return [profile.name for profile in paths.values() if profile.is_column]


def leads_to_messages(paths: Profiles, source: SourceExpression | None) -> bool:
    """Return whether a source leads to messages, as structs or as JSON text."""
    profile = paths.get(steps_of(source)) if isinstance(source, Path) else None
    return isinstance(source, Turns) or (profile is not None and is_spoken(profile))


def listed(names: Sequence[str]) -> str:
    """Return at most twenty column names for a message, long ones shortened."""
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def missing_paths(
    config: PipelineConfig,
    paths: Profiles,
    source: SourceExpression,
    setting: str,
    line: int | None = None,
    name: str = "",
) -> list[Fault]:
    """Return faults for columns and fields that a source uses and the data does not have.

    Args:
        line: the line of the fault within the setting's block of text, counted from 0.
        name: the field of the template, if the source is one.
    """
    names = column_names(paths)
    messages = []
    for path in paths_of(source):
        if path.column in names:
            messages += _no_step(paths, path)
            continue
        has = f"the data has {listed(names)}"
        if setting == "dataset.columns":
            has = f"the columns kept are {listed(names) or 'none'}; `tokenloom inspect` shows all"
        elif setting.startswith("dataset.column_mapping."):
            has += "; write {constant: …} for literal text"
        subject = f"{{{name}}} in the template" if name else path.column
        messages.append(f"no column {subject}; {has}{did_you_mean(path.column, names)}")
    return [fault for message in messages for fault in config.fault(setting, message, line).faults]


def _no_step(paths: Profiles, path: Path) -> list[str]:
    """Say at which step of a path the data has no such field or item, if it does not lead somewhere."""
    place, taken = follow(paths, path)
    if taken == len(path.steps) or place.is_open():
        return []
    before, step = Path(path.column, path.steps[:taken]), path.steps[taken]
    if isinstance(step, int):
        return [f"{before} is {place.name}, not a list: it has no item [{step}]"]
    if not (fields := place.profile.innermost.fields):
        return [f"{before} is {place.name}: it has no field {step}"]
    return [f"{before} has no field {step}; it has {listed(fields)}{did_you_mean(step, fields)}"]


def unfit_kinds(
    config: PipelineConfig, paths: Profiles, form: Form, role: str, source: SourceExpression, lines: Mapping[str, int]
) -> list[Fault]:
    """Return faults for sources that have an unsuitable type in every chunk.

    Args:
        lines: the line of each field of the YAML's template.
    """
    mapped, spoken = role in config.dataset.column_mapping, form.spoken
    setting = f"dataset.column_mapping.{role}" if mapped or role not in lines else "prompt_template.template"
    messages = []
    if isinstance(source, Turns) and source.style == "functions" and role != "tools":
        messages.append(f"{source} is tools; {role} needs something else")
    elif isinstance(source, Turns) and source.style == "turns" and role not in (*spoken, "history"):
        messages.append(f"{source} is a conversation; {role} needs text")
    for path, need in _needed(form, role, source, config.prompt_template.format_type == "jinja"):
        place, taken = follow(paths, path)
        is_talk = leads_to_messages(paths, path)
        # Where the schema ends, or describes messages as JSON text, any value can be there.
        if taken < len(path.steps) or (is_talk and role in spoken) or place.fits(need):
            continue
        remedy = _remedy(path, place) if need is TEXT else ""
        if is_talk and not spoken and "chat" in form.format_types:
            remedy = "; it holds messages: set prompt_template.format_type: chat"
        actual = place.name if path.steps else place.profile.type
        messages.append(f"column {path} is {actual}; {role} needs {need.words}{remedy}")
    line = None if mapped else lines.get(role)
    return [fault for message in messages for fault in config.fault(setting, message, line).faults]


def _needed(form: Form, role: str, source: SourceExpression, objects: bool) -> list[tuple[Path, Need]]:
    """Return the paths of a source, each with what its values must be.

    Args:
        objects: whether a Jinja template gets the values, which can then have any type.
    """
    need = form.need(role)
    if isinstance(source, Path):
        return [] if objects else [(source, need)]
    if isinstance(source, Constant | WithContext) or need is ANYTHING or form.encoded:
        return []
    if isinstance(source, Turns):
        return [(source.path, TEXTS_OR_PAIRS)]
    if isinstance(source, Template):
        placeholders = [part for part in source.parts if isinstance(part, Placeholder)]
        return [(part.path, TEXTS if part.style == "letters" else TEXT_OR_TEXTS) for part in placeholders]
    chosen = (Path(source.items.column, (*source.items.steps, 0)), need)
    return [*((path, TEXT if path is source.key else LIST) for path in paths_of(source)), chosen]


def _remedy(path: Path, place: Place) -> str:
    """Return how to get text from a path to lists or structs, as the end of a message."""
    if place.kinds[0] == "list" and {*place.items} & (TEXTS.items | _UNKNOWN):
        return f'; use {path}[0] for the first item, "{{{path}}}" for one item per line, or "{{{path}:letters}}"'
    if fields := place.profile.innermost.fields:
        return f"; use one of its fields, e.g. {path}{'[0]' * (place.kinds[0] == 'list')}.{fields[0]}"
    return ""
