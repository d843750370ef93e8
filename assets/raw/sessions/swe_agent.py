"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`): messages with notes of the agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Object, Session, UnfitSessionError, content_of

_ROLES = ("system", "user", "assistant", "tool")


def read_trajectories(documents: Sequence[Any]) -> Session:
    """Return what a file holds: the conversation of each agent."""
    session = Session()
    document = documents[0] if len(documents) == 1 and isinstance(documents[0], dict) else {}
    history = document.get("history") or document.get("messages")
    if not isinstance(history, list) or not all(isinstance(item, dict) for item in history):
        session.lose(0, UnfitSessionError("unknown_event", "there is no history of messages"))
        return session
    by_agent: defaultdict[str | None, list[Object]] = defaultdict(list)
    for item in history:
        agent = item.get("agent")
        by_agent[agent if isinstance(agent, str) else None].append(item)
    first = next(iter(by_agent), None)
    if isinstance(attempts := document.get("attempts"), list) and attempts:
        session.unused("attempts besides the history", len(attempts))
    info = document.get("info")
    status = info.get("exit_status") if isinstance(info, dict) else None
    for line, (agent, items) in enumerate(by_agent.items()):
        try:
            conversation = conversation_of(items)
        except UnfitSessionError as error:
            session.lose(line, error)
            continue
        parent = first if agent != first else None
        columns = {"id": agent, "parent": parent, "agent": agent}
        session.add(line, conversation, **columns, model=None, exit_status=None if status is None else str(status))
    return session


def conversation_of(items: Sequence[Object]) -> Conversation:
    """Return the conversation of a history.

    Raises:
        UnfitSessionError: a message is not understood.
    """
    conversation = Conversation()
    for at, item in enumerate(items, start=1):
        try:
            _add(conversation, item)
        except UnfitSessionError as error:
            raise UnfitSessionError(error.code, f"message {at}: {error}") from error
    return conversation


def _add(conversation: Conversation, item: Object) -> None:
    role, content, ids = item.get("role"), content_of(item.get("content")), item.get("tool_call_ids")
    if role == "exit":  # mini-swe-agent's note on how the run ended
        return
    if role not in _ROLES:
        raise UnfitSessionError("unknown_event", f"the role is {role!s:.40}")
    if role == "tool":
        named = item.get("tool_call_id", ids[0] if isinstance(ids, list) and len(ids) == 1 else None)
        conversation.result(named, content or "")
    elif role != "assistant":
        conversation.say(role, content)
    else:
        train = not item.get("is_demo")
        conversation.end_answer()
        blocks = item.get("thinking_blocks")
        for _ in blocks if isinstance(blocks, list) else []:
            conversation.omit_reasoning()
        if not isinstance(content or "", str):
            raise UnfitSessionError("unknown_part", "an answer has a part that is not text")
        conversation.text(content or "", train)
        calls = item.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise UnfitSessionError("unknown_part", "a tool call has no function")
            conversation.call(call.get("id"), function.get("name"), function.get("arguments"), train)
