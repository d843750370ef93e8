"""The check `template`: the chat template's certificate, which the build writes for prompts."""

from __future__ import annotations

from tokenloom.assets.dagster.checks.stage_check import Checked, Verdict, check
from tokenloom.assets.dagster.metadata import text_table
from tokenloom.assets.stage.names import PROMPTS
from tokenloom.config import PipelineConfig


@check(PROMPTS, warns=True)
def template(checked: Checked) -> Verdict:
    """The chat template ends each answer with a trained stop token and renders BOS at most once."""
    certificate = checked.build.manifest(PROMPTS).notes.get("certificate")
    if not certificate:
        return Verdict(True, "no chat template renders the rows")
    found = {finding["name"]: finding["found"] for finding in certificate}
    stop = found["stop"]
    problems = [] if stop.startswith("trained") else [f"the stop token after an answer is {stop}"]
    problems += [f"BOS occurs {found['BOS']}"] if found["BOS"].endswith("times") else []
    text = "; ".join(problems) or f"the stop token is {stop}; BOS occurs at most once"
    return Verdict(not problems, text, {"certificate": text_table(certificate)}, warns=True)


def may_be_chat(config: PipelineConfig) -> bool:
    """Return whether a chat template can render the rows. Without a template in the YAML, that depends on the data."""
    prompt = config.prompt_template
    return prompt.template is None and prompt.format_type not in ("completion", "text")
