"""Harmony conversations of gpt-oss, as text or as openai-harmony's objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Object, UnfitSessionError, content_of
from tokenloom.resources.tables.json_text import read_json_value

START = "<|start|>"
_MESSAGE = re.compile(
    r"<\|start\|>((?:(?!<\|message\|>).)*)<\|message\|>((?:(?!<\|(?:start|end|call|return)\|>).)*)(?:<\|(?:end|call|return)\|>)?",
    re.DOTALL,
)
_HEADER = re.compile(r"\s*([^\s<]*)\s*(.*)", re.DOTALL)
_CHANNEL, _RECIPIENT = re.compile(r"<\|channel\|>\s*([^\s<]+)"), re.compile(r"\bto=([^\s<]+)")
_OTHERS = ("system", "developer", "user")


def read_text(text: str) -> list[Object]:
    """Return the messages of a harmony text, each with role, content, channel and recipient.

    Raises:
        UnfitSessionError: there is text outside of messages.
    """
    found, at = list[Object](), 0
    for match in _MESSAGE.finditer(text):
        if text[at : match.start()].strip():
            break
        header = _HEADER.fullmatch(match[1])
        role, rest = header.groups() if header else ("", "")
        channel, recipient = _CHANNEL.search(rest), _RECIPIENT.search(rest)
        named = {"role": role, "content": match[2], "channel": channel and channel[1]}
        found.append({**named, "recipient": recipient and recipient[1]})
        at = match.end()
    if text[at:].strip() not in ("", f"{START}assistant"):
        raise UnfitSessionError("unknown_part", f"text outside of messages, after character {at:,}")
    return found


def conversation_of(messages: Sequence[Object]) -> Conversation:
    """Return the conversation of harmony messages.

    Raises:
        UnfitSessionError: a message is not understood.
    """
    conversation = Conversation()
    leading: list[str] = []
    for message in messages:
        author = message.get("author")
        said = {**message, **author} if isinstance(author, dict) else message
        role, content = said.get("role"), _text(said.get("content"), conversation)
        if role in ("system", "developer") and not conversation.messages:
            leading.append(content)
            continue
        if leading:
            conversation.say("system", "\n\n".join(filter(None, leading)))
            leading = []
        _add(conversation, said, role, content)
    conversation.say("system", "\n\n".join(filter(None, leading)))
    return conversation


def _add(conversation: Conversation, message: Object, role: Any, content: str) -> None:
    """Add a message. A role that is none of harmony's is the name of a tool.

    Raises:
        UnfitSessionError: the result's call is missing.
    """
    channel, recipient = message.get("channel"), message.get("recipient")
    if role in _OTHERS:
        conversation.say("user" if role == "user" else "system", content)
    elif role != "assistant":
        name = message.get("name") or role
        conversation.result(None, content, key=_name(name))
    elif isinstance(recipient, str) and recipient not in ("", "all", "assistant"):
        name = _name(recipient)
        conversation.call(None, name, _arguments(content), key=name)
    elif channel == "analysis":
        conversation.reasoning(content)
    else:
        conversation.text(content, apart=True)


def _name(value: Any) -> str:
    return str(value).removeprefix("functions.")


def _arguments(text: str) -> Any:
    """Return arguments as their JSON text; code, which some tools get, as `input`."""
    try:
        return text if isinstance(read_json_value(text), dict) else {"input": text}
    except ValueError:
        return {"input": text}


def _text(content: Any, conversation: Conversation) -> str:
    """Return the text of a content; of those of the system and the developer, their instructions and tools.

    Raises:
        UnfitSessionError: the content is not text.
    """
    if isinstance(content, list):
        content = [_instructions(part, conversation) for part in content]
    text = content_of(content)
    if not isinstance(text, str):
        raise UnfitSessionError("unknown_part", "a message has content that is not text")
    return text


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
