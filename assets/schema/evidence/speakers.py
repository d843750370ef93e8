"""Speakers of conversations: the names of their roles in published datasets, and the fields that hold them."""

from __future__ import annotations

from collections.abc import Collection

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

SPEAKING_PAIR = ("human", "user")
"""Names of the first text of a pair that say that the pair is two turns of a conversation."""

_ASKED = (*SPEAKING_PAIR, "prompt", "instruction", "input", "question", "query")
_ANSWERED = (
    *("assistant", "gpt", "bot", "ai", "chatbot", "chatgpt", "response", "output", "answer", "completion", "reply"),
)

SPEAKERS, SAID = ("role", "from", "speaker"), ("content", "value", "text", "message")
"""Fields that identify a struct as a message: the speaker, and the text."""


def role_of(name: str) -> str | None:
    """Return the role of a speaker's name, or None if it is unknown."""
    return ROLE_NAMES.get(name.strip().lower())


def pair_of(names: Collection[str]) -> tuple[str, str] | None:
    """Find the two fields of an object with what a user says and what is answered; None for other objects."""
    asked, answered = ([name for name in names if name.lower() in known] for known in (_ASKED, _ANSWERED))
    named = len(asked) == len(answered) == 1 and not {*SPEAKERS, *SAID} & {*names}
    return (asked[0], answered[0]) if named else None


def columns_of_turns(names: Collection[str]) -> tuple[str, str] | None:
    """Return the two fields of an object of lists that hold the speakers and their texts; None for other objects."""
    found = [next((name for name in known if name in names), "") for known in (SPEAKERS, SAID)]
    return (found[0], found[1]) if all(found) else None
