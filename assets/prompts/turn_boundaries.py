"""Where turns lie in what a chat template writes, for templates that do not mark what the model generates.

What it generates for a message is what the template writes between a generation prompt behind the messages before it
and the end of the message's turn. An outline is what the template writes with marks in place of all contents and of the
names of called functions; where an outline begins with that of a beginning, so do the texts of all rows of its shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, takewhile

from tokenloom.assets.columns.forms import REASONING_FIELDS
from tokenloom.assets.prompts.conversations import Message
from tokenloom.assets.prompts.verify import ShapeError
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import MARK_CLOSE, MARK_OPEN, Slot

Write = Callable[[Sequence[Message], bool, bool], str]
"""Renders messages, with or without the conversation's tools, with or without a generation prompt."""

REPEATED = "the chat template writes a message that is trained more than once"

_MARK = re.compile(f"{MARK_OPEN}([0-9]+){MARK_CLOSE}")


def mark(number: int) -> str:
    """What stands in an outline for a value."""
    return f"{MARK_OPEN}{number}{MARK_CLOSE}"


@dataclass(frozen=True)
class Region:
    """What the model generates of a message's turn, or, where all are equal, the place of an empty content.

    Args:
        begin, stop, end: characters of the outline; the turn's stop, where there is one, begins at `stop`.
        stops_behind: whether the stop, if any, stands behind the region, as it does behind plain answers.
    """

    message: int
    begin: int
    stop: int
    end: int
    stops_behind: bool = False


@dataclass
class Outline:
    """What a template makes of the conversations of one shape.

    Args:
        slots: what it writes, in order.
        messages: with marks for values; without reasoning where it leaves that out.
        owners: the message of each value.
        write: the template.
        control: the tokenizer's control tokens.
    """

    slots: Sequence[Slot]
    messages: Sequence[Message]
    owners: Sequence[int]
    write: Write
    control: Sequence[str]
    _begun: dict[tuple[int, bool, bool], str | None] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        return "".join(mark(slot.value) if slot.value >= 0 else slot.text for slot in self.slots)

    @cached_property
    def names(self) -> list[tuple[int, int]]:
        """Message of each call and its place there; the marks of their names go on from those of the values."""
        return [
            (index, place)
            for index, message in enumerate(self.messages)
            for place in range(len(message.get("tool_calls", ())))
        ]

    @cached_property
    def named(self) -> str | None:
        """The outline with marks for names too; None where the template refuses them."""
        return self.begun(len(self.messages), False) if self.names else self.text

    def begun(self, count: int, asked: bool, tools: bool = True) -> str | None:
        """The named outline of the first messages, with or without a generation prompt; None where it is refused."""
        if (count, asked, tools) not in self._begun:
            self._begun[count, asked, tools] = self._written(self._marked[:count], tools, asked)
        return self._begun[count, asked, tools]

    def check_tools(self, told: bool) -> None:
        """
        Args:
            told: whether tools are described.

        Raises:
            ShapeError: the template leaves out that description, or a call.
        """
        if told and self._written(self.messages, False, False) == self.text:
            raise ShapeError("tools_ignored", "the chat template leaves out the description of the tools")
        for number, (index, call) in enumerate(self.names):
            if mark(len(self.owners) + number) not in (self.named or "") and self._ignores(index, call):
                message = f"the chat template leaves out a tool call of message {index}"
                raise ShapeError("tool_calls_ignored", message)

    def without_reasoning(self, lost: Collection[int]) -> Outline:
        """The same of messages without the reasoning that the template leaves out."""
        messages = [
            {name: value for name, value in message.items() if index not in lost or name not in REASONING_FIELDS}
            for index, message in enumerate(self.messages)
        ]
        same = self._written(messages, True, False) == self.text
        return Outline(self.slots, messages, self.owners, self.write, self.control) if same else self

    def regions(self, messages: Sequence[int], marked: bool) -> list[Region]:
        """What the model generates of some messages beyond their contents, and where empty contents stand.

        Args:
            marked: whether the template's marks tell what is generated.

        Raises:
            ShapeError: it cannot be told for a message with calls or reasoning.
        """
        placed = {slot.value for slot in self.slots}
        found: list[Region | None] = []
        for index in messages:
            reasons = any(
                owner == index and value != index and value in placed for value, owner in enumerate(self.owners)
            )
            if not marked and (reasons or "tool_calls" in self.messages[index]):
                found.append(self.turn(index))
            elif not self.messages[index]["content"]:
                found.append(self.empty(index))
            elif not marked and self.messages[index]["role"] == "assistant":
                found.append(self.lead(index))
        return [region for region in found if region is not None]

    def turn(self, index: int) -> Region:
        """What the model generates of a message that holds calls or reasoning.

        Raises:
            ShapeError: that cannot be told.
        """
        named = self._exact
        if named is None:
            raise self._untold(index, "the template changes the names of called functions")
        begin, tools = self._begin(index, named)
        own = self._marks_of(index)
        ended = self.begun(index + 1, False, tools) or ""
        last = [found for found in _MARK.finditer(ended) if found[0] in own]
        here = [found for found in _MARK.finditer(named) if found[0] in own][: len(last)]
        if not last or [found[0] for found in last] != [found[0] for found in here]:
            raise self._untold(index, "the template writes it in another way at a conversation's end")
        end = stop = here[-1].end()
        if "tool_calls" in self.messages[index] or last[-1][0] != mark(index):
            rest = ended[last[-1].end() :].rstrip()
            if not named.startswith(rest, end):
                raise self._untold(index, "what ends it at a conversation's end does not end it here")
            stop, end = end + len(rest) - len(self.stop_of(rest)), end + len(rest)
        if set(_MARK.findall(named[begin:end])) - {found[1] for found in last}:
            raise self._untold(index, "the template writes other messages into it")
        places = [len(self._restored(named[:at])) for at in (begin, stop, end)]
        return Region(index, *places, stops_behind=self.closing == "")

    def lead(self, index: int) -> Region | None:
        """What the model generates before a message's content, where that is more than white space."""
        prompt = self._prompt
        if self._exact is None or not prompt:
            return None
        before, found, _ = self._exact.partition(mark(index))
        begun = None if not found or before.endswith(prompt) else self.begun(index, True)
        if begun is None or not before.startswith(begun) or begun == self.begun(index, False):
            return None
        lead = before[len(begun) :]
        if not lead.strip() or _MARK.search(lead):
            return None
        begin, end = (len(self._restored(text)) for text in (begun, before))
        return Region(index, begin, end, end)

    def empty(self, index: int) -> Region | None:
        """Where an empty content stands; None where the template writes something else in its place.

        Raises:
            ShapeError: in several places.
        """
        messages = list(self.messages)
        messages[index] = {**messages[index], "content": mark(index)}
        filled = self._written(messages, True, False) or ""
        if filled.count(mark(index)) > 1:
            raise ShapeError("content_repeated", REPEATED)
        before, found, after = filled.partition(mark(index))
        at = len(before)
        return Region(index, at, at, at) if found and before + after == self.text else None

    @cached_property
    def closing(self) -> str | None:
        """What the template writes behind a plain answer that ends a conversation, but for white space.

        Where a question may follow, only the lines that are written there too, if any are. None where it is not known.
        """
        plain = self._plain(self._last) if self._last >= 0 else None
        if plain is None:
            return None
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(plain[1], self._followed(self._last), strict=False))
        common = "".join(char for char, _ in alike)
        lines = common if common == plain[1] else common[: common.rfind("\n") + 1]
        return (lines if lines.strip() else plain[1]).rstrip()

    def stop_of(self, text: str) -> str:
        """What of a turn's end is its stop: as behind a plain answer, else a control token."""
        if self.closing is not None and text.endswith(self.closing):
            return self.closing
        return max((token for token in self.control if text.endswith(token)), key=len, default="")

    @cached_property
    def _last(self) -> int:
        return max((index for index, found in enumerate(self.messages) if found["role"] == "assistant"), default=-1)

    @cached_property
    def _exact(self) -> str | None:
        """The named outline where it tells the places in the outline itself."""
        return self.named if self.named is not None and self._restored(self.named) == self.text else None

    @cached_property
    def _prompt(self) -> str:
        """The generation prompt before the last answer."""
        asked, told = (self.begun(self._last, asked) or "" for asked in (True, False))
        return asked.removeprefix(told) if asked.startswith(told) else ""

    @cached_property
    def _marked(self) -> list[Message]:
        marks = iter(range(len(self.owners), len(self.owners) + len(self.names)))
        marked = []
        for message in self.messages:
            calls = [
                {**call, "function": {**call["function"], "name": mark(next(marks))}}
                for call in message.get("tool_calls", ())
            ]
            marked.append({**message, "tool_calls": calls} if calls else message)
        return marked

    def _ignores(self, index: int, place: int) -> bool:
        """Whether the template writes the same without a call."""
        calls = [call for at, call in enumerate(self.messages[index]["tool_calls"]) if at != place]
        fewer = {name: value for name, value in self.messages[index].items() if name != "tool_calls"}
        messages = list(self.messages)
        messages[index] = fewer | ({"tool_calls": calls} if calls else {})
        return self._written(messages, True, False) == self.text

    def _begin(self, index: int, named: str) -> tuple[int, bool]:
        """Where the model begins to write a message, and whether tools are told of by then."""
        for tools in (True, False):
            begun = self.begun(index, True, tools)
            if begun is None or not named.startswith(begun):
                continue
            if begun == self.begun(index, False, tools):
                plain = self._plain(index, tools)
                if plain is None or not plain[0].startswith(begun) or plain[0][len(begun) :].strip():
                    raise self._untold(index, "it has no generation prompt")
            return len(begun), tools
        raise self._untold(index, "it does not begin with the generation prompt")

    def _plain(self, index: int, tools: bool = True) -> tuple[str, str] | None:
        """What stands before a plain answer in a message's place, and behind it at the end; None where unknown."""
        plain = {"role": "assistant", "content": mark(index)}
        written = self._written([*self._marked[:index], plain], tools, False) or ""
        before, found, after = written.rpartition(mark(index))
        return (before, after) if found and not _MARK.search(after) else None

    def _followed(self, index: int) -> str:
        """What stands between a plain answer in a message's place and a question behind it; "" where unknown."""
        plain = {"role": "assistant", "content": mark(index)}
        asked = mark(len(self.owners) + len(self.names))
        question = {"role": "user", "content": asked}
        written = self._written([*self._marked[:index], plain, question], True, False) or ""
        between, found, _ = written.rpartition(mark(index))[2].partition(asked)
        return between if found and not _MARK.search(between) else ""

    def _marks_of(self, index: int) -> set[str]:
        """The marks of a message's values and calls."""
        owners = [*self.owners, *(message for message, _ in self.names)]
        return {mark(number) for number, owner in enumerate(owners) if owner == index}

    def _restored(self, named: str) -> str:
        """A part of the named outline with the names themselves."""
        count = len(self.owners)

        def restore(found: re.Match[str]) -> str:
            if int(found[1]) < count:
                return found[0]
            index, place = self.names[int(found[1]) - count]
            return self.messages[index]["tool_calls"][place]["function"]["name"]

        return _MARK.sub(restore, named)

    def _written(self, messages: Sequence[Message], tools: bool, asked: bool) -> str | None:
        try:
            return self.write(messages, tools, asked)
        except TemplateError:
            return None

    def _untold(self, index: int, reason: str) -> ShapeError:
        code, what = (
            ("tool_calls", "tool calls") if "tool_calls" in self.messages[index] else ("reasoning", "reasoning")
        )
        message = (
            f"nothing tells what is generated of message {index}, which holds {what}: {reason}; "
            "use a chat template with {% generation %} marks and train_on: completions"
        )
        return ShapeError(code, message)


def divide(slots: Sequence[Slot], regions: Sequence[Region]) -> Iterator[tuple[Slot, Region | None, bool]]:
    """The slots cut at the bounds of regions: each with the region that it lies in, and whether it is its stop.

    An empty region, where an empty content stands, is a slot of its own, with a value and no column.
    """
    at, waiting = 0, sorted((region for region in regions if region.begin == region.end), key=lambda r: r.begin)
    filled = [region for region in regions if region.begin < region.end]
    cuts = {place for region in regions for place in (region.begin, region.stop, region.end)}
    for slot in slots:
        length = len(mark(slot.value)) if slot.value >= 0 else len(slot.text)
        bounds = [at, *sorted(cut for cut in cuts if at < cut < at + length), at + length]
        for begin, end in pairwise(bounds):
            while waiting and waiting[0].begin <= begin:
                region = waiting.pop(0)
                yield Slot(region.message, "", slot.generated), region, False
            within = next((region for region in filled if region.begin <= begin < region.end), None)
            part = slot if slot.value >= 0 else Slot(-1, slot.text[begin - at : end - at], slot.generated)
            yield part, within, within is not None and begin >= within.stop
        at += length
    for region in waiting:
        yield Slot(region.message, "", 0), region, False
