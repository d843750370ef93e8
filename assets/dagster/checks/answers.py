"""The check `answers`: answers keep their stop, so that the model learns to end them."""

from __future__ import annotations

from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.assets.stage.names import LOADED


@check(LOADED, warns=True)
def answers(checked: Checked) -> Verdict:
    """At most validation.max_unstopped_fraction of the answers lost their stop to tokenizer.max_length."""
    from tokenloom.assets.sequences.answers import ANSWERS, WITHOUT_STOP, unstopped_fraction, unstopped_warning

    counters = checked.build.manifest(LOADED).counters
    count, share = counters.get(ANSWERS, 0), unstopped_fraction(counters)
    warning = unstopped_warning(checked.build.config, counters)
    text = (warning or "").removeprefix("warning: ") or f"{share:.2%} of {count:,} answers lost their stop"
    metadata = {ANSWERS: count, WITHOUT_STOP: counters.get(WITHOUT_STOP, 0), "unstopped_fraction": share}
    return Verdict(warning is None, text, metadata, warns=True)
