"""A conversation in OpenAI's shape, built from what a session records, one event at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT

NOT_MODEL_TEXT = "reasoning that is signed, encrypted or summarised"
UNUSED = "unused "
"""Start of the counters of events that no row uses; their type follows."""
WITHOUT_RESULT = "calls without a result"
WITHOUT_TOOLS = "sessions without tool definitions"
TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_DROPPED = (ABANDONED, NO_CONTEXT)
_LONGEST, _MOST = 80, 64
"""Characters of the name of a counter, and counters of a session."""

Object = dict[str, Any]


class UnfitSessionError(ValueError):
    """A row that a session cannot give: the reject's code, and the reason in words."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Lost(NamedTuple):
    """A part of a session that is rejected.

    Args:
        line: its line in the record, or the number of its trajectory, from 0.
        code: the reason, for programs.
        message: the reason, for people.
    """

    line: int
    code: str
    message: str


class Row(NamedTuple):
    """A conversation of a session.

    Args:
        line: see `Lost`.
        columns: values by name; None for missing ones.
    """

    line: int
    columns: Object


@dataclass
class Session:
    """What a record holds.

    Attributes:
        rows: its conversations.
        lost: its rejected parts, and records of those that are dropped.
        filtered: the number of conversations without an answer, and of dropped parts.
        counts: of what is not used.
    """

    rows: list[Row] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    filtered: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, line: int, conversation: Conversation, **columns: Any) -> None:
        """Add the row of a conversation, or filter it if nobody answers.

        Args:
            columns: `id`, `parent`, `session`, `agent`, `model` and others.
        """
        messages = conversation.closed()
        self.counts += conversation.counts
        names = list(dict.fromkeys(conversation.names))
        if not any(message["role"] == "assistant" for message in messages):
            self.filtered += 1
            self.unused("conversations without an answer")
            return
        if names and not columns.get("tools"):
            self.counts[WITHOUT_TOOLS] += 1
        self.rows.append(Row(line, {"messages": messages, **columns, "called": names or None}))

    def unused(self, kind: Any, count: int = 1) -> None:
        """Count events of a type that no row uses."""
        name = f"{UNUSED}{kind}"
        named = len(name) <= _LONGEST and (name in self.counts or len(self.counts) < _MOST)
        self.counts[name if named else f"{UNUSED}others"] += count

    def lose(self, line: int, error: UnfitSessionError) -> None:
        """Add a part that is rejected or dropped."""
        self.filtered += error.code in _DROPPED
        self.lost.append(Lost(line, error.code, str(error)))


class Conversation:
    """Builds the messages of one row.

    The parts of an answer are added to the current assistant message until someone else speaks. Results take the name
    of their call. Reasoning that is not the model's own text is counted and left out.

    Attributes:
        messages: in OpenAI's shape; untrained answers have `train: false`.
        counts: what was left out.
        names: the names of the called tools.
        tools: the definitions of tools that the messages contain.
    """

    def __init__(self) -> None:
        self.messages: list[Object] = []
        self.counts: Counter[str] = Counter()
        self.names: list[str] = []
        self.tools: list[Object] = []
        self._answer: Object | None = None
        self._answers: list[Object] = []  # their texts are lists of parts until they are closed
        self._open: dict[Any, deque[str]] = {}

    def say(self, role: str, content: Any) -> None:
        """Add a message of the system or the user, unless it is empty."""
        if content not in ("", None, []):
            self._answer = None
            self.messages.append({"role": role, "content": content})

    def end_answer(self) -> None:
        """Let what the assistant says next be another message."""
        self._answer = None

    def text(self, text: str, train: bool = True, apart: bool = False) -> None:
        """Add text to the answer.

        Args:
            apart: whether it is a message of its own if the answer has text and no calls.
        """
        if text:
            if apart and self._answer and self._answer["content"] and "tool_calls" not in self._answer:
                self._answer = None
            self._current(train)["content"].append(text)

    def reasoning(self, text: str, train: bool = True) -> None:
        """Add the model's own reasoning, to a message of its own if the answer has text or calls already."""
        if text:
            answer = self._current(train)
            if answer["content"] or "tool_calls" in answer:
                self._answer = None
                answer = self._current(train)
            answer.setdefault("reasoning_content", []).append(text)

    def omit_reasoning(self) -> None:
        """Count a piece of reasoning that is not the model's own text."""
        self.counts[NOT_MODEL_TEXT] += 1

    def call(self, call_id: Any, name: Any, arguments: Any, train: bool = True, key: str | None = None) -> None:
        """Add a tool call to the answer.

        Args:
            key: what pairs it with its result; default: its id.

        Raises:
            UnfitSessionError: the name is not text.
        """
        if not isinstance(name, str) or not name or not isinstance(call_id, str | None):
            raise UnfitSessionError("unknown_part", "a tool call has no name, or an id that is not text")
        function = {"name": name, "arguments": {} if arguments is None else arguments}
        identity = {} if call_id is None else {"id": call_id}
        self._current(train).setdefault("tool_calls", []).append({**identity, "type": "function", "function": function})
        # calls without ids share a queue: results take them in order
        self._open.setdefault(key or call_id, deque()).append(name)
        self.names.append(name)

    def result(self, call_id: Any, content: Any, key: str | None = None) -> None:
        """Add the result of the earliest call with that id, or key, that has none.

        Raises:
            UnfitSessionError: there is no such call.
        """
        pair = key or call_id
        waiting = self._open.get(pair) if isinstance(pair, str | None) else None
        if not waiting:
            raise UnfitSessionError("result_without_call", f"a result names the call {pair!r:.80}, which is missing")
        self._answer = None
        identity = {} if call_id is None else {"tool_call_id": call_id}
        self.messages.append({"role": "tool", **identity, "name": waiting.popleft(), "content": content})

    def closed(self) -> list[Object]:
        """Return the messages, and count the calls without a result."""
        if missing := sum(map(len, self._open.values())):
            self.counts[WITHOUT_RESULT] += missing
        for answer in self._answers:
            answer |= {name: "".join(answer[name]) for name in ("content", "reasoning_content") if name in answer}
        return self.messages

    def _current(self, train: bool) -> Object:
        if self._answer is None or self._answer.get("train", True) != train:
            self._answer = {"role": "assistant", "content": [], **({} if train else {"train": False})}
            self.messages.append(self._answer)
            self._answers.append(self._answer)
        return self._answer


def content_of(value: Any, separator: str = "\n\n") -> Any:
    """Return a content that is a text or a list of text parts as text; other contents are not changed."""
    if not isinstance(value, list):
        return value
    texts = [text_of(part) for part in value]
    return value if None in texts else separator.join(text for text in texts if text)


def text_of(part: Any) -> str | None:
    """Return the text of a content part, or None."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in TEXT_PARTS else part
    return text if isinstance(text, str) else None


def notices_of(counters: Mapping[str, int]) -> list[str]:
    """Return what a build reports about sessions, as sentences, given the counters of its rows."""
    notices: list[str] = []
    if pieces := counters.get(NOT_MODEL_TEXT):
        notices.append(f"{pieces:,} pieces of reasoning are not used: they are signed, encrypted or summarised")
    if calls := counters.get(WITHOUT_RESULT):
        notices.append(f"{calls:,} tool calls have no result")
    if rows := counters.get(WITHOUT_TOOLS):
        notices.append(f"{rows:,} sessions call tools that they do not define; the column called has their names")
    unused = {name.removeprefix(UNUSED): count for name, count in counters.items() if name.startswith(UNUSED)}
    if unused:
        listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(unused.items()))
        notices.append(f"events of sessions that no row uses: {listed}")
    return notices


class Ids:
    """Names the rows of a record: the first of a session by its id, the others with a number."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def name(self, wanted: Any) -> str | None:
        """Return an id that no other row has; None if none is wanted."""
        if not isinstance(wanted, str):
            return None
        self._seen[wanted] += 1
        return wanted if self._seen[wanted] == 1 else f"{wanted}#{self._seen[wanted]}"
