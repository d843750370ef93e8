"""Trajectories of agents: messages, calls and results with notes of the agent.

- The Agent Trajectory Interchange Format (ATIF), versions 1.0 to 1.8, and the agents within a trajectory.
- SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tokenloom.assets.raw.sessions.conversation import Conversation, Ids, Object, Session, UnfitSessionError, content_of

VERSION = "ATIF-v1."
_SUMMARISING = ("claude-code", "codex")
"""Agents whose own sessions hold only reasoning that is signed or summarised, which converters copy."""


def read_atif(documents: Sequence[Any]) -> Session:
    """Return what the documents of a file hold. Rows and rejects have the number of their trajectory as line."""
    session, ids = Session(), Ids()
    for line, (document, parent) in enumerate(_all(documents, ids)):
        try:
            _add_steps(session, line, document, parent)
        except UnfitSessionError as error:
            session.lose(line, error)
    return session


def _all(documents: Sequence[Any], ids: Ids) -> Iterator[tuple[Any, str | None]]:
    """Yield each trajectory, with its name as `row_id`, and the name of its parent; sub-agents after their parent."""
    waiting: list[tuple[Any, str | None]] = [(document, None) for document in reversed(documents)]
    while waiting:
        document, parent = waiting.pop()
        if not isinstance(document, dict):
            yield document, parent
            continue
        wanted = document.get("trajectory_id") or document.get("session_id")
        name = ids.name(f"{parent}/{wanted}" if parent and isinstance(wanted, str) else wanted)
        yield {**document, "row_id": name}, parent
        within = document.get("subagent_trajectories")
        waiting += [(inner, name) for inner in reversed(within)] if isinstance(within, list) else []


def _add_steps(session: Session, line: int, document: Any, parent: str | None) -> None:
    """Add the row of a trajectory; raise UnfitSessionError for another version, or a step that is not understood."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not (isinstance(version, str) and version.startswith(VERSION)):
        raise UnfitSessionError("unknown_version", f"schema_version is {version!s:.40}, not {VERSION}0 to {VERSION}8")
    agent, steps = document.get("agent"), document.get("steps")
    agent = agent if isinstance(agent, dict) else {}
    if not isinstance(steps, list):
        raise UnfitSessionError("unknown_event", "steps is not a list")
    conversation = Conversation()
    for at, step in enumerate(steps, start=1):
        try:
            _add_step(conversation, step, agent.get("name") not in _SUMMARISING)
        except UnfitSessionError as error:
            raise UnfitSessionError(error.code, f"step {at}: {error}") from error
    tools = agent.get("tool_definitions")
    columns = {"id": document["row_id"], "parent": parent, "session": document.get("session_id")}
    named = {"agent": agent.get("name"), "model": agent.get("model_name"), "tools": tools or None}
    session.add(line, conversation, **columns, **named)


def _add_step(conversation: Conversation, step: Any, own_reasoning: bool) -> None:
    """Add a step; its reasoning if it is the model's own. What another trajectory trains, or no model wrote, is not
    trained."""
    source = step.get("source") if isinstance(step, dict) else None
    if not isinstance(step, dict) or source not in ("system", "user", "agent"):
        raise UnfitSessionError("unknown_event", f"the source is {source!s:.40}")
    message, calls = content_of(step.get("message")), step.get("tool_calls") or []
    open_calls: list[Any] = []
    if source != "agent":
        conversation.say(source, message)
    else:
        train = not step.get("is_copied_context") and step.get("llm_call_count") != 0
        conversation.end_answer()
        reasoning = step.get("reasoning_content")
        if reasoning and not own_reasoning:
            conversation.omit_reasoning()
        elif isinstance(reasoning, str):
            conversation.reasoning(reasoning, train)
        if not isinstance(message or "", str) or not isinstance(calls, list):
            raise UnfitSessionError(
                "unknown_part", "the answer has a part that is not text, or calls that are not a list"
            )
        conversation.text(message or "", train)
        for call in calls:
            if not isinstance(call, dict):
                raise UnfitSessionError("unknown_part", "a tool call is not an object")
            conversation.call(call.get("tool_call_id"), call.get("function_name"), call.get("arguments"), train)
            open_calls.append(call.get("tool_call_id"))
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    for result in results if isinstance(results, list) else []:
        content: Object = result if isinstance(result, dict) else {}
        named, text = content.get("source_call_id"), content_of(content.get("content"))
        # a result that names no call is that of the only call; else it counts as said by the user
        if named is None and len(open_calls) == 1 and len(results or ()) == 1:
            named = open_calls[0]
        if named is None:
            conversation.say("user", text)
        else:
            conversation.result(named, text or "")


_ROLES = ("system", "user", "assistant", "tool")


def read_swe_agent(documents: Sequence[Any]) -> Session:
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
            conversation = swe_agent_conversation(items)
        except UnfitSessionError as error:
            session.lose(line, error)
            continue
        columns = {"id": agent, "parent": first if agent != first else None, "agent": agent}
        session.add(line, conversation, **columns, model=None, exit_status=None if status is None else str(status))
    return session


def swe_agent_conversation(items: Sequence[Object]) -> Conversation:
    """Return the conversation of a history.

    Raises:
        UnfitSessionError: a message is not understood.
    """
    conversation = Conversation()
    for at, item in enumerate(items, start=1):
        try:
            _add_message(conversation, item)
        except UnfitSessionError as error:
            raise UnfitSessionError(error.code, f"message {at}: {error}") from error
    return conversation


def _add_message(conversation: Conversation, item: Object) -> None:
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
