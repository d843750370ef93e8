"""Resolves what each role's values are made of: from the YAML, then from the columns found."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.assets.columns import types
from tokenloom.assets.columns.source import Choice, Placeholder, Source, Template, parse_source, paths_of
from tokenloom.assets.schema.candidates import FormatCandidate, choose, format_candidates
from tokenloom.assets.schema.profiles import Profile, profiles
from tokenloom.assets.schema.sketch import top_level
from tokenloom.config import Constant, PipelineConfig
from tokenloom.errors import ConfigError, Fault
from tokenloom.resources.tables.nested_paths import Path, parse_path
from tokenloom.resources.templates.columns_used import columns_used

Form = str
"""`fields`, or a key of `tokenloom.assets.columns.forms.FORMS`."""
Columns = Sequence[dict[str, Any]]
"""The dataset's columns as `tokenloom.assets.schema.sketch.merge` describes them."""

ROLES: Mapping[Form, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ("system", "tools")),
    "completion": (("prompt", "completion"), ("context", "system")),
    "text": (("text",), ()),
    "preference": (("chosen", "rejected"), ("prompt", "system")),
    "kto": (("prompt", "completion", "label"), ("system",)),
}
"""For each form, the roles that it needs and those that it may have."""

ALLOWED: Mapping[str, tuple[Form, ...]] = {
    "chat": ("messages", "completion"),
    "completion": ("completion",),
    "text": ("text",),
    "preference": ("preference",),
    "kto": ("kto",),
}
"""The forms that a `format_type` admits; one not named here admits all."""

_NEEDS: Mapping[Form, str] = {
    "preference": "texts or lists of messages in both",
    "kto": "texts, and labels such as true and false, yes and no, or 1 and 0",
}

_CONVERSATIONS = {
    "messages": ("messages",),
    "preference": ("chosen", "rejected", "prompt"),
    "kto": ("prompt", "completion"),
}


@dataclass(frozen=True)
class ColumnMapping:
    """The resolved mapping.

    Args:
        form: the canonical form: `fields` are the columns that a template names.
        roles: role, or field, to source expression, which needs no knowledge of the columns any more.
        answer: fields: the field whose empty rows are useless, if there is one.
    """

    form: Form
    roles: dict[str, str | Constant]
    answer: str | None = None

    def sources(self) -> dict[str, Source]:
        """What each role is made of."""
        return {role: parse_source(text) for role, text in self.roles.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything that changes the output, as JSON."""
        return {"form": self.form, "roles": plain_roles(self.roles), "answer": self.answer}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ColumnMapping:
        """The mapping that `to_json` wrote."""
        roles = found["roles"].items()
        read = {role: Constant(**text) if isinstance(text, Mapping) else text for role, text in roles}
        return cls(found["form"], read, found.get("answer"))


def plain_roles(roles: Mapping[str, str | Constant]) -> dict[str, Any]:
    """Source expressions as JSON."""
    return {role: text.model_dump() if isinstance(text, Constant) else text for role, text in roles.items()}


def resolve(config: PipelineConfig, columns: Columns) -> ColumnMapping:
    """The mapping for a dataset whose columns are as `schema` described them.

    Raises:
        ConfigError: what the YAML names does not exist or has no fitting type, or the columns fit no form, or several.
    """
    prompt, mapping = config.prompt_template, config.dataset.column_mapping
    every, columns = columns, top_level(columns)
    names = [column["column"] for column in columns]
    lines = columns_used(config) if prompt.template else {}
    known = list(lines) if prompt.template else list(dict.fromkeys(r for both in ROLES.values() for r in sum(both, ())))
    faults = [_unknown_role(config, role, known) for role in mapping if role not in known]
    given: dict[str, Source] = {}
    for role, text in mapping.items():
        if role in known:
            setting = f"dataset.column_mapping.{role}"
            try:
                given[role] = parse_source(text, names)
                faults += _missing(config, columns, given[role], setting)
            except ValueError as error:
                faults.append(_fault(config, setting, str(error)))
    for column in config.dataset.columns or ():
        if column not in names:
            faults += _missing(config, columns, Path(column), "dataset.columns")
    fields: dict[str, Source] = {field: given.get(field) or parse_path(field, names) for field in lines}
    for field, line in lines.items():
        if field not in mapping:
            faults += _missing(config, columns, fields[field], "prompt_template.template", line, field)
    if faults:
        raise ConfigError(faults)
    form, sources = ("fields", fields) if prompt.template else _by_form(config, every, given)
    faults = [fault for role, source in sources.items() for fault in _unfit(config, columns, form, role, source, lines)]
    if faults:
        raise ConfigError(faults)
    roles = {role: source if isinstance(source, Constant) else str(source) for role, source in sources.items()}
    return ColumnMapping(form, roles, prompt.label_column if form == "fields" else None)


def _by_form(config: PipelineConfig, columns: Columns, given: Mapping[str, Source]) -> tuple[Form, dict[str, Source]]:
    """The form that the mapped roles and the columns make, and what its roles are made of.

    Roles are sought among the columns only where the mapped ones do not make a form by themselves.
    """
    allowed = ALLOWED.get(config.prompt_template.format_type, tuple(ROLES))
    fitting = [form for form in allowed if set(given) <= set(sum(ROLES[form], ()))]
    if not fitting:
        raise _odd_roles(config, given, allowed)
    complete = [form for form in fitting if set(ROLES[form][0]) <= set(given)]
    if complete:
        return complete[0], {role: given[role] for role in sum(ROLES[complete[0]], ()) if role in given}
    reading = _likeliest(config, columns, given, fitting)
    names = [column["column"] for column in top_level(columns)]
    found = {role: parse_source(text, names) for role, text in reading.roles.items()} | dict(given)
    return reading.form, {role: found[role] for role in sum(ROLES[reading.form], ()) if role in found}


def _likeliest(
    config: PipelineConfig, columns: Columns, given: Mapping[str, Source], forms: Sequence[Form]
) -> FormatCandidate:
    """The reading of the columns that stands out, with the roles that are not given.

    Raises:
        ConfigError: there is none, or there are several.
    """
    taken = {path.column for source in given.values() for path in paths_of(source)}
    names = [column["column"] for column in top_level(columns)]
    readings: dict[tuple[Form, frozenset[str]], FormatCandidate] = {}
    for found in format_candidates(columns):
        roles = {role: text for role, text in found.roles.items() if role not in given}
        used = {path.column for text in roles.values() for path in paths_of(parse_source(text, names))}
        if found.form in forms and roles and not used & taken and set(ROLES[found.form][0]) <= {*roles, *given}:
            doubts = {role: reason for role, reason in found.doubts.items() if role not in given}
            confidence = found.confidence if doubts else found.plausible
            reading = replace(found, roles=roles, doubts=doubts, confidence=confidence)
            readings.setdefault((found.form, frozenset(f"{role} {text}" for role, text in roles.items())), reading)
    chosen = choose(list(readings.values()))
    if isinstance(chosen, FormatCandidate):
        return chosen
    if chosen.close:
        raise _no_mapping(config, f"{chosen}; say which", _example(chosen.close[0].roles))
    needed = ROLES[forms[0]][0] if len(forms) == 1 else ()
    if in_vain := next((form for form in forms if form in _NEEDS and set(ROLES[form][0]) <= {*names, *given}), None):
        found = profiles(columns)
        held = ", ".join(f"{role} holds {_held(found[(role,)])}" for role in ROLES[in_vain][0] if role not in given)
        raise _no_mapping(config, f"{in_vain} needs {_NEEDS[in_vain]}; {held}", _example({r: r for r in needed}))
    lacking = ", ".join(role for role in needed if role not in given) or _listed_needs(forms)
    example = dict.fromkeys(needed or ROLES["completion"][0], "…") | {(needed or ("prompt",))[0]: (names or ["…"])[0]}
    raise _no_mapping(config, f"no column found for {lacking}; the columns are {_listed(names)}", _example(example))


def _held(profile: Profile) -> str:
    """A column's values where they are few, else what they look like."""
    return ", ".join(profile.facts.get("values") or ()) or profile.shape()


def _missing(
    config: PipelineConfig, columns: Columns, source: Source, setting: str, line: int | None = None, name: str = ""
) -> list[Fault]:
    """Faults for columns and fields that a source names and the data lacks."""
    names = [column["column"] for column in columns]
    faults = []
    for path in paths_of(source):
        subject = f"{{{name}}} in the template" if name else str(path)
        if path.column not in names:
            near = _nearest(path.column, names)
            literal = (
                "; a literal text is written {constant: …}" if setting.startswith("dataset.column_mapping.") else ""
            )
            subject = subject if name else path.column
            has = f"the data has {_listed(names)}{literal}"
            if setting == "dataset.columns":
                has = f"kept are {_listed(names) or 'none'}; `tokenloom inspect` shows all"
            message = f"no column {subject}; {near}{has}"
            faults.append(_fault(config, setting, message, line))
            continue
        for at in range(len(path.steps)):
            kinds = types.follow(_kinds(columns, path.column), path.steps[:at])
            if not types.follow(kinds, path.steps[at : at + 1]):
                before, step = Path(path.column, path.steps[:at]), path.steps[at]
                faults.append(_fault(config, setting, _no_step(before, step, types.fields_of(kinds), kinds), line))
                break
    return faults


def _no_step(before: Path, step: str | int, fields: list[str], kinds: Sequence[types.Kind]) -> str:
    if isinstance(step, int):
        return f"{before} is {kinds[0].name}, not a list: it has no item [{step}]"
    if not fields:
        return f"{before} is {kinds[0].name}: it has no field {step}"
    return f"{before} has no field {step}; {_nearest(step, fields)}it has {_listed(fields)}"


def _unfit(
    config: PipelineConfig, columns: Columns, form: Form, role: str, source: Source, lines: Mapping[str, int]
) -> list[Fault]:
    """Faults for sources of which the schema shows that they have no fitting type in any chunk."""
    mapped = role in config.dataset.column_mapping
    setting = f"dataset.column_mapping.{role}" if mapped or role not in lines else "prompt_template.template"
    place = config.fault(setting, "", None if mapped else lines.get(role)).faults[0].place
    faults = []
    for path, wanted in _wanted(form, role, source):
        kinds = types.follow(_kinds(columns, path.column), path.steps)
        if kinds and not any(_fits(kind, wanted) for kind in kinds):
            remedy = _remedy(path, kinds[0]) if wanted == "text" else ""
            shown = next(str(column["type"]) for column in columns if column["column"] == path.column)
            found = shown if not path.steps else kinds[0].name
            message = f"dataset.column_mapping: column {path} is {found}; {role} needs {wanted}{remedy}"
            faults.append(Fault(place, message))
    return faults


def _wanted(form: Form, role: str, source: Source) -> list[tuple[Path, str]]:
    """What each path of a source has to lead to."""
    if role == "tools" or isinstance(source, Constant):
        return []
    if isinstance(source, Template):
        placeholders = [part for part in source.parts if isinstance(part, Placeholder)]
        return [(p.path, f"{'text or ' * (p.style != 'letters')}a list of texts") for p in placeholders]
    own = "text or a list of messages" if role in _CONVERSATIONS.get(form, ()) else "text"
    if isinstance(source, Choice):
        lists = [source.items, *([source.labels] if source.labels else [])]
        inner = [(Path(path.column, (*path.steps, 0)), own) for path in lists[:1]]
        return [*((path, "a list") for path in lists), *inner, (source.key, "text")]
    return [(source, own)]


def _fits(kind: types.Kind, wanted: str) -> bool:
    if kind.name in ("", "null"):
        return True
    if kind.name == "list":
        item = kind.item or types.UNKNOWN
        if wanted.endswith("a list of texts"):
            return item.is_text
        return wanted == "a list" or (wanted == "text or a list of messages" and item.name in ("", "null", "struct"))
    return not wanted.startswith("a list") and kind.is_text


def _remedy(path: Path, kind: types.Kind) -> str:
    if kind.name == "list" and kind.item and kind.item.is_text:
        return f'; write {path}[0] for the first item, "{{{path}}}" for one a line, or "{{{path}:letters}}"'
    if fields := types.fields_of([kind]):
        step = f"{path}{'[0]' * (kind.name == 'list')}.{fields[0]}"
        return f"; name a field of it, e.g. {step}"
    return ""


def _kinds(columns: Columns, name: str) -> list[types.Kind]:
    return types.kinds_of(next(str(column["type"]) for column in columns if column["column"] == name))


def _unknown_role(config: PipelineConfig, role: str, known: Sequence[str]) -> Fault:
    close = difflib.get_close_matches(role, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return _fault(config, f"dataset.column_mapping.{role}", f"no such role; {hint}")


def _odd_roles(config: PipelineConfig, given: Mapping[str, Source], allowed: Sequence[Form]) -> ConfigError:
    takes = "; ".join(f"{form} takes {', '.join(sum(ROLES[form], ()))}" for form in allowed)
    return config.fault(
        "dataset.column_mapping", f"dataset.column_mapping: {' and '.join(given)} go into no one form: {takes}"
    )


def _no_mapping(config: PipelineConfig, message: str, example: str) -> ConfigError:
    return config.fault(
        "dataset.column_mapping", f"dataset.column_mapping: {message}; write e.g. column_mapping: {example}"
    )


def _example(roles: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{role}: {text}" for role, text in roles.items()) + "}"


def _listed_needs(forms: Sequence[Form]) -> str:
    return ", or ".join(" and ".join(ROLES[form][0]) for form in forms)


def _fault(config: PipelineConfig, setting: str, message: str, line: int | None = None) -> Fault:
    return config.fault(setting, f"{setting}: {message}", line).faults[0]


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _listed(names: Sequence[str]) -> str:
    """Column names for a message: long ones shortened, at most twenty."""
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
