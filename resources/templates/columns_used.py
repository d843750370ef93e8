"""The columns that the YAML's template uses, checked against `label_column` and `input_columns`."""

from __future__ import annotations

from collections.abc import Collection

from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.resources.templates.custom import parse_custom


def columns_used(config: PipelineConfig, known: Collection[str]) -> dict[str, int]:
    """Return the columns that the template names, each with its first line in the template, counted from 0.

    Args:
        known: the data's columns, and those that `column_mapping` names.

    Raises:
        ConfigError: the template cannot be parsed, or `label_column` or `input_columns` do not match it.
    """
    prompt = config.prompt_template
    if prompt.format_type == "custom":
        columns: dict[str, int] = {}
        fields = [part for part in parse_custom(config) if part.is_field]
        for field in fields:
            columns.setdefault(field.text, field.line)
        label, count = prompt.label_column, sum(field.text == prompt.label_column for field in fields)
        if label and count > 1:
            message = f"the template must contain {{{label}}} exactly once, found {count}"
            raise config.fault("prompt_template.label_column", message)
    else:
        from tokenloom.resources.templates.from_yaml import undeclared  # keeps jinja2 out of this module's import

        columns = undeclared(config, known)
    for trained in prompt.trained_columns:
        if trained not in columns:
            setting = "prompt_template.label_column" if trained == prompt.label_column else "prompt_template.train_on"
            message = f"the template does not use {trained}, only {', '.join(columns) or 'no column'}"
            raise config.fault(setting, f"{message}{did_you_mean(trained, columns)}")
    _check_input_columns(config, columns)
    if prompt.format_type == "jinja":
        from tokenloom.resources.templates.from_yaml import check_separate

        check_separate(config, columns)
    return columns


def _check_input_columns(config: PipelineConfig, columns: dict[str, int]) -> None:
    """
    Raises:
        ConfigError: `input_columns` lists other columns than the template uses.
    """
    prompt = config.prompt_template
    if prompt.input_columns is None:
        return
    unused = [name for name in prompt.input_columns if name not in columns]
    setting = "prompt_template.input_columns"
    faults = [config.fault(setting, f"the template does not use {name}") for name in unused]
    for name, line in columns.items():
        if name not in prompt.input_columns and name not in prompt.trained_columns:
            faults.append(config.fault("prompt_template.template", f"{name} is not among input_columns", line))
    if faults:
        raise ConfigError([fault.faults[0] for fault in faults])
