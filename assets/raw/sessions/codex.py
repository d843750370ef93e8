"""Sessions of Codex: rollout files of one event per line, the items of the Responses API among them.

Types are those of codex-rs/protocol of openai/codex; the first versions wrote items without `type` and `payload`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Ids, Object, Session, UnfitSessionError
from tokenloom.assets.raw.sessions.responses import add_item, is_item
from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT

EVENTS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_INJECTED = ("<", "# AGENTS.md")
"""How messages of the user start that Codex wrote."""


class _Segment:
    """The items between two compactions.

    Args:
        line: the line that it starts at.
        context: the items that replace what was before; they are not trained.
    """

    def __init__(self, line: int, context: Sequence[Object] = ()):
        self.line = line
        self.items: list[tuple[int, Object, bool]] = [(line, item, False) for item in context]
        self.prompts: list[int] = []
        self.error: UnfitSessionError | None = None

    def add(self, line: int, item: Object) -> None:
        """Add an item."""
        if item.get("role") == "user" and _first_text(item).startswith("<turn_aborted>"):
            self.interrupt()
        if _is_prompt(item):
            self.prompts.append(len(self.items))
        self.items.append((line, item, True))

    def interrupt(self) -> None:
        """Do not train an answer that comes last: the turn was stopped, maybe before its end."""
        if self.items and self.items[-1][1].get("role") == "assistant":
            self.items[-1] = (*self.items[-1][:2], False)

    def roll_back(self, turns: int, session: Session) -> None:
        """Remove the last turns of the user, which the conversation left, and reject them."""
        starts = self.prompts[-turns:] if turns > 0 else []
        if starts:
            message = f"{len(self.items) - starts[0]:,} items of turns that the user took back"
            session.lose(self.items[starts[0]][0], UnfitSessionError(ABANDONED, message))
            del self.items[starts[0] :], self.prompts[-len(starts) :]


def read_session(events: Sequence[tuple[int, Any]]) -> Session:
    """Return what the events of a file hold.

    Args:
        events: the line and the value of each.
    """
    session, meta, model = Session(), dict[str, Any](), None
    segments = [_Segment(events[0][0] if events else 0)]
    for line, event in events:
        kind, payload = _parts(event)
        if kind == "response_item":
            segments[-1].add(line, payload)
        elif kind == "session_meta":
            meta = meta or payload  # a fork repeats the lines of its parent
        elif kind == "turn_context":
            model = model or payload.get("model")
        elif kind == "compacted":
            segments.append(_compacted(line, payload))
        elif kind == "event_msg" and payload.get("type") == "turn_aborted":
            segments[-1].interrupt()
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            turns = payload.get("num_turns")
            segments[-1].roll_back(turns if type(turns) is int else 0, session)
        elif kind is None:
            session.lose(line, UnfitSessionError("unknown_event", "an event has no type and payload"))
        else:
            session.unused(kind)
    _add_rows(session, segments, meta, model)
    return session


def _parts(event: Any) -> tuple[str | None, Object]:
    """Return the type and the payload of an event, which early versions wrote without both."""
    if not isinstance(event, dict):
        return None, {}
    kind, payload = event.get("type"), event.get("payload")
    if isinstance(payload, dict) and isinstance(kind, str):
        return kind, payload
    if "record_type" in event:
        return "state", {}
    if kind == "message" or is_item(event):
        return "response_item", event
    return ("session_meta", event) if kind is None and isinstance(event.get("id"), str) else (None, {})


def _compacted(line: int, payload: Object) -> _Segment:
    history, summary = payload.get("replacement_history"), payload.get("message")
    if isinstance(history, list) and all(isinstance(item, dict) for item in history):
        return _Segment(line, history)
    segment = _Segment(line, [{"type": "message", "role": "user", "content": summary}])
    if not isinstance(summary, str) or not summary.strip():
        segment.error = UnfitSessionError(NO_CONTEXT, "what replaces the compacted messages is not in the file")
    return segment


def _add_rows(session: Session, segments: Sequence[_Segment], meta: Object, model: Any) -> None:
    own, source = meta.get("id"), meta.get("source")
    spawned = source.get("subagent") if isinstance(source, dict) else None
    thread = spawned.get("thread_spawn") if isinstance(spawned, dict) else None
    thread = thread if isinstance(thread, dict) else {}
    parent = thread.get("parent_thread_id") or meta.get("forked_from_id") or meta.get("parent_thread_id")
    agent = thread.get("agent_role") or meta.get("agent_role") or (spawned if isinstance(spawned, str) else None)
    instructions = meta.get("base_instructions")
    system = instructions.get("text") if isinstance(instructions, dict) else None
    if meta.get("forked_from_id"):
        session.unused("forks, whose first turns are those of their parent", 1)
    ids = Ids()
    for segment in segments:
        if not any(is_own for _, _, is_own in segment.items):
            continue
        name, conversation = ids.name(own), Conversation()
        try:
            if segment.error:
                raise segment.error
            conversation.say("system", system)
            for line, item, is_own in segment.items:
                try:
                    silent = add_item(conversation, item, is_own)
                except UnfitSessionError as error:
                    raise UnfitSessionError(error.code, f"line {line + 1}: {error}") from error
                if silent:
                    session.unused(silent)
        except UnfitSessionError as error:
            session.lose(segment.line, error)
        else:
            _join_first(conversation.messages)
            columns = {"id": name, "parent": parent, "session": own, "agent": agent, "model": model}
            session.add(segment.line, conversation, **columns)
        parent = name


def _join_first(messages: list[Object]) -> None:
    """Join the messages of the system that come first: the instructions, and what the developer adds."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    texts = [message["content"] for message in messages[:count]]
    if count > 1 and all(isinstance(text, str) for text in texts):
        messages[:count] = [{"role": "system", "content": "\n\n".join(texts)}]


def _first_text(item: Object) -> str:
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else content
    return str(first.get("text") if isinstance(first, dict) else first).lstrip()


def _is_prompt(item: Object) -> bool:
    return item.get("role") == "user" and not _first_text(item).startswith(_INJECTED)
