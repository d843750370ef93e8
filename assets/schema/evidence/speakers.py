"""Speakers of conversations: the names of their roles in published datasets, and the fields that hold them."""

from __future__ import annotations

CALL_ROLES = ("function_call", "tool_call", "tool_calls")
"""Speakers whose message is the JSON text of one tool call, or of a list of calls, by the assistant."""

ROLE_NAMES: dict[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    **dict.fromkeys(CALL_ROLES, "assistant"),
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Names of speakers in lower case, and the role of each."""

SPEAKERS, SAID = ("role", "from", "speaker"), ("content", "value", "text", "message")
"""Fields that identify a struct as a message: the speaker, and the text."""


def role_of(name: str) -> str | None:
    """Return the role of a speaker's name, or None if it is unknown."""
    return ROLE_NAMES.get(name.strip().lower())
