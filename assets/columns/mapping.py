"""Resolves which source column plays which role: from the YAML, then from the columns found."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokenloom.assets.schema import candidates
from tokenloom.assets.schema.sketch import top_level
from tokenloom.assets.templates.custom import field_names
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, Fault

Form = Literal["fields", "messages", "completion", "text"]


@dataclass(frozen=True)
class ColumnMapping:
    """The resolved mapping.

    Args:
        form: the canonical form: `fields` are the columns that a template names.
        roles: role, or field, to source column.
        answer: the role whose empty rows are useless, if there is one.
    """

    form: Form
    roles: dict[str, str]
    answer: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def resolve(config: PipelineConfig, columns: Sequence[Mapping[str, Any]]) -> ColumnMapping:
    """The mapping for a dataset whose columns are as `schema` described them.

    Raises:
        ConfigError: a column that the YAML names does not exist, or the columns fit no form.
    """
    columns = top_level([dict(column) for column in columns])
    names = [column["column"] for column in columns]
    prompt, mapping = config.prompt_template, dict(config.dataset.column_mapping)
    known = list(field_names(config)) if prompt.template else list(candidates.ALIASES)
    faults = [_unknown_role(config, role, known) for role in mapping if role not in known]
    faults += [
        _missing(config, f"dataset.column_mapping.{role}", column, names)
        for role, column in mapping.items()
        if column not in names and role in known
    ]
    faults += [
        _missing(config, "dataset.columns", column, names)
        for column in config.dataset.columns or ()
        if column not in names
    ]
    if prompt.template:
        fields = field_names(config)
        faults += [
            _missing(config, "prompt_template.template", mapping.get(field, field), names, line, field)
            for field, line in fields.items()
            if field not in mapping and field not in names
        ]
        if faults:
            raise ConfigError(faults)
        found = ColumnMapping("fields", {field: mapping.get(field, field) for field in fields}, prompt.label_column)
    else:
        if faults:
            raise ConfigError(faults)
        found = _by_form(config, columns, mapping)
    _check_types(config, columns, found)
    return found


def _unknown_role(config: PipelineConfig, role: str, known: Sequence[str]) -> Fault:
    close = difflib.get_close_matches(role, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    setting = f"dataset.column_mapping.{role}"
    return config.fault(setting, f"{setting}: no such role; {hint}").faults[0]


def _by_form(config: PipelineConfig, columns: Sequence[Mapping[str, Any]], mapping: dict[str, str]) -> ColumnMapping:
    roles = candidates.roles([dict(column) for column in columns], mapping)
    wanted = {"completion": "completion", "text": "text"}.get(config.prompt_template.format_type)
    form = wanted or candidates.form(roles)
    needed = candidates.FORMS.get(form or "", ())
    if form is None or any(role not in roles for role in needed):
        names = _listed([column["column"] for column in columns])
        lacking = ", ".join(role for role in needed if role not in roles) or "messages, prompt and completion, or text"
        example = f"{{prompt: {_listed([columns[0]['column']])}}}"
        message = (
            f"dataset.column_mapping: no column found for {lacking}; the columns are {names}; map one, e.g. {example}"
        )
        raise config.fault("dataset.column_mapping", message)
    optional = {"completion": ("context", "system")}.get(form, ())
    kept = {role: roles[role] for role in (*needed, *optional) if role in roles}
    if form == "messages":
        return ColumnMapping("messages", kept, "messages")
    return ColumnMapping("text", kept, "text") if form == "text" else ColumnMapping("completion", kept, "completion")


def _check_types(config: PipelineConfig, columns: Sequence[Mapping[str, Any]], found: ColumnMapping) -> None:
    kinds = {column["column"]: column["type"] for column in columns}
    for role, column in found.roles.items():
        nested = kinds[column].startswith(("list", "struct"))
        if nested != (found.form == "messages") and kinds[column] != "null":
            expected = "a list of messages" if found.form == "messages" else "text"
            raise config.fault("dataset.column_mapping", f"column {column} is {kinds[column]}; {role} needs {expected}")


def _missing(
    config: PipelineConfig,
    setting: str,
    column: str,
    names: Sequence[str],
    line: int | None = None,
    field: str | None = None,
) -> Fault:
    close = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    subject = f"{{{field}}} in the template" if field else column
    fault = config.fault(setting, f"{setting}: no column {subject}; {hint}the data has {_listed(names)}", line)
    return fault.faults[0]


def _listed(names: Sequence[str]) -> str:
    """Column names for a message: long ones shortened, at most twenty."""
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
