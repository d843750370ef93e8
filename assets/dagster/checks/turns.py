"""The check `turns`: each trained turn has the text before it that the model has at inference."""

from __future__ import annotations

from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.assets.stage.forms import form_named
from tokenloom.assets.stage.names import COLUMNS, PROMPTS


@check(PROMPTS, warns=True)
def turns(checked: Checked) -> Verdict:
    """Each trained turn of a conversation comes after the text that the model has at inference."""
    from tokenloom.assets.prompts.trained_turns import NOT_EXACT, TURNS

    build = checked.build
    counters = build.manifest(PROMPTS).counters
    if TURNS not in counters:
        return Verdict(True, "no chat template renders the rows")
    trained, wrong = counters[TURNS], counters[NOT_EXACT]
    share = wrong / max(trained, 1)
    metadata = {TURNS: trained, NOT_EXACT: wrong, "turns_not_exact_fraction": share}
    if not wrong:
        return Verdict(True, f"{trained:,} trained turns, all as at inference", metadata, warns=True)
    form = form_named(build.manifest(COLUMNS).facts["mapping"]["form"])
    separable = build.config.prompt_template.turns == "together" and not form.judged
    remedy = "set prompt_template.turns: exact" if separable else "the certificate's `turns` says why"
    text = f"{wrong:,} of {trained:,} trained turns ({share:.2%}) differ from what the model has at inference; {remedy}"
    return Verdict(False, text, metadata, warns=True)
