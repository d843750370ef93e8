"""Finds the turn boundaries in a chat template's text, for templates without `{% generation %}` blocks.

The model generates everything that the template writes for a message between the generation prompt (rendered after the
messages before it) and the end of the message's turn. This is found by comparing outlines. An outline is the text of
one shape of conversations, with marks in place of all contents and of the names of called functions. If the outline of
the first few messages is a prefix of the whole outline, the same holds for the texts of all rows of the shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import pairwise, product, takewhile

from tokenloom.assets.columns.forms import REASONING_FIELDS
from tokenloom.assets.prompts.conversations import Message
from tokenloom.assets.prompts.layout import split_control
from tokenloom.assets.prompts.spans import Piece
from tokenloom.assets.prompts.verify import ShapeError
from tokenloom.errors import TemplateError
from tokenloom.resources.templates.jinja import MARK_CLOSE, MARK_OPEN, Slot


class Prompt(IntEnum):
    """A generation prompt: none, the default one, or the one with `enable_thinking` true or false."""

    NONE = 0
    DEFAULT = 1
    THINKING = 2
    NOT_THINKING = 3


Write = Callable[[Sequence[Message], bool, int], str]
"""Renders messages; the flag adds the conversation's tools, the number is a `Prompt`."""

MARKED = "use a chat template with {% generation %} marks and train_on: completions"
EXACT = "set prompt_template.turns: exact"
"""Remedies where the text of a whole conversation does not show what the model generates of a message."""

REPEATED = "the chat template writes a trained message more than once"

_MARK = re.compile(f"{MARK_OPEN}([0-9]+){MARK_CLOSE}")


def mark(number: int) -> str:
    """Return the mark of a value in an outline."""
    return f"{MARK_OPEN}{number}{MARK_CLOSE}"


@dataclass(frozen=True)
class Region:
    """The part of the outline that the model generates for a message, or the position of an empty content.

    Args:
        message: index of the message.
        start, end: character positions in the outline; equal for an empty content.
        stop: where the turn's stop starts, within the region; `end` if the region has no stop.
        stop_follows: whether the stop, if any, comes after the region, as it does after plain answers.
    """

    message: int
    start: int
    stop: int
    end: int
    stop_follows: bool = False


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
        thinks: whether `enable_thinking` changes the generation prompt and is not set.
    """

    slots: Sequence[Slot]
    messages: Sequence[Message]
    owners: Sequence[int]
    write: Write
    control: tuple[str, ...]
    eos: str | None = None
    thinks: bool = False
    _prefixes: dict[tuple[int, int, bool], str | None] = field(default_factory=dict)
    _stops: dict[tuple[str, bool, str], str] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The outline, with the real names of called functions."""
        return "".join(mark(slot.value) if slot.value >= 0 else slot.text for slot in self.slots)

    @cached_property
    def names(self) -> list[tuple[int, int]]:
        """The message of each tool call and its index there; the marks of names are numbered after those of values."""
        return [
            (index, place)
            for index, message in enumerate(self.messages)
            for place in range(len(message.get("tool_calls", ())))
        ]

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
            self._prefixes[count, prompted, tools] = self._written(self._marked[:count], tools, prompted)
        return self._prefixes[count, prompted, tools]

    def check_tools(self, described: bool) -> None:
        """Check that the template renders tools and tool calls.

        Args:
            described: whether the conversations describe tools.

        Raises:
            ShapeError: the template omits the tools, or a tool call.
        """
        if described and self._written(self.messages, False, False) == self.text:
            raise ShapeError("tools_ignored", "the chat template omits the description of the tools")
        for number, (index, call) in enumerate(self.names):
            if mark(len(self.owners) + number) not in (self.named or "") and self._ignores(index, call):
                several = len(self.messages[index]["tool_calls"]) > 1
                remedy = (
                    "put each call into its own message" if several else "use a chat template that writes tool calls"
                )
                message = f"the chat template omits a tool call of message {index}; {remedy}"
                raise ShapeError("tool_calls_ignored", message)

    def without_reasoning(self, omitted: Collection[int]) -> Outline:
        """Return the outline of the messages without the reasoning that the template omits."""
        messages = [
            {name: value for name, value in message.items() if index not in omitted or name not in REASONING_FIELDS}
            for index, message in enumerate(self.messages)
        ]
        same = self._written(messages, True, False) == self.text
        return (
            Outline(self.slots, messages, self.owners, self.write, self.control, self.eos, self.thinks)
            if same
            else self
        )

    def regions(self, messages: Sequence[int], marked: bool) -> list[Region]:
        """Return what the model generates for some messages in addition to their contents, and where empty contents
        are.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is generated.

        Raises:
            ShapeError: the boundaries of a message with tool calls or reasoning are unknown.
        """
        placed = {slot.value for slot in self.slots}
        regions: list[Region | None] = []
        for index in messages:
            reasons = any(
                owner == index and value != index and value in placed for value, owner in enumerate(self.owners)
            )
            if not marked and (reasons or "tool_calls" in self.messages[index]):
                regions.append(self.turn(index))
            elif not self.messages[index].get("content"):
                regions.append(self.empty(index, marked))
            elif not marked and self.messages[index]["role"] == "assistant":
                regions.append(self.lead(index))
        return [region for region in regions if region is not None]

    def turn(self, index: int) -> Region:
        """Return what the model generates for a message with tool calls or reasoning.

        The turn starts after the generation prompt. Its end is found by rendering the conversation up to this message:
        what follows the message's last mark there is the end of the turn, and must follow it in the whole outline too.

        Raises:
            ShapeError: the boundaries are unknown.
        """
        named = self._exact
        if named is None:
            raise self._unknown(index, "the template changes the names of called functions")
        start, tools = self._start(index, named)
        own = self._marks_of(index)
        at_end = self.prefix(index + 1, False, tools) or ""
        if mark(index) in at_end and mark(index) not in named:
            message = f"the chat template drops the content of message {index} when messages follow; {EXACT}"
            raise ShapeError("content_dropped", message)
        last = [match for match in _MARK.finditer(at_end) if match[0] in own]
        here = [match for match in _MARK.finditer(named) if match[0] in own][: len(last)]
        if not last or [match[0] for match in last] != [match[0] for match in here]:
            raise self._unknown(index, "the template writes it differently at the end of a conversation", EXACT)
        end = stop = here[-1].end()
        if "tool_calls" in self.messages[index] or last[-1][0] != mark(index):
            rest = self._cut_after_eos(at_end[last[-1].end() :]).rstrip()
            if not named.startswith(rest, end) and self.eos:
                rest = rest.removesuffix(self.eos).rstrip()  # some templates write EOS only at a conversation's end
            if not named.startswith(rest, end):
                raise self._unknown(index, "the template ends it differently at the end of a conversation", EXACT)
            stop, end = end + len(rest) - len(self.stop_of(rest)), end + len(rest)
        if set(_MARK.findall(named[start:end])) - {match[1] for match in last}:
            results = "tool_calls" in self.messages[index] and "the results of its calls"
            raise self._unknown(index, f"the template writes {results or 'other messages'} into it")
        positions = [len(self._restored(named[:at])) for at in (start, stop, end)]
        return Region(index, *positions, stop_follows=self.closing == "")

    def lead(self, index: int) -> Region | None:
        """Return what the model generates before a message's content, or None if it is only white space or unknown."""
        prompt = self._prompt
        if self._exact is None or not prompt:
            return None
        before, found, _ = self._exact.partition(mark(index))
        prefix = None if not found or before.endswith(prompt) else self.prefix(index, True)
        if prefix is None or not before.startswith(prefix) or prefix == self.prefix(index, False):
            return None
        lead = before[len(prefix) :]
        if not lead.strip() or _MARK.search(lead):
            return None
        start, end = (len(self._restored(text)) for text in (prefix, before))
        return Region(index, start, end, end)

    def empty(self, index: int, marked: bool) -> Region | None:
        """Return the position of an empty content, or what the model generates for the message before it; None if
        unknown.

        Args:
            marked: whether the template's `{% generation %}` blocks decide what is generated.

        Raises:
            ShapeError: the template writes the content in several places.
        """
        messages = list(self.messages)
        messages[index] = {**messages[index], "content": mark(index)}
        filled = self._written(messages, True, False) or ""
        if filled.count(mark(index)) > 1:
            raise ShapeError("content_repeated", REPEATED)
        before, found, after = filled.partition(mark(index))
        at = len(before)
        prompt = "" if marked or self.messages[index]["role"] != "assistant" else self._asked(index)
        if not found or before + after != self.text:
            return self._bare(index, prompt) if prompt else None
        led = prompt and before.startswith(prompt) and not _MARK.search(before, len(prompt))
        if not led or not before[len(prompt) :].strip():
            return Region(index, at, at, at)
        return Region(index, len(prompt), at, at, stop_follows=True)

    def _bare(self, index: int, prompt: str) -> Region | None:
        """Return what the template writes for an answer without content, or None if it is unknown or nothing.

        Args:
            prompt: the text before it, with the generation prompt.
        """
        end = (self._written(self.messages[: index + 1], True, False) or "").rstrip()
        if (
            not end.startswith(prompt)
            or end == prompt
            or not self.text.startswith(end)
            or _MARK.search(end, len(prompt))
        ):
            return None
        stop = len(end) - len(self.stop_of(end[len(prompt) :]))
        return Region(index, len(prompt), stop, len(end), stop_follows=stop == len(end))

    def _asked(self, index: int) -> str:
        """Return the text before a message, with the generation prompt; "" if the template has none."""
        prompted, bare = (self._written(self.messages[:index], True, prompt) or "" for prompt in (True, False))
        return prompted if prompted != bare else ""

    @cached_property
    def closing(self) -> str | None:
        """The stop of a plain answer: what the template writes after it at the end of a conversation, right-stripped.

        Cut to the lines that the template also writes if a question follows, if there are any. None if unknown.
        """
        plain = self._plain(self._last) if self._last >= 0 else None
        if plain is None:
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(plain[1], self._followed(self._last), strict=False))
        common = "".join(char for char, _ in same)
        lines = common if common == plain[1] else common[: common.rfind("\n") + 1]
        return (lines if lines.strip() else plain[1]).rstrip()

    def stop_after(self, index: int, text: str) -> str:
        """Return the stop after a message's content: what ends its turn, up to and including EOS.

        The stop is text that the template also writes if the conversation ends with this message, so that it never
        contains the header of the next turn. Without EOS it is the control tokens that the template writes there, else
        the first control token, else `closing`.

        Args:
            text: the template's text between the content and the next value.
        """
        last = index == len(self.messages) - 1
        key = (self.messages[index]["role"], last, text)
        if key not in self._stops:
            self._stops[key] = self._stop_after(index, text, last)
        return self._stops[key]

    def _stop_after(self, index: int, text: str, last: bool) -> str:
        first = _leading_control(split_control(text, self.control), 1)
        if self.eos and first.endswith(self.eos):
            return first
        shared = self._shared(text, self._ended(index))
        texts = [piece.text for piece in shared]
        if self.eos in texts:
            return "".join(piece.text or "" for piece in shared[: texts.index(self.eos) + 1])
        if last:  # at the end of a conversation there can be more control tokens, such as a header
            answers = self.messages[index]["role"] == "assistant"
            shared = self._shared(text, self._followed(index)) if answers else []
        return _leading_control(shared) or first or self._closing_of(text)

    def _closing_of(self, text: str) -> str:
        return self.closing if self.closing and text.startswith(self.closing) else ""

    def _ended(self, index: int) -> str:
        """Return the text after a message's content if the conversation ends with this message, or ""."""
        message = {**self._marked[index], "content": mark(index)}
        written = self._written([*self._marked[:index], message], True, False) or ""
        _, found, after = written.rpartition(mark(index))
        return after if found and not _MARK.search(after) else ""

    def _shared(self, text: str, other: str) -> list[Piece]:
        """Return the pieces that two texts begin with: control tokens, and the whole texts between them."""
        pieces = zip(split_control(text, self.control), split_control(other, self.control), strict=False)
        return [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pieces)]

    def _cut_after_eos(self, text: str) -> str:
        """Return a text up to and including the first EOS, or the whole text."""
        before, found, _ = text.partition(self.eos) if self.eos else (text, "", "")
        return before + found

    def stop_of(self, text: str) -> str:
        """Return the stop at the end of a turn's text: `closing`, else a control token, else ""."""
        if self.closing is not None and text.endswith(self.closing):
            return self.closing
        return max((token for token in self.control if text.endswith(token)), key=len, default="")

    @cached_property
    def _last(self) -> int:
        """The index of the last answer, or -1."""
        return max((index for index, turn in enumerate(self.messages) if turn["role"] == "assistant"), default=-1)

    @cached_property
    def _exact(self) -> str | None:
        """The named outline if putting the names back gives the outline itself, else None."""
        return self.named if self.named is not None and self._restored(self.named) == self.text else None

    @cached_property
    def _prompt(self) -> str:
        """The generation prompt before the last answer."""
        prompted, without = (self.prefix(self._last, prompted) or "" for prompted in (True, False))
        return prompted.removeprefix(without) if prompted.startswith(without) else ""

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
        messages = list(self.messages)
        messages[index] = fewer | ({"tool_calls": calls} if calls else {})
        return self._written(messages, True, False) == self.text

    def _start(self, index: int, named: str) -> tuple[int, bool]:
        """Return where the model starts to write a message, and whether tools are described before it.

        Raises:
            ShapeError: no generation prompt is a prefix of the outline.
        """
        prompts = list(Prompt)[1:] if self.thinks else [Prompt.DEFAULT]
        for prompt, tools in product(prompts, (True, False)):
            prefix = self.prefix(index, prompt, tools)
            if prefix is None or not named.startswith(prefix):
                continue
            if prefix == self.prefix(index, False, tools):
                return self._start_of_plain(index, prefix, named, tools), tools
            return len(prefix), tools
        for tools in (
            True,
            False,
        ):  # a generation prompt can begin as the turn does and go on, for example with <think>
            prompt, header = self.prefix(index, True, tools) or "", self._header(index, tools)
            if header and prompt.startswith(header) and named.startswith(header):
                return len(header), tools
        raise self._unknown(index, "it does not start with the generation prompt")

    def _start_of_plain(self, index: int, prefix: str, named: str, tools: bool) -> int:
        """Return where a message starts that the template does not prompt for: after the header of a plain answer.

        Raises:
            ShapeError: the template has no generation prompt, or writes the message without that header.
        """
        plain, _ = self._plain(index, tools) or ("", "")
        header = plain[len(prefix) :] if plain.startswith(prefix) else None
        if header is not None and not header.strip():
            return len(prefix)
        answers = (at for at, message in enumerate(self.messages) if message["role"] == "assistant")
        if header is None or not named.startswith(plain) or not any(map(self._asked, answers)):
            raise self._unknown(index, "the template has no generation prompt")
        return len(plain)

    def _header(self, index: int, tools: bool) -> str:
        """Return the text before a plain answer that replaces a message in its place, if it ends with a header."""
        plain = {"role": "assistant", "content": mark(index)}
        messages = [*self._marked[:index], plain, *self._marked[index + 1 :]]
        before, found, _ = (self._written(messages, tools, False) or "").partition(mark(index))
        return before if found and len(before) > len(self.prefix(index, False, tools) or "") else ""

    def _plain(self, index: int, tools: bool = True) -> tuple[str, str] | None:
        """Return the text before and after a plain answer that replaces a message, as the last message; or None."""
        plain = {"role": "assistant", "content": mark(index)}
        written = self._written([*self._marked[:index], plain], tools, False) or ""
        before, found, after = written.rpartition(mark(index))
        return (before, after) if found and not _MARK.search(after) else None

    def _followed(self, index: int) -> str:
        """Return the text between a plain answer that replaces a message and a question after it, or ""."""
        plain = {"role": "assistant", "content": mark(index)}
        question_mark = mark(len(self.owners) + len(self.names))
        question = {"role": "user", "content": question_mark}
        written = self._written([*self._marked[:index], plain, question], True, False) or ""
        between, found, _ = written.rpartition(mark(index))[2].partition(question_mark)
        return between if found and not _MARK.search(between) else ""

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

        return _MARK.sub(restore, named)

    def _written(self, messages: Sequence[Message], tools: bool, prompted: int) -> str | None:
        """Render messages; None if the template refuses them."""
        try:
            return self.write(messages, tools, prompted)
        except TemplateError:
            return None

    def _unknown(self, index: int, reason: str, remedy: str = MARKED) -> ShapeError:
        calls = "tool_calls" in self.messages[index]
        message = (
            f"cannot determine what the model generates of message {index}, which has "
            f"{'tool calls' if calls else 'reasoning'}: {reason}; {remedy}"
        )
        return ShapeError("tool_calls" if calls else "reasoning", message)


def _leading_control(pieces: Sequence[Piece], most: int | None = None) -> str:
    """Return the control tokens that some pieces begin with and the white space before each, or ""."""
    run = list(takewhile(lambda piece: piece.control or not (piece.text or "").strip(), pieces))
    ends = [number for number, piece in enumerate(run, 1) if piece.control][:most]
    return "".join(piece.text or "" for piece in run[: ends[-1]]) if ends else ""


def divide(slots: Sequence[Slot], regions: Sequence[Region]) -> Iterator[tuple[Slot, Region | None, bool]]:
    """Yield the slots, cut at the bounds of regions: each with its region, or None, and whether it is the stop.

    An empty region (an empty content) becomes a slot with a value and no column.
    """
    at, waiting = 0, sorted((region for region in regions if region.start == region.end), key=lambda r: r.start)
    filled = [region for region in regions if region.start < region.end]
    cuts = {position for region in regions for position in (region.start, region.stop, region.end)}
    for slot in slots:
        length = len(mark(slot.value)) if slot.value >= 0 else len(slot.text)
        bounds = [at, *sorted(cut for cut in cuts if at < cut < at + length), at + length]
        for start, end in pairwise(bounds):
            while waiting and waiting[0].start <= start:
                region = waiting.pop(0)
                yield Slot(region.message, "", slot.generated), region, False
            within = next((region for region in filled if region.start <= start < region.end), None)
            part = slot if slot.value >= 0 else Slot(-1, slot.text[start - at : end - at], slot.generated)
            yield part, within, within is not None and start >= within.stop
        at += length
    for region in waiting:
        yield Slot(region.message, "", 0), region, False
