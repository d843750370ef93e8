"""Checks that weights by kind in `train_on`, and `turns: exact`, fit the other settings, the form of the rows and the
chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.assets.prompts.segments import exact_fits
from tokenloom.assets.stage.forms import Form
from tokenloom.config import PipelineConfig

if TYPE_CHECKING:
    from tokenloom.assets.prompts.chat import ChatFormat

SETTING = "prompt_template.train_on"


def check_kinds(config: PipelineConfig, form: Form, chat: bool) -> None:
    """Check that rows of a form can have weights by kind.

    Args:
        chat: whether the rows go through a chat template.

    Raises:
        ConfigError: they cannot.
    """
    weights = config.prompt_template.weights
    if weights is None:
        return
    if not chat:
        message = (
            "weights by kind need rows that go through a chat template, but these do not; set train_on: completions"
        )
        raise config.fault(SETTING, message)
    if not form.trained:
        raise config.fault(SETTING, "weights have no effect on prompts without answers; remove train_on")
    uneven = [f"{name}: {weight:g}" for name, weight in weights.items() if weight not in (0, 1)]
    if form.judged and uneven:
        message = f"the losses of {form.name} data have no weights; use 0 and 1 in place of {', '.join(uneven)}"
        raise config.fault(SETTING, message)


def check_turns(config: PipelineConfig, form: Form, chat: bool) -> None:
    """Check that `turns: exact` fits the other settings and the form of the rows.

    Raises:
        ConfigError: it does not.
    """
    prompt = config.prompt_template
    if prompt.turns == "together":
        return
    if not chat:
        message = "exact needs rows that go through a chat template, but these do not; set turns: together"
        raise config.fault("prompt_template.turns", message)
    if form.judged:
        message = f"{form.name} data train one answer per row, which leaves no turns to separate; set turns: together"
        raise config.fault("prompt_template.turns", message)
    if not exact_fits(prompt):
        message = "exact trains what the model writes at inference; set train_on: completions, or turns: together"
        raise config.fault("prompt_template.turns", message)
    if config.length.strategy == "drop_turns":
        message = "exact gives each row several texts, and drop_turns shortens whole rows; set length.strategy: smart"
        raise config.fault("prompt_template.turns", message)


def check_template_shows_kinds(config: PipelineConfig, chat: ChatFormat) -> None:
    """Check that the chat template shows the kinds of a plain answer, if their weights differ.

    Raises:
        ConfigError: it does not.
    """
    if chat.weights is None or len(set(chat.weights.values())) == 1:
        return
    from tokenloom.assets.prompts.chat_certificate import ASKED, SAID, rendered_conversation

    answered = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}]
    for reject in rendered_conversation(chat, answered).rejects.to_pylist():
        if reject["code"] == "kind_unknown":
            raise config.fault(SETTING, reject["message"])
