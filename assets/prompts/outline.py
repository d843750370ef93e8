"""The outline of a chat template: the text that it writes for one shape of conversations, with marks for the values.

If the outline of the first few messages is a prefix of the whole outline, the same holds for the texts of all rows of
the shape. Turn boundaries and stops are found by comparing outlines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, Self

from tokenloom.assets.stage.forms import REASONING_FIELDS
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import Slot
from tokenloom.resources.templates.marks import MARK, MARK_CLOSE, MARK_OPEN, mark

Message = dict[str, Any]
"""A message in the form that templates get."""


class ShapeError(TemplateError):
    """The rows of a shape cannot be used; `code` is their reject code.

    Args:
        remedy: what helps, if it is not in the message. Exact turns can help instead.
    """

    def __init__(self, code: str, message: str, remedy: str = ""):
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.code, self.message, self.remedy = code, message, remedy


class Prompt(IntEnum):
    """A generation prompt: none, the default one, or the one with `enable_thinking` true or false."""

    NONE = 0
    DEFAULT = 1
    THINKING = 2
    NOT_THINKING = 3


Write = Callable[[Sequence[Message], bool, int], str]
"""Renders messages; the flag adds the conversation's tools, the number is a `Prompt`."""


@dataclass
class Outline:
    """The text that a template writes for the conversations of one shape.

    Args:
        slots: the parts of the text, in order.
        messages: the messages with marks for values; without reasoning that the template omits.
        owners: the index of each value's message.
        write: renders messages through the template.
        control: the tokenizer's control tokens.
        eos: the tokenizer's EOS token, or None.
        prompts: the generation prompts that inference can choose from.
    """

    slots: Sequence[Slot]
    messages: Sequence[Message]
    owners: Sequence[int]
    write: Write
    control: tuple[str, ...]
    eos: str | None = None
    prompts: Sequence[Prompt] = (Prompt.DEFAULT,)
    _prefixes: dict[tuple[int, int, bool], str | None] = field(default_factory=dict, init=False)

    @cached_property
    def text(self) -> str:
        """The outline, with the real names of called functions."""
        return "".join(mark(slot.value) if slot.value >= 0 else slot.text for slot in self.slots)

    @cached_property
    def names(self) -> list[tuple[int, int]]:
        """All tool calls, as message and index in it. Their names have marks, numbered after those of values."""
        counts = [len(message.get("tool_calls", ())) for message in self.messages]
        return [(index, place) for index, count in enumerate(counts) for place in range(count)]

    @cached_property
    def named(self) -> str | None:
        """The outline with marks for names too, or None if the template refuses them."""
        return self.prefix(len(self.messages), False) if self.names else self.text

    def prefix(self, count: int, prompted: int, tools: bool = True) -> str | None:
        """Return the named outline of the first `count` messages, or None if the template refuses them.

        Args:
            prompted: the generation prompt to add, a `Prompt`.
            tools: whether to describe the tools.
        """
        if (count, prompted, tools) not in self._prefixes:
            self._prefixes[count, prompted, tools] = self.written(self._marked[:count], tools, prompted)
        return self._prefixes[count, prompted, tools]

    def check_tools(self, described: bool) -> None:
        """Check that the template renders tools and tool calls.

        Args:
            described: whether the conversations describe tools.

        Raises:
            ShapeError: the template omits the tools, or a tool call.
        """
        if described and self.written(self.messages, tools=False) == self.text:
            raise ShapeError("tools_ignored", "the chat template omits the description of the tools")
        written = {match[0] for match in MARK.finditer(self.named or "")} if self.names else set[str]()
        for number, (index, call) in enumerate(self.names):
            if mark(len(self.owners) + number) not in written and self._ignores(index, call):
                alone = len(self.messages[index]["tool_calls"]) == 1
                remedy = "use a chat template that writes tool calls" if alone else "put each call into its own message"
                message = f"the chat template omits a tool call of message {index}; {remedy}"
                raise ShapeError("tool_calls_ignored", message)

    def without_reasoning(self, omitted: Collection[int]) -> Self:
        """Return the outline of the messages without the reasoning that the template omits."""
        messages = [
            {name: value for name, value in message.items() if index not in omitted or name not in REASONING_FIELDS}
            for index, message in enumerate(self.messages)
        ]
        return replace(self, messages=messages) if self.written(messages) == self.text else self

    @cached_property
    def _last(self) -> int:
        """The index of the last answer, or -1."""
        return max((index for index, turn in enumerate(self.messages) if turn["role"] == "assistant"), default=-1)

    @cached_property
    def _marked(self) -> list[Message]:
        """The messages with marks for the names of called functions too."""
        marks = iter(range(len(self.owners), len(self.owners) + len(self.names)))
        marked = []
        for message in self.messages:
            calls = [
                {**call, "function": {**call["function"], "name": mark(next(marks))}}
                for call in message.get("tool_calls", ())
            ]
            marked.append({**message, "tool_calls": calls} if calls else message)
        return marked

    def _ignores(self, index: int, omitted: int) -> bool:
        """Return whether the template writes the same without one of a message's calls."""
        calls = [call for number, call in enumerate(self.messages[index]["tool_calls"]) if number != omitted]
        fewer = {name: value for name, value in self.messages[index].items() if name != "tool_calls"}
        return self.with_message(index, fewer | ({"tool_calls": calls} if calls else {})) == self.text

    def around(
        self, index: int, message: Message | None = None, after: Sequence[Message] = (), tools: bool = True
    ) -> tuple[str, str] | None:
        """Return the texts before and after a content, if a message is put in the place of one; None if it is omitted.

        Args:
            message: the message; default: a plain answer.
            after: the messages after it.
        """
        said = {**(message or {"role": "assistant"}), "content": mark(index)}
        written = self.written([*self._marked[:index], said, *after], tools) or ""
        before, content, rest = written.rpartition(mark(index))
        return (before, rest) if content else None

    def _ended(self, index: int, message: Message | None = None, tools: bool = True) -> tuple[str, str] | None:
        """Return the texts around a content at the end of a conversation, as `around` does; None if unknown."""
        texts = self.around(index, message, tools=tools)
        return None if texts is None or MARK.search(texts[1]) else texts

    def _followed(self, index: int, by: str = "user") -> str:
        """Return the text between a plain answer that replaces a message and one of a role after it, or ""."""
        following = {"role": by, "content": mark(len(self.owners) + len(self.names))}
        _, rest = self.around(index, after=[following]) or ("", "")
        between, question, _ = rest.partition(following["content"])
        return between if question and not MARK.search(between) else ""

    def _marks_of(self, index: int) -> set[str]:
        """Return the marks of a message's values and calls."""
        owners = [*self.owners, *(message for message, _ in self.names)]
        return {mark(number) for number, owner in enumerate(owners) if owner == index}

    def _restored(self, named: str) -> str:
        """Return a part of the named outline with the real names of called functions."""
        count = len(self.owners)

        def restore(match: re.Match[str]) -> str:
            if int(match[1]) < count:
                return match[0]
            index, number = self.names[int(match[1]) - count]
            return self.messages[index]["tool_calls"][number]["function"]["name"]

        return MARK.sub(restore, named)

    def with_message(self, index: int, message: Message) -> str | None:
        """Render the messages with another one in the place of one; None if the template refuses them."""
        return self.written([*self.messages[:index], message, *self.messages[index + 1 :]])

    def written(self, messages: Sequence[Message], tools: bool = True, prompted: int = Prompt.NONE) -> str | None:
        """Render messages; None if the template refuses them."""
        return attempt(self.write, messages, tools, prompted)


def attempt(write: Callable[..., str], *given: Any) -> str | None:
    """Return what a template writes; None if it refuses what it is given."""
    try:
        return write(*given)
    except TemplateError:
        return None


def inserted(whole: str, without: str, control: tuple[str, ...]) -> tuple[int, int]:
    """Return where the part of a text is that another one lacks; marks and control tokens are compared as a whole."""
    both = [_atoms(control).split(text) for text in (whole, without)]
    # the text can be at several places, as `ab` in `abab`: it is the last of these
    start = _common(*both)
    backwards = ([atom[::-1] for atom in reversed(atoms)] for atoms in both)
    return start, len(whole) - min(_common(*backwards), len(without) - start, len(whole) - start)


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many items, or characters, two sequences have in common at their start."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)


def _common(one: list[str], other: list[str]) -> int:
    """Return the number of characters that two texts have in common at their start.

    Args:
        one, other: the texts in parts; parts with odd numbers have nothing in common with other parts.
    """
    same = alike(one, other)
    shared = sum(map(len, one[:same]))
    if same % 2 == 0 and same < min(len(one), len(other)):
        shared += alike(one[same], other[same])
    return shared


@lru_cache(maxsize=16)
def _atoms(control: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(control, key=lambda token: (-len(token), token))
    return re.compile(f"({'|'.join([f'{MARK_OPEN}[0-9]+{MARK_CLOSE}', *map(re.escape, longest_first)])})")
