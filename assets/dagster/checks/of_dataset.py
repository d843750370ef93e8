"""Which checks a dataset has, by its YAML alone."""

from __future__ import annotations

from tokenloom.assets.dagster.checks.answers import answers
from tokenloom.assets.dagster.checks.contamination import contamination
from tokenloom.assets.dagster.checks.contract import contract
from tokenloom.assets.dagster.checks.drift import drift
from tokenloom.assets.dagster.checks.overlap import has_splits, overlap
from tokenloom.assets.dagster.checks.rejects import rejects
from tokenloom.assets.dagster.checks.stage_check import StageCheck
from tokenloom.assets.dagster.checks.stored import stored
from tokenloom.assets.dagster.checks.template import may_be_chat, template
from tokenloom.assets.dagster.checks.turns import turns
from tokenloom.assets.stage.names import stages_of
from tokenloom.config import PipelineConfig


def stage_checks(config: PipelineConfig) -> list[StageCheck]:
    """Return the checks of a dataset. Reads no data and imports no stage."""
    of_chats = [template, turns] if may_be_chat(config) else []
    of_evaluations = [contamination] if config.decontaminate is not None else []
    of_splits = [overlap] if has_splits(config) else []
    return [*map(contract, stages_of(config)), *of_chats, *of_evaluations, rejects, answers, drift, *of_splits, stored]
