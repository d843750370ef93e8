"""A chat template that writes the last answer of a conversation as the continuation of its generation prompt.

Most templates do: what they write for the conversation starts with the generation prompt. Some do not:

- gpt-oss drops the reasoning of tool calls from the conversation as soon as an answer follows, but not from the prompt;
- DeepSeek-R1 prompts with `<think>`, but takes the reasoning out of contents that have it.

For these the text is composed of what the template writes for the messages before the answer, and of what it writes
after the last of these messages for the answer. A content with inline reasoning is hidden from the template's search
for `</think>`, so that it is written whole. All text is the template's or the row's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tokenloom.assets.prompts.outline import Message
from tokenloom.assets.prompts.spans import CLOSE, OPEN
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import (
    GENERATION_CLOSE,
    GENERATION_OPEN,
    MARK_CLOSE,
    MARK_OPEN,
    JinjaTemplate,
)

_END, _HIDDEN_OPEN, _HIDDEN_CLOSE = (f"{MARK_OPEN}{name}{MARK_CLOSE}" for name in ("end", "open", "close"))
_BLOCKS = re.compile(f"[{GENERATION_OPEN}{GENERATION_CLOSE}]")


class ContinuedPrompt(JinjaTemplate):
    """The template; a conversation that ends with an answer starts with the generation prompt, if that is possible."""

    @classmethod
    def of(cls, template: JinjaTemplate) -> ContinuedPrompt:
        """Return the template with continued prompts."""
        return cls(*template.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return ContinuedPrompt, super().__reduce__()[1]

    def prefixes(self, variables: Mapping[str, Any]) -> None:
        """Return None: the last answer of each beginning continues its own prompt."""

    def _run(self, variables: Mapping[str, Any]) -> str:
        own = super()._run(variables)
        messages = variables["messages"]
        if variables["add_generation_prompt"] or len(messages) < 2 or messages[-1]["role"] != "assistant":
            return own
        with suppress(TemplateError):
            return self._continued(own, variables) or own
        return own

    def _continued(self, own: str, variables: Mapping[str, Any]) -> str | None:
        """Return the text with the last answer after the generation prompt; None if there is none, or `own` is it."""
        *before, answer = variables["messages"]
        context, prompt = (self._plain(variables, before, prompted) for prompted in (False, True))
        if own.startswith(prompt) or not prompt.startswith(context):
            return None
        given = prompt[len(context) :]
        for form in (answer, *_with_thought_after(given, answer)):
            turn = self._turn(variables, [*before, form])
            shown = None if turn is None else turn.replace(_HIDDEN_OPEN, OPEN).replace(_HIDDEN_CLOSE, CLOSE)
            if shown is None:
                continue
            header = "" if _BLOCKS.sub("", shown).startswith(given) else self._header(variables, before)
            if shown.startswith(header) and _BLOCKS.sub("", shown).startswith(header + given):
                return context + shown.removeprefix(header)
        return None

    def _header(self, variables: Mapping[str, Any], before: Sequence[Message]) -> str:
        """Return what the template writes before the content of a plain answer; "" if unknown."""
        turn = self._turn(variables, [*before, {"role": "assistant", "content": _END}]) or ""
        return _BLOCKS.sub("", turn.rpartition(_END)[0])

    def _turn(self, variables: Mapping[str, Any], messages: Sequence[Message]) -> str | None:
        """Return what the template writes for the last message, after the message before it; None if unknown."""
        own, context = (self._plain(variables, given, False) for given in (messages, messages[:-1]))
        if own.startswith(context):
            return own[len(context) :]
        *earlier, asked, answer = messages
        if not isinstance(asked.get("content"), str):
            return None
        ended = [*earlier, {**asked, "content": asked["content"] + _END}]
        own, context = (self._plain(variables, given, False) for given in ([*ended, answer], ended))
        end, (_, found, rest) = context.rpartition(_END)[2], own.rpartition(_END)
        return rest[len(end) :] if found and _END in context and rest.startswith(end) else None

    def _plain(self, variables: Mapping[str, Any], messages: Sequence[Message], prompted: bool) -> str:
        return super()._run({**variables, "messages": messages, "add_generation_prompt": prompted})


def _with_thought_after(given: str, answer: Message) -> Iterator[Message]:
    """Yield an answer with inline reasoning whose thought a generation prompt opens, with hidden tags.

    The opening tag, with the white space after it, is the one of the prompt.
    """
    content = answer.get("content")
    if not isinstance(content, str) or CLOSE not in content or not given.rstrip().endswith(OPEN):
        return
    whole = given[given.rindex(OPEN) :] + content.removeprefix(OPEN).lstrip("\n")
    yield {**answer, "content": whole.replace(OPEN, _HIDDEN_OPEN).replace(CLOSE, _HIDDEN_CLOSE)}
