"""What OpenAI's models and tools write, as conversations.

- Harmony conversations of gpt-oss, as text or as openai-harmony's objects.
- Items of the Responses API: messages, calls, outputs and reasoning.
- Sessions of Codex: rollout files of one event per line, the items of the Responses API among them. Types are those of
  codex-rs/protocol of openai/codex; the first versions wrote items without `type` and `payload`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Ids, Object, Session, UnfitSessionError, content_of
from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT
from tokenloom.resources.tables.json_text import read_json_value

START = "<|start|>"
_MESSAGE = re.compile(
    r"<\|start\|>((?:(?!<\|message\|>).)*)<\|message\|>((?:(?!<\|(?:start|end|call|return)\|>).)*)(?:<\|(?:end|call|return)\|>)?",
    re.DOTALL,
)
_HEADER = re.compile(r"\s*([^\s<]*)\s*(.*)", re.DOTALL)
_CHANNEL, _RECIPIENT = re.compile(r"<\|channel\|>\s*([^\s<]+)"), re.compile(r"\bto=([^\s<]+)")
_OTHERS = ("system", "developer", "user")


def read_harmony(text: str) -> list[Object]:
    """Return the messages of a harmony text, each with role, content, channel and recipient.

    Raises:
        UnfitSessionError: there is text outside of messages.
    """
    messages, at = list[Object](), 0
    for match in _MESSAGE.finditer(text):
        if text[at : match.start()].strip():
            break
        header = _HEADER.fullmatch(match[1])
        role, rest = header.groups() if header else ("", "")
        channel, recipient = _CHANNEL.search(rest), _RECIPIENT.search(rest)
        named = {"role": role, "content": match[2], "channel": channel and channel[1]}
        messages.append({**named, "recipient": recipient and recipient[1]})
        at = match.end()
    if text[at:].strip() not in ("", f"{START}assistant"):
        raise UnfitSessionError("unknown_part", f"text outside of messages, after character {at:,}")
    return messages


def harmony_conversation(messages: Sequence[Object]) -> Conversation:
    """Return the conversation of harmony messages.

    Raises:
        UnfitSessionError: a message is not understood.
    """
    conversation = Conversation()
    leading: list[str] = []
    for message in messages:
        author = message.get("author")
        said = {**message, **author} if isinstance(author, dict) else message
        role, content = said.get("role"), said.get("content")
        if isinstance(content, list):
            content = [_instructions(part, conversation) for part in content]
        if not isinstance(content := content_of(content), str):
            raise UnfitSessionError("unknown_part", "a message has content that is not text")
        if role in ("system", "developer") and not conversation.messages:
            leading.append(content)
            continue
        if leading:
            conversation.say("system", "\n\n".join(filter(None, leading)))
            leading = []
        channel, recipient = said.get("channel"), said.get("recipient")
        if role in _OTHERS:
            conversation.say("user" if role == "user" else "system", content)
        elif role != "assistant":
            name = said.get("name") or role
            conversation.result(None, content, key=_name(name))
        elif isinstance(recipient, str) and recipient not in ("", "all", "assistant"):
            name = _name(recipient)
            conversation.call(None, name, _arguments(content), key=name)
        elif channel == "analysis":
            conversation.reasoning(content)
        else:
            conversation.text(content, apart=True)
    conversation.say("system", "\n\n".join(filter(None, leading)))
    return conversation


def _name(value: Any) -> str:
    return str(value).removeprefix("functions.")


def _arguments(text: str) -> Any:
    """Return arguments as their JSON text; code, which some tools get, as `input`."""
    try:
        return text if isinstance(read_json_value(text), dict) else {"input": text}
    except ValueError:
        return {"input": text}


def _instructions(part: Any, conversation: Conversation) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "system_content":
        return part.get("model_identity") or ""
    if kind == "developer_content":
        spaces = part.get("tools")
        for space in spaces.values() if isinstance(spaces, dict) else []:
            listed = space.get("tools") if isinstance(space, dict) else None
            for tool in listed if isinstance(listed, list) else []:
                conversation.tools.append({"type": "function", "function": tool})
        return part.get("instructions") or ""
    return part


SILENT = {
    *("ghost_snapshot", "web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call"),
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "additional_tools"),
}
"""Items that add nothing to a message: what the server did itself, without recorded results, and notes."""
ENCRYPTED = ("compaction", "compaction_summary", "context_compaction")
_ARGUMENTS = ("arguments", "input", "action", "operation")
_ROLES = ("user", "assistant", "system", "developer")


def is_item(value: Any) -> bool:
    """Return whether a value has the type of an item other than a message."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    known = isinstance(kind, str) and (kind in SILENT or kind in ENCRYPTED or kind in ("reasoning", "item_reference"))
    return known or (isinstance(kind, str) and kind.endswith(("_call", "_call_output")))


def add_item(conversation: Conversation, item: Object, train: bool = True) -> str | None:
    """Add an item to a conversation; return its type if it is silent.

    Args:
        train: whether the assistant's words are trained.

    Raises:
        UnfitSessionError: the item is not understood, or its content is not in the data.
    """
    kind = item.get("type", "message" if "role" in item else None)
    kind = kind if isinstance(kind, str) else repr(kind)
    if kind == "message":
        _add_message(conversation, item, train)
    elif kind == "reasoning":
        # the model's own text; summaries, and what is partly encrypted, are not
        text = content_of(item.get("content") or "", "")
        if text and isinstance(text, str) and not item.get("encrypted_content"):
            conversation.reasoning(text, train)
        elif text or item.get("summary") or item.get("encrypted_content"):
            conversation.omit_reasoning()
    elif kind in SILENT:
        return kind
    elif kind in ENCRYPTED or kind == "item_reference":
        raise UnfitSessionError(NO_CONTEXT, f"an item of type {kind} replaces messages that the data does not have")
    elif kind == "mcp_call":
        call_id = item.get("id")
        conversation.call(call_id, item.get("name"), item.get("arguments"), train)
        conversation.result(call_id, item.get("output") or item.get("error") or "")
    elif kind.endswith("_output"):
        output = next((item[name] for name in ("output", "tools") if item.get(name) is not None), "")
        conversation.result(item.get("call_id"), _output(output))
    elif kind.endswith("_call"):
        name = item.get("name", kind.removesuffix("_call"))
        given = next((item[name] for name in _ARGUMENTS if item.get(name) is not None), {})
        if kind == "custom_tool_call":
            given = {"input": given}
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if value is not None and name != "type"}
        conversation.call(item.get("call_id") or item.get("id"), name, given, train)
    else:
        raise UnfitSessionError("unknown_item", f"an item of type {kind!s:.80} is not understood")
    return None


def _add_message(conversation: Conversation, item: Object, train: bool) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise UnfitSessionError("unknown_item", f"a message has the role {role!s:.80}")
    if role != "assistant":
        conversation.say("system" if role == "developer" else role, content_of(content))
        return
    parts = [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in (content if isinstance(content, list) else [content])
    ]
    text = content_of(parts, "")
    if not isinstance(text, str):
        raise UnfitSessionError("unknown_part", "an answer has a part that is not text")
    conversation.text(text, train, apart=True)


def _output(value: Any) -> Any:
    """Return the text of a call's output; objects of `content` and `success` are of early versions of Codex."""
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return value["content"]
    return content_of(value)


EVENTS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_INJECTED = ("<", "# AGENTS.md")
"""How messages of the user start that Codex wrote."""


class _Segment:
    """The items from a line on, up to the next compaction, after those that replace what was before, `context`:
    untrained."""

    def __init__(self, line: int, context: Sequence[Object] = ()):
        self.line = line
        self.items: list[tuple[int, Object, bool]] = [(line, item, False) for item in context]
        self.prompts: list[int] = []
        self.error: UnfitSessionError | None = None

    def add(self, line: int, item: Object) -> None:
        """Add an item."""
        if item.get("role") == "user" and _first_text(item).startswith("<turn_aborted>"):
            self.interrupt()
        # what Codex itself says as the user starts no turn
        if item.get("role") == "user" and not _first_text(item).startswith(_INJECTED):
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
    session_id, source = meta.get("id"), meta.get("source")
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
        name, conversation = ids.name(session_id), Conversation()
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
            # one message of the system: the instructions, and what the developer adds
            leading = [*takewhile(lambda message: message["role"] == "system", conversation.messages)]
            texts = [message["content"] for message in leading]
            if len(texts) > 1 and all(isinstance(text, str) for text in texts):
                conversation.messages[: len(texts)] = [{"role": "system", "content": "\n\n".join(texts)}]
            columns = {"id": name, "parent": parent, "session": session_id, "agent": agent, "model": model}
            session.add(segment.line, conversation, **columns)
        parent = name


def _first_text(item: Object) -> str:
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else content
    return str(first.get("text") if isinstance(first, dict) else first).lstrip()
