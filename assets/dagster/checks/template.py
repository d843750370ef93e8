"""The check `template`: the chat template's certificate, which the build writes for prompts."""

from __future__ import annotations

from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict
from tokenloom.assets.dagster.metadata import text_table

DESCRIPTION = "The chat template ends each answer with a trained stop token and renders BOS at most once."


def template(checked: Checked) -> Verdict:
    """Check that the chat template trains the stop token and renders BOS at most once, by its certificate."""
    certificate = checked.build.manifest("prompts").notes.get("certificate")
    if not certificate:
        return Verdict(True, "no chat template renders the rows")
    found = {finding["name"]: finding["found"] for finding in certificate}
    stop = found["stop"]
    problems = [] if stop.startswith("trained") else [f"the stop token after an answer is {stop}"]
    problems += [f"BOS occurs {found['BOS']}"] if found["BOS"].endswith("times") else []
    text = "; ".join(problems) or f"the stop token is {stop}; BOS occurs at most once"
    return Verdict(not problems, text, {"certificate": text_table(certificate)}, warns=True)
