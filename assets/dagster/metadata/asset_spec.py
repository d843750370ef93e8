"""What an asset shows before it is materialized: what its stage does, and where the YAML sets it."""

from __future__ import annotations

import os
from typing import Any

import dagster as dg

from tokenloom.config import MixtureConfig, PipelineConfig

DESCRIPTIONS = {
    "raw": "The rows as they are in the source, in chunks whose places depend on their content.",
    "schema": "Types, lengths and examples of each column, and which formats the rows can be read as.",
    "columns": "The rows in one canonical form: fields, prompt and completion, messages, pairs, or text.",
    "prompts": "The rows as text, with a role and a loss weight for each part of it.",
    "tokenizer": "The tokenizer: its files, control tokens and vocabulary.",
    "tokens": "The text as tokens, with the roles and loss weights of the prompts.",
    "sequences": "What a model is trained on: tokens cut or packed to max_length, and which of them are trained.",
}
SECTIONS = {"prompts": "prompt_template", "tokenizer": "tokenizer", "tokens": "tokenizer", "sequences": "length"}
"""The section of the YAML that decides most about a stage; of the others it is `dataset`."""


def stage_description(stage: str) -> str:
    """Return what a stage's asset is."""
    return DESCRIPTIONS[stage]


def spec_metadata(config: PipelineConfig | MixtureConfig, section: str) -> dict[str, Any]:
    """Return the reference to the lines of a YAML that declare an asset; nothing if no file declares it.

    Args:
        section: the section of the YAML.
    """
    if config.file is None:
        return {}
    reference = dg.LocalFileCodeReference(
        file_path=os.path.realpath(config.file), line_number=config.line(section), label=section
    )
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}
