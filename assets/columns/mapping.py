"""Resolves the source of each role's values: from the YAML, then from the columns of the data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.assets.columns.fitting import (
    column_names,
    leads_to_messages,
    listed,
    missing_paths,
    steps_of,
    unfit_kinds,
)
from tokenloom.assets.columns.message_objects import CONTENT_FIELDS
from tokenloom.assets.columns.source_expressions import SourceExpression, number_of, parse_source, paths_of
from tokenloom.assets.columns.tokens import is_tokens, token_roles, unfit_tokens
from tokenloom.assets.schema.candidates import MIN_CONFIDENCE, FormatCandidate, Profiles, choose
from tokenloom.assets.schema.conventions import LARGEST, dialect_of
from tokenloom.assets.schema.doubts import is_filled
from tokenloom.assets.schema.formats import UNASKED, format_candidates
from tokenloom.assets.schema.profiles import Profile, fits_flag, profiles
from tokenloom.assets.stage.forms import (
    COMPLETION,
    CONVERSATIONS,
    FIELDS,
    FORMS,
    TOKENS,
    Form,
    allowed_forms,
    form_named,
)
from tokenloom.assets.stage.images import IMAGE_COLUMNS, ROLE
from tokenloom.config import Constant, PipelineConfig
from tokenloom.errors import ConfigError, Fault, did_you_mean
from tokenloom.resources.tables.nested_paths import Path, parse_path, quoted
from tokenloom.resources.tables.sequence_schema import PER_TOKEN
from tokenloom.resources.templates.from_yaml import columns_used

Columns = Sequence[dict[str, Any]]
"""Profiles of the dataset's columns, as `tokenloom.assets.schema.merge` returns them."""

WEIGHT = "weight"
"""The role, optional in all forms with answers, whose numbers multiply the loss weights of a row's trained tokens."""

_TEXTS = {*CONVERSATIONS}
"""Roles that a declared `format_type` decides against if its forms do not have them."""

_PLAIN_SCALAR = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[a-z_][\w-]*", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnMapping:
    """The resolved mapping.

    Args:
        form: the canonical form, a key of `FORMS`; `fields` means the columns that a template uses.
        roles: the source expression of each role or field. It can be parsed without knowing the columns.
        answer: for `fields`, the field that must not be empty; default: none.
        objects: for `fields`, whether values keep their types, for a Jinja template, instead of becoming text.
        nulls: whether the null fields of structs are values: `dataset.struct_nulls` is `keep`.
        weight: the source expression of the rows' loss weights, or None.
        media: whether rows can have images: the YAML names a processor.
        images: the source expression of the rows' images, or None.
        token_columns: paths of the columns with a number per token, for the form `tokens`.
        dialect: what messages are recorded in, a key of `DIALECTS`; None for the shapes that are read as they are.
    """

    form: str
    roles: dict[str, str | Constant]
    answer: str | None = None
    objects: bool = False
    nulls: bool = False
    weight: str | Constant | None = None
    media: bool = False
    images: str | Constant | None = None
    token_columns: tuple[str, ...] = ()
    dialect: str | None = None

    @property
    def required(self) -> tuple[str, ...]:
        """The roles or fields that every row needs."""
        return FORMS[self.form].mapped(self.roles).required if self.form in FORMS else tuple(self.roles)

    def sources(self) -> dict[str, SourceExpression]:
        """Return the parsed source of each role."""
        return {role: parse_source(text) for role, text in self.roles.items()}

    def of_tokens(self) -> dict[str, SourceExpression]:
        """Return the parsed source of each column with a number per token, by its name in canonical rows."""
        return {f"{PER_TOKEN}{name}": parse_source(name) for name in self.token_columns}

    def everything_read(self) -> list[SourceExpression]:
        """Return the parsed sources of all roles, of the weight, and of columns with a number per token."""
        further = [parse_source(text) for text in (self.weight, self.images, *self.token_columns) if text is not None]
        return [*self.sources().values(), *further]

    def to_json(self) -> dict[str, Any]:
        """Return everything that affects the output, as JSON."""
        given = {name: value for name, value in plain_roles(vars(self)).items() if value not in (None, False, ())}
        given |= {"token_columns": [*self.token_columns]} if self.token_columns else {}
        return given | {"roles": plain_roles(self.roles), "answer": self.answer}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ColumnMapping:
        """Return the mapping that `to_json` wrote."""
        roles = {role: _source_text(text) for role, text in stored["roles"].items()}
        others: dict[str, Any] = {name: _source_text(value) for name, value in stored.items() if name != "roles"}
        return cls(**others | {"roles": roles, "token_columns": tuple(stored.get("token_columns", ()))})


def _source_text(stored: Any) -> Any:
    return Constant(**stored) if isinstance(stored, Mapping) else stored


def plain_roles(roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return source expressions as JSON."""
    return {role: text.model_dump() if isinstance(text, Constant) else text for role, text in roles.items()}


def resolve(config: PipelineConfig, columns: Columns) -> ColumnMapping:
    """Return the mapping for a dataset.

    Args:
        columns: as the schema stage describes them.

    Raises:
        ConfigError: a column or field that the YAML names does not exist or has an unsuitable type, or the columns fit
            no form or several.
    """
    prompt, mapping = config.prompt_template, config.dataset.column_mapping
    paths = profiles(columns)
    names = column_names(paths)
    lines = columns_used(config, {*names, *mapping}) if prompt.template else {}
    mapped = lines if prompt.template else [role for form in FORMS.values() for role in form.roles]
    media = config.media is not None
    further = (WEIGHT, ROLE) if media else (WEIGHT,)
    known = list(dict.fromkeys((*mapped, *further)))
    faults = [_unknown_role(config, role, known) for role in mapping if role not in known]
    given: dict[str, SourceExpression] = {}
    for role, text in mapping.items():
        if role in known:
            setting = f"dataset.column_mapping.{role}"
            column = text[:-1] if isinstance(text, str) and text[-1:] == "?" and text not in names else "{}"
            lacks = "{" not in column  # a text with placeholders can end with a question mark
            try:
                source = parse_source(column if lacks else text, names)
                absent = missing_paths(config, paths, source, setting)
                if not lacks:
                    faults += absent
                elif absent and prompt.template:
                    source = Constant(constant="")
                # A column of an earlier role counts, so that an optional one never leaves the others without a form.
                elif absent or not any({*given, role} <= {*form.roles, WEIGHT, ROLE} for form in FORMS.values()):
                    continue
                given[role] = source
            except ValueError as error:
                faults.append(_fault(config, setting, str(error)))
    for column in config.dataset.columns or ():
        faults += missing_paths(config, paths, Path(column), "dataset.columns")
    fields: dict[str, SourceExpression] = {field: given.get(field) or parse_path(field, names) for field in lines}
    for field, line in lines.items():
        if field not in mapping:
            faults += missing_paths(config, paths, fields[field], "prompt_template.template", line, field)
    if faults:
        raise ConfigError(faults)
    weight = given.pop(WEIGHT, None) if WEIGHT not in lines else None
    images = given.pop(ROLE, None) if ROLE not in lines else None
    if media and images is None:
        images = next((Path(name) for name in IMAGE_COLUMNS if name in names and name not in mapping.values()), None)
    # A column of images has no text for a role, so the search for a form leaves it out.
    shown_in = {path.column for path in paths_of(images)} if images is not None else set[str]()
    rest = [facts for facts in columns if facts["column"] not in shown_in]
    form, sources = (FIELDS, fields) if prompt.template else _by_form(config, rest, given)
    faults = [] if weight is None else _unfit_weight(config, paths, form, weight)
    faults += _no_ranges(config, paths, sources)
    faults += [
        fault for role, source in sources.items() for fault in unfit_kinds(config, paths, form, role, source, lines)
    ]
    faults += _only_beside_text(config, paths, form, sources)
    faults += unfit_tokens(config, paths, form, sources)
    faults += _absent(config, paths, "dataset.token_columns", config.dataset.token_columns)
    if faults:
        raise ConfigError(faults)
    nulls = config.dataset.struct_nulls == "keep"
    roles = {role: _as_text(source) for role, source in sources.items()}
    weighed, shown = (None if source is None else _as_text(source) for source in (weight, images))
    resolved = ColumnMapping(form.name, roles, nulls=nulls, weight=weighed, media=media, images=shown)
    if form is FIELDS:
        answer = prompt.label_column or (prompt.trained_columns[0] if len(prompt.trained_columns) == 1 else None)
        return replace(resolved, answer=answer, objects=prompt.format_type == "jinja")
    of_tokens = tuple(str(parse_path(name, names)) for name in config.dataset.token_columns)
    named = [sources.get(role) for role in CONVERSATIONS if form.spoken]
    spoken = [paths[steps_of(source)] for source in named if isinstance(source, Path) and steps_of(source) in paths]
    dialect = next((found for column in spoken if (found := dialect_of(column))), None)
    return replace(resolved, token_columns=of_tokens, dialect=dialect)


def _no_ranges(config: PipelineConfig, paths: Profiles, sources: Mapping[str, SourceExpression]) -> list[Fault]:
    """Return a fault if `train_ranges` names a field that no message has, as far as the fields are known."""
    name = config.prompt_template.train_ranges
    spoken = [paths.get(steps_of(source)) for source in sources.values() if isinstance(source, Path)]
    items = [profile.items for profile in spoken if profile is not None and profile.items is not None]
    fields = list(dict.fromkeys(field for item in items for field in item.fields))
    # The fields of messages in JSON text are not described, so any can be there.
    is_open = any(profile is None or profile.kind in ("text", "other") for profile in spoken)
    if name is None or not fields or name in fields or is_open:
        return []
    message = f"no message has the field {name}; messages have {listed(fields)}{did_you_mean(name, fields)}"
    return [_fault(config, "prompt_template.train_ranges", message)]


def _as_text(source: SourceExpression) -> str | Constant:
    return source if isinstance(source, Constant) else str(source)


def _unfit_weight(config: PipelineConfig, paths: Profiles, form: Form, source: SourceExpression) -> list[Fault]:
    setting = f"dataset.column_mapping.{WEIGHT}"
    if not form.trained:
        return [_fault(config, setting, f"{form.name} trains nothing, so a weight has no effect; remove it")]
    if isinstance(source, Constant) and not 0 <= number_of(str(source.constant)) <= LARGEST:
        return [_fault(config, setting, f"{source.constant!r} is not a number from 0 to {LARGEST:,.0f}")]
    for path in paths_of(source):
        profile = paths.get(steps_of(path))
        if profile is None or profile.kind in ("number", "boolean", "null", "other"):
            continue
        if profile.kind != "text" or (not profile.numbers and is_filled(profile) and not fits_flag(profile)):
            return [_fault(config, setting, f"column {path} is {profile.kind}; weight needs numbers from 0 on")]
    return []


def _only_beside_text(
    config: PipelineConfig, paths: Profiles, form: Form, sources: Mapping[str, SourceExpression]
) -> list[Fault]:
    """Return faults for a context or earlier turns next to a prompt or an answer that they cannot be added to."""
    spoken = [role for role in ("prompt", "completion") if leads_to_messages(paths, sources.get(role))]
    faults: dict[str, str] = {}
    if "context" in sources and "prompt" in spoken:
        faults["context"] = "context is added to a prompt of text, but prompt holds messages; map one of them"
    if "history" in sources and not form.spoken:
        remedy = "set format_type: chat, or omit its column with dataset.columns"
        faults["history"] = f"history holds earlier turns, which need a chat template; {remedy}"
    if "history" in sources and spoken and form.spoken and not form.prompted:
        faults["history"] = f"history is added to texts, but {spoken[0]} holds messages; map one of them"
    given = faults.items() if form is not FIELDS else ()
    return [_fault(config, f"dataset.column_mapping.{role}", message) for role, message in given]


def _by_form(
    config: PipelineConfig, columns: Columns, given: Mapping[str, SourceExpression]
) -> tuple[Form, dict[str, SourceExpression]]:
    """Choose the form by the mapped roles and the columns; return it with the source of each of its roles.

    Columns are searched for roles only if the mapped roles do not complete a form.
    """
    paths, declared = profiles(columns), allowed_forms(config.prompt_template.format_type)
    if is_tokens(config, given):
        if (declared and TOKENS.name not in declared) or not {*given} <= {*TOKENS.roles}:
            raise _no_common_form(config, given, declared or (TOKENS.name,))
        return TOKENS, token_roles(config, paths, given)
    allowed = declared or tuple(name for name, form in FORMS.items() if form.trained)
    fitting = [name for name in allowed if {*given} <= {*FORMS[name].roles}]
    if not fitting:
        raise _no_common_form(config, given, allowed)
    complete = next((name for name in fitting if _is_complete(FORMS[name], paths, given)), None)
    form, sources = FORMS.get(complete or ""), dict(given)
    if form is None:
        candidate = _detected(config, columns, given, fitting)
        form, names = FORMS[candidate.form], column_names(paths)
        sources = {role: parse_source(text, names) for role, text in candidate.roles.items()} | sources
    # the same roles make up several forms: which it is depends on whether they hold messages, tools or earlier turns
    talks = (each for each in FORMS.values() if each.of_texts and form.name in (each.name, each.of_texts))
    if (talk := next(talks, None)) is not None and talk.name in allowed:
        beyond_text = {"tools", "template_kwargs"} & sources.keys()
        spoken = any(leads_to_messages(paths, sources[role]) for role in talk.required)
        name = talk.continued if "history" in sources else talk.name if beyond_text or spoken else talk.of_texts
        form = FORMS[name]
    return form, {role: sources[role] for role in form.mapped(sources).roles if role in sources}


def _is_complete(form: Form, paths: Profiles, given: Mapping[str, SourceExpression]) -> bool:
    """Return whether the mapped roles make up a form; an answer of text, unlike a conversation, needs a prompt."""
    alone = "completion" in form.required and "prompt" in form.columns and "prompt" not in given
    return {*form.required} <= {*given} and not (alone and not leads_to_messages(paths, given["completion"]))


def _detected(
    config: PipelineConfig, columns: Columns, given: Mapping[str, SourceExpression], forms: Sequence[str]
) -> FormatCandidate:
    """Return the format of the columns if one is certain, with the roles that are not given.

    Raises:
        ConfigError: no format is certain, or the rows are prompts and the YAML does not ask for them.
    """
    paths, prompts = profiles(columns), config.prompt_template.format_type == "prompt_only"
    taken = {path.column for source in given.values() for path in paths_of(source)}
    names = column_names(paths)
    declared = allowed_forms(config.prompt_template.format_type)
    excluded = _TEXTS - {role for form in declared for role in FORMS[form].roles} if declared else ()
    candidates: dict[tuple[str, frozenset[str]], FormatCandidate] = {}
    for candidate in format_candidates(columns):
        form, roles = candidate.form, {role: text for role, text in candidate.roles.items() if role not in given}
        used = {path.column for text in roles.values() for path in paths_of(parse_source(text, names))}
        fits = form in forms or (not form_named(form).trained and not given)
        unread = not form and bool(candidate.doubts)
        if unread or (fits and roles and not used & taken and set(FORMS[form].required) <= {*roles, *given}):
            # A role that the YAML maps, or that its format type rules out, is decided: its doubts no longer count.
            doubts = {role: why for role, why in candidate.doubts.items() if role not in (*given, *excluded)}
            confidence = candidate.confidence if doubts else candidate.plausible
            unused = tuple(name for name in candidate.unused if name not in taken)
            rest = replace(candidate, roles=roles, doubts=doubts, confidence=confidence, unused=unused)
            candidates.setdefault((form, frozenset(f"{role} {text}" for role, text in roles.items())), rest)
    chosen = choose(list(candidates.values()), MIN_CONFIDENCE * UNASKED if prompts else MIN_CONFIDENCE)
    if isinstance(chosen, FormatCandidate):
        if FORMS[chosen.form].trained or prompts:
            return chosen
        message = f"the rows are prompts without answers ({chosen.roles['prompt']}); set format_type: prompt_only"
        raise config.fault("prompt_template.format_type", f"{message}, or map the columns to train on")
    if chosen.unread:
        raise config.fault("dataset.column_mapping", str(chosen))
    if close := tuple(candidate for candidate in chosen.close if candidate.form in forms):
        # The example shows the reading that leaves the least unused.
        fullest = min(close, key=lambda candidate: len(candidate.unused))
        remedy = "map the columns to use, or list only those to keep in dataset.columns"
        example = {**plain_roles(config.dataset.column_mapping), **fullest.roles}
        raise _no_mapping(config, f"{replace(chosen, close=close)}; {remedy}", _example(example))
    needed = FORMS[forms[0]].required if len(forms) == 1 else ()
    named = (form for form in map(form_named, forms) if form.needs and set(form.required) <= {*names, *given})
    if unfit := next(named, None):
        values = ", ".join(f"{role} has {_values(paths[(role,)])}" for role in unfit.required if role not in given)
        inside = {role: [name for name in CONTENT_FIELDS if name in paths[(role,)].fields] for role in unfit.required}
        example = {role: ".".join([role, *names[:1]]) for role, names in inside.items()}
        raise _no_mapping(config, f"{unfit.name} needs {unfit.needs}; {values}", _example(example))
    alternatives = dict.fromkeys(" and ".join(FORMS[form].required) for form in forms)
    missing = ", ".join(role for role in needed if role not in given) or ", or ".join(alternatives)
    asks = "; for prompts without answers, set prompt_template.format_type: prompt_only" if chosen.close else ""
    asks += _rows_inside(paths)
    asked = needed or COMPLETION.required
    example = dict.fromkeys(asked, "…") | {asked[0]: (names or ["…"])[0]}
    message = f"no column found for {missing}; the columns are {listed(names) or 'none'}{asks}"
    raise _no_mapping(config, message, _example(example))


def _rows_inside(paths: Profiles) -> str:
    """Return how to make each item of a list of objects a row, if a column holds such lists."""
    for profile in paths.values():
        if profile.is_column and profile.items is not None and profile.items.fields and profile.name != "items":
            fields = listed(profile.items.fields)
            root = f"dataset.reader.root: {quoted(profile.name)}[]"
            return f"; {profile.name} holds lists of {{{fields}}}: if each of these is a row, set {root} (for JSON)"
    return ""


def _values(profile: Profile) -> str:
    return ", ".join(profile.facts.get("values") or ()) or profile.shape()


def check_kept_columns(config: PipelineConfig, columns: Columns) -> None:
    """Check that the data has the columns of `dataset.keep_columns`.

    Raises:
        ConfigError: a column or field does not exist.
    """
    if faults := _absent(config, profiles(columns), "dataset.keep_columns", config.dataset.keep_columns):
        raise ConfigError(faults)


def _absent(config: PipelineConfig, paths: Profiles, setting: str, names: Sequence[str]) -> list[Fault]:
    read = [parse_path(text, column_names(paths)) for text in names]
    return [fault for path in read for fault in missing_paths(config, paths, path, setting)]


def _unknown_role(config: PipelineConfig, role: str, known: Sequence[str]) -> Fault:
    hint = did_you_mean(role, known) or f"; the roles are {', '.join(known)}"
    return _fault(config, f"dataset.column_mapping.{role}", f"unknown role{hint}")


def _no_common_form(
    config: PipelineConfig, given: Mapping[str, SourceExpression], allowed: Sequence[str]
) -> ConfigError:
    takes = "; ".join(f"{form} takes {', '.join(FORMS[form].roles)}" for form in allowed)
    return config.fault("dataset.column_mapping", f"no form takes {' and '.join(given)} together: {takes}")


def _no_mapping(config: PipelineConfig, message: str, example: str) -> ConfigError:
    return config.fault("dataset.column_mapping", f"{message}; write e.g. column_mapping: {example}")


def _example(roles: Mapping[str, Any]) -> str:
    """Return roles as a mapping in YAML's flow style."""
    is_plain = {role: isinstance(text, str) and _PLAIN_SCALAR.fullmatch(text) for role, text in roles.items()}
    shown = {role: text if is_plain[role] else json.dumps(text, ensure_ascii=False) for role, text in roles.items()}
    return f"{{{', '.join(f'{role}: {text}' for role, text in shown.items())}}}"


def _fault(config: PipelineConfig, setting: str, message: str, line: int | None = None) -> Fault:
    return config.fault(setting, message, line).faults[0]
