"""Decides how the rows of a starter YAML become text: through which chat template, if any.

Imported while the command line is parsed, so heavy imports are inside the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.assets.schema.candidates import FormatCandidate
    from tokenloom.resources.tokenizers import TokenizerSpec

STYLES = {
    "alpaca": "'### Instruction:' before the prompt, '### Response:' before the answer",
    "chat": "the tokenizer's chat template, or ChatML",
    "lines": "a line break between prompt and answer",
    "plain": "a blank line between prompt and answer",
    "qa": "'Question:' before the prompt, 'Answer:' before the answer",
}
"""How prompts and answers can be rendered; apart from `chat`, names of built-in chat templates."""

CHATML = {
    "chatml": "<|im_start|> and <|im_end|> around each message",
    "chatml-eos": "ChatML whose messages end with EOS, since the tokenizer has no <|im_end|>",
}
"""Built-in chat templates for messages."""

JOINED = "most prompts or answers already have white space between them, so none is added"


@dataclass(frozen=True)
class PromptStyle:
    """How rows become text.

    Args:
        format_type: `prompt_template.format_type`.
        template: the built-in chat template to name; None: the tokenizer's own, or none.
        note: why, as a comment.
    """

    format_type: str
    template: str | None = None
    note: str = ""


def prompt_style(
    choice: FormatCandidate,
    tokenizer: TokenizerSpec | None,
    declared: Mapping[str, Any],
    asked: str | None,
    joined: bool,
) -> PromptStyle:
    """Return how the rows of a format become text.

    Args:
        choice: the format that the rows are read as.
        tokenizer: facts of the tokenizer; None: the YAML trains one.
        declared: the settings of `prompt_template` that the inspected YAML has.
        asked: one of `STYLES`, or None.
        joined: whether most rows have white space of their own between prompt and completion.
    """
    from tokenloom.assets.stage.forms import FORMS, allowed_forms, form_named

    form, texts = form_named(choice.form), choice.form == "completion"
    spoken, plain = bool(form.spoken or (texts and {"system", "history"} & {*choice.roles})), form.format_types[0]
    if "format_type" in declared:
        spoken = any(FORMS[name].spoken for name in allowed_forms(declared["format_type"]))
    if not spoken and not texts:
        return PromptStyle(plain)
    if asked in (None, "chat"):
        if not (spoken or asked) and (declared or joined):
            return PromptStyle(plain, note=JOINED if joined and not declared else "")
        if tokenizer is not None and tokenizer.chat_template is not None:
            return PromptStyle("chat" if texts else plain)
    if asked not in (None, "chat"):
        template = asked
    elif spoken or asked:
        template = _chatml(tokenizer)
    else:
        template = _suited(choice)
    return PromptStyle("chat" if texts else plain, template, {**STYLES, **CHATML}[template])


def _chatml(tokenizer: TokenizerSpec | None) -> str:
    from tokenloom.resources.templates.named import IM_END

    return "chatml" if tokenizer is None or IM_END in tokenizer.control else "chatml-eos"


def _suited(choice: FormatCandidate) -> str:
    """Return the template for prompts and completions of text."""
    if choice.format == "question/answer" or "question" in choice.roles.get("prompt", "").lower():
        return "qa"
    return "alpaca" if choice.format == "alpaca" else "lines"
