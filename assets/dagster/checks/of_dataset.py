"""Which checks a dataset has, by its YAML alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.checks import answers, contract, drift, overlap, rejects, stored, template, turns
from tokenloom.assets.dagster.checks.stage_check import Checked, StageCheck, Verdict, failing_on_errors
from tokenloom.config import PipelineConfig


def stage_checks(config: PipelineConfig) -> list[StageCheck]:
    """Return the checks of a dataset. Reads no data and imports no stage."""
    checks = [
        _check("contract", stage, contract.DESCRIPTION, partial(contract.contract, stage), blocking=True)
        for stage in STAGES
    ]
    if _may_be_chat(config):
        checks += [
            _check("template", "prompts", template.DESCRIPTION, template.template, warns=True),
            _check("turns", "prompts", turns.DESCRIPTION, turns.turns, warns=True),
        ]
    checks += [
        _check("rejects", "sequences", rejects.DESCRIPTION, rejects.rejects),
        _check("answers", "sequences", answers.DESCRIPTION, answers.answers, warns=True),
        _check("drift", "sequences", drift.DESCRIPTION, drift.drift, warns=True),
    ]
    if overlap.has_splits(config):
        checks.append(_check("overlap", "sequences", overlap.DESCRIPTION, overlap.overlap, warns=True))
    return [*checks, _check("stored", "sequences", stored.DESCRIPTION, stored.stored)]


def _check(
    name: str,
    stage: str,
    description: str,
    run: Callable[[Checked], Verdict],
    blocking: bool = False,
    warns: bool = False,
) -> StageCheck:
    return StageCheck(name, stage, description, blocking, failing_on_errors(run, warns))


def _may_be_chat(config: PipelineConfig) -> bool:
    """Return whether a chat template can render the rows. Without a template in the YAML, that depends on the data."""
    prompt = config.prompt_template
    return prompt.template is None and prompt.format_type not in ("completion", "text")
