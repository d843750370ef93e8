"""Resolves which columns of pre-tokenized rows are what, by the YAML and by the names of columns."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.assets.columns.source_expressions import SourceExpression
from tokenloom.assets.schema.candidates import Profiles
from tokenloom.assets.schema.evidence.token_columns import conflict, token_columns
from tokenloom.assets.stage.forms import TOKENS, TRAINED_BY, Form, allowed_forms
from tokenloom.config import PipelineConfig
from tokenloom.errors import Fault
from tokenloom.resources.tables.nested_paths import Path

_SHIFTED = "seq_start_id"
"""A column of Megatron-Bridge's packed rows, whose `loss_mask` belongs to the next token."""


def is_tokens(config: PipelineConfig, given: Mapping[str, SourceExpression]) -> bool:
    """Return whether the YAML says that rows are pre-tokenized, by its format type or a mapped role."""
    return allowed_forms(config.prompt_template.format_type) == (TOKENS.name,) or bool(given.keys() & {*TOKENS.roles})


def token_roles(
    config: PipelineConfig, paths: Profiles, given: Mapping[str, SourceExpression]
) -> dict[str, SourceExpression]:
    """Return the source of each role of pre-tokenized rows: those given, then columns by their names.

    If the YAML maps what is trained, no further column decides it.

    Raises:
        ConfigError: no column has token ids.
    """
    named = {role: Path(profile.name) for role, profile in token_columns(paths).items()}
    if {*TRAINED_BY} & {*given}:
        named = {role: path for role, path in named.items() if role not in TRAINED_BY}
    sources = {**named, **given}
    if "input_ids" not in sources:
        columns = ", ".join([profile.name for profile in paths.values() if profile.is_column][:20])
        message = f"no column has token ids; map one, e.g. {{input_ids: …}}; the columns are {columns}"
        raise config.fault("dataset.column_mapping", message)
    return {role: sources[role] for role in TOKENS.roles if role in sources}


def unfit_tokens(
    config: PipelineConfig, paths: Profiles, form: Form, sources: Mapping[str, SourceExpression]
) -> list[Fault]:
    """Return faults of pre-tokenized rows, and of settings that are only for them."""
    if not form.encoded:
        message = f"has no effect: it is for pre-tokenized rows, but these have the form {form.name}; omit it"
        return [*config.fault("dataset.token_columns", message).faults] if config.dataset.token_columns else []
    found: list[tuple[str, str]] = []
    if config.media is not None:
        found.append(("tokenizer.processor", "pre-tokenized rows cannot have images; set name_or_path instead"))
    if (against := conflict(sources)) is not None:
        remedy = "map one of them, or list only the columns to keep in dataset.columns"
        found.append(("dataset.column_mapping", f"{against}; {remedy}"))
    if (_SHIFTED,) in paths and "loss_mask" in sources:
        message = (
            f"{_SHIFTED} says that these are packed rows of Megatron-Bridge, whose loss_mask belongs to the next "
            "token; map another column, or write a mask of the tokens themselves"
        )
        found.append(("dataset.column_mapping", message))
    not_paths = [(role, source) for role, source in sources.items() if not isinstance(source, Path)]
    found += [(f"dataset.column_mapping.{role}", f"{source} is not a column or a path") for role, source in not_paths]
    return [fault for setting, message in found for fault in config.fault(setting, message).faults]
