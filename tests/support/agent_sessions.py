"""Made sessions of agents with a known truth: what was said, by whom, and what may be trained.

Each word is used once, so that a test can find it. The writers know nothing of the readers.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
TOOL: Object = {"type": "function", "function": {"name": "Bash", "description": "Run a command.", "parameters": {}}}
"""The definition of a tool, which trajectories in ATIF have."""


@dataclass
class Turn:
    """What the assistant says at once, with the results of its calls.

    Args:
        own: reasoning that is the model's own text.
        hidden: reasoning that is signed, encrypted or a summary.
        calls: id, name, arguments and result of each; a result of None is missing.
    """

    text: str = ""
    own: str = ""
    hidden: str = ""
    calls: list[tuple[str, str, Object, str | None]] = field(default_factory=list)
    train: bool = True


@dataclass
class Made:
    """A session in some format.

    Args:
        content: the file, or the value of a row.
        rows: the parent's place among the rows, or None, and the messages of each row.
        dropped: words that no row may have.
        branches: the number of abandoned branches.
    """

    content: Any
    rows: list[tuple[int | None, list[Object]]]
    dropped: list[str] = field(default_factory=list)
    branches: int = 0


class Maker:
    """Makes sessions from a seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self._ids = itertools.count(1000 * seed)

    def id(self, start: str = "id") -> str:
        return f"{start}_{next(self._ids):07d}"

    def words(self, start: str) -> str:
        return " ".join(self.id(start) for _ in range(self.random.randint(1, 4))) + self.random.choice(
            ["", ".", " ü\n…"]
        )

    def often(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def turn(self, own: bool, hidden: bool, calls: bool = True, unanswered: bool = False, most: int = 3) -> Turn:
        """Make a turn; it has text or calls."""
        turn = Turn(self.words("said") if self.often(0.8) else "")
        turn.own = self.words("thought") if own and self.often() else ""
        turn.hidden = self.words("hidden") if hidden and not turn.own and self.often() else ""
        for _ in range(self.random.randint(0 if turn.text else 1, most) if calls else 0):
            arguments = {"command": self.words("argued"), "n": self.random.choice([1, 2.5, None, True, [], {"a": "é"}])}
            result = None if unanswered and self.often(0.2) else self.words("result")
            turn.calls.append((self.id("call"), self.random.choice(["Bash", "Read", "mcp__a__b"]), arguments, result))
        turn.text = turn.text or ("" if turn.calls else self.words("said"))
        return turn

    def talk(self, **kinds: Any) -> list[str | Turn]:
        """Make questions, each with the turns that answer it."""
        found: list[str | Turn] = []
        for _ in range(self.random.randint(1, 3)):
            found.append(self.words("asked"))
            for _ in range(self.random.randint(1, 3)):
                turn, before = self.turn(**kinds), found[-1]
                if isinstance(before, Turn) and not before.calls and not turn.text:
                    turn.text = self.words("said")  # else formats of items would make one message of both
                found.append(turn)
        return found


def expected(talk: list[str | Turn], system: str = "", ids: bool = True, as_text: bool = False) -> list[Object]:
    """Return the messages of a talk in OpenAI's shape.

    Args:
        ids: whether the format has ids of calls.
        as_text: whether arguments are JSON text.
    """
    messages: list[Object] = [{"role": "system", "content": system}] if system else []
    for said in talk:
        if isinstance(said, str):
            messages.append({"role": "user", "content": said})
            continue
        message: Object = {"role": "assistant", "content": said.text}
        message |= {} if said.train else {"train": False}
        message |= {"reasoning_content": said.own} if said.own else {}
        calls = []
        for call_id, name, arguments, _ in said.calls:
            given = json.dumps(arguments) if as_text else arguments
            calls.append({**({"id": call_id} if ids else {}), "type": "function"})
            calls[-1]["function"] = {"name": name, "arguments": given}
        messages.append({**message, **({"tool_calls": calls} if calls else {})})
        for call_id, name, _, result in said.calls:
            if result is not None:
                identity = {"tool_call_id": call_id} if ids else {}
                messages.append({"role": "tool", **identity, "name": name, "content": result})
    return messages


def hidden_in(talk: list[str | Turn]) -> list[str]:
    return [word for said in talk if isinstance(said, Turn) for word in said.hidden.split() if "_" in word]


class _ClaudeFile:
    def __init__(self, maker: Maker, session: str):
        self.maker, self.session, self.lines = maker, session, list[Object]()

    def add(self, parent: str | None, kind: str, message: Object | None = None, **more: Any) -> str:
        uuid = self.maker.id("uuid")
        event = {
            "parentUuid": parent,
            "isSidechain": False,
            "sessionId": self.session,
            "version": "2.1.9",
            "type": kind,
        }
        event |= {"uuid": uuid, "timestamp": "2026-01-01T00:00:00Z"} | ({"message": message} if message else {})
        self.lines.append(event | more)
        if kind == "user" and message and self.maker.often(0.2):
            self.lines.append(dict(self.lines[-1]))  # an exact repetition
        return uuid

    def note(self) -> None:
        kind = self.maker.random.choice(["file-history-snapshot", "queue-operation", "last-prompt", "mode"])
        self.lines.append({"type": kind, "sessionId": self.session, "content": self.maker.words("noted")})

    def say(self, parent: str | None, text: str, **more: Any) -> str:
        parts = [{"type": "text", "text": text}]
        return self.add(parent, "user", {"role": "user", "content": text if self.maker.often() else parts}, **more)

    def answer(self, parent: str, turn: Turn, **more: Any) -> str:
        """Add one line per part, and the results: below their own call's line, or one after the other."""
        message_id, parts, leaves = self.maker.id("msg"), list[Object](), self.maker.often()
        if turn.hidden:
            signed = {"type": "thinking", "thinking": turn.hidden, "signature": "EqQB"}
            parts.append(signed if self.maker.often() else {"type": "redacted_thinking", "data": turn.hidden})
        parts += [{"type": "thinking", "thinking": turn.own, "signature": ""}] if turn.own else []
        parts += [{"type": "text", "text": turn.text}] if turn.text else []
        parts += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a, _ in turn.calls]
        at = parent
        below: dict[str, str] = {}
        for part in parts:
            message = {"id": message_id, "role": "assistant", "model": "claude-x", "content": [part]}
            at = self.add(at, "assistant", message, **more)
            below[part.get("id", "")] = at
            if self.maker.often(0.1):
                at = self.add(at, "progress", None, data={"text": self.maker.words("noted")}, **more)
            if self.maker.often(0.1):
                self.note()
        last = at
        for call_id, _, _, result in turn.calls:
            if result is not None:
                content = result if self.maker.often() else [{"type": "text", "text": result}]
                block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
                message = {"role": "user", "content": [block]}
                last = self.add(below[call_id] if leaves else last, "user", message, toolUseResult=result, **more)
        return last

    def talk(self, parent: str | None, talk: list[str | Turn], **more: Any) -> str:
        for said in talk:
            parent = (
                self.say(parent, said, **more) if isinstance(said, str) else self.answer(parent or "", said, **more)
            )
        return parent or ""


def claude_code(seed: int, own: bool = True) -> Made:
    """Make a session of Claude Code with retries, side chains, compactions, and a last line that is being written.

    Args:
        own: whether there is reasoning that is the model's own text.
    """
    maker = Maker(seed)
    file = _ClaudeFile(maker, f"session-{seed}")
    kinds = {"own": own, "hidden": True, "unanswered": True}
    rows, dropped, branches = list[tuple[int | None, list[Object]]](), list[str](), 0
    main: int | None = None
    logical: str | None = None
    for segment in range(maker.random.randint(1, 3)):
        parent: str | None = None
        if segment:
            parent = file.add(
                None, "system", subtype="compact_boundary", logicalParentUuid=logical, content="Compacted"
            )
        talk = maker.talk(**kinds)
        dropped += hidden_in(talk)
        place = len(rows)
        rows.append((main, expected(talk)))
        main = place
        for said in talk:
            if isinstance(said, str):
                if maker.often(0.3) and parent is not None:  # a question that is taken back, with its answer
                    lost = [maker.words("lost"), Turn(maker.words("lost"))]
                    dropped.append("lost_")
                    file.talk(parent, lost)
                    branches += 1
                parent = file.say(parent, said, **({"isCompactSummary": True} if segment and said is talk[0] else {}))
            else:
                parent = file.answer(parent or "", said)
                if maker.often(0.2):
                    failed = {
                        "role": "assistant",
                        "model": "<synthetic>",
                        "content": [{"type": "text", "text": "lost_api"}],
                    }
                    parent = file.add(parent, "assistant", failed, isApiErrorMessage=True)
        if maker.often(0.4):
            agent = maker.id("agent")
            inner = maker.talk(**kinds)
            dropped += hidden_in(inner)
            rows.append((main, expected(inner)))
            more = {"isSidechain": True, "agentId": agent}
            file.talk(parent if maker.often() else None, inner, **more)
        logical = parent
    lines = [json.dumps(line, ensure_ascii=maker.often()) for line in file.lines]
    cut = '{"parentUuid": "x", "type": "assistant", "mess' if maker.often(0.3) else ""
    return Made("\n".join(["", *lines, cut]).encode(), rows, [*dropped, "noted_", "lost_api"], branches)


def codex_items(maker: Maker, talk: list[str | Turn]) -> list[Object]:
    """Return the items of the Responses API that record a talk."""
    items: list[Object] = []
    for said in talk:
        if isinstance(said, str):
            items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]})
            continue
        if said.hidden:
            summary = [{"type": "summary_text", "text": said.hidden}]
            items.append({"type": "reasoning", "summary": summary, "content": None, "encrypted_content": "gAAA"})
        if said.own:
            content = [{"type": "reasoning_text", "text": said.own}]
            items.append({"type": "reasoning", "summary": [], "content": content, "encrypted_content": None})
        if said.text:
            content = [{"type": "output_text", "text": part} for part in (said.text[:3], said.text[3:]) if part]
            items.append({"type": "message", "role": "assistant", "content": content})
        for call_id, name, arguments, _ in said.calls:
            call = {"type": "function_call", "name": name, "call_id": call_id, "arguments": json.dumps(arguments)}
            items.append(call)
            if maker.often(0.1):
                items.append({"type": "ghost_snapshot", "ghost_commit": {"id": "noted_ghost"}})
        results = [(call_id, result) for call_id, _, _, result in said.calls if result is not None]
        for call_id, result in results:
            output: Any = result
            if maker.often(0.3):
                output = [{"type": "input_text", "text": result}]
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
    return items


def codex(seed: int, own: bool = True) -> Made:
    """Make a rollout of Codex with compactions and turns that are taken back."""
    maker = Maker(seed)
    system = maker.words("system") if maker.often(0.7) else ""
    thread, parent = f"thread-{seed}", f"thread-{seed - 1}" if maker.often(0.3) else None
    source: Any = {"subagent": {"thread_spawn": {"parent_thread_id": parent, "depth": 1}}} if parent else "cli"
    meta: Object = {"id": thread, "cwd": "/", "source": source} | (
        {"base_instructions": {"text": system}} if system else {}
    )
    lines: list[tuple[str, Object]] = [("session_meta", meta)]
    rows, dropped, branches = list[tuple[int | None, list[Object]]](), list[str](), 0
    main: int | None = None
    earlier: list[Object] = []
    for segment in range(maker.random.randint(1, 3)):
        talk = maker.talk(own=own, hidden=True, unanswered=False)
        dropped += hidden_in(talk)
        context: list[Object] = []
        if segment:
            kept = [message for message in earlier if message["role"] != "tool" and "tool_calls" not in message][-3:]
            kept = [message for message in kept if message["role"] != "system" and "reasoning_content" not in message]
            summary = maker.words("summary")
            history = [{"type": "message", **message} for message in kept]
            history.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": summary}]})
            lines.append(("compacted", {"message": summary, "replacement_history": history}))
            context = [{**message, "train": False} if message["role"] == "assistant" else message for message in kept]
            context.append({"role": "user", "content": summary})
        lines.append(("turn_context", {"model": "gpt-x", "cwd": "/"}))
        for item in codex_items(maker, talk):
            if item.get("role") == "user" and maker.often(0.2):
                lost = [maker.words("lost"), Turn(maker.words("lost"))]
                dropped.append("lost_")
                lines += [("response_item", found) for found in codex_items(maker, lost)]
                lines.append(("event_msg", {"type": "thread_rolled_back", "num_turns": 1}))
                branches += 1
            lines.append(("response_item", item))
            if maker.often(0.3):
                lines.append(("event_msg", {"type": "agent_message", "message": "noted_event"}))
        messages = [*({"role": "system", "content": system} for _ in range(bool(system))), *context]
        messages += expected(talk, as_text=True)
        earlier = expected(talk, as_text=True)
        rows.append((main, messages))
        main = len(rows) - 1
    written = [json.dumps({"timestamp": "t", "type": kind, "payload": payload}) for kind, payload in lines]
    return Made("\n".join(written).encode(), rows, [*dropped, "noted_"], branches)


def atif(seed: int, own: bool = True) -> Made:
    """Make a trajectory with sub-agents, copied steps and steps without a model."""
    maker = Maker(seed)
    rows: list[tuple[int | None, list[Object]]] = []

    def trajectory(parent: int | None, depth: int) -> Object:
        talk = maker.talk(own=own, hidden=False, unanswered=True)
        system = maker.words("system") if maker.often() else ""
        place = len(rows)
        steps: list[Object] = [{"source": "system", "message": system}] if system else []
        for said in talk:
            if isinstance(said, str):
                steps.append({"source": "user", "message": said})
                continue
            said.train = not maker.often(0.15)
            reason = {"is_copied_context": True} if maker.often() or said.own else {"llm_call_count": 0}
            step = {"source": "agent", "message": said.text, **({} if said.train else reason)}
            step |= {"reasoning_content": said.own} if said.own else {}
            if said.calls:
                step["tool_calls"] = [
                    {"tool_call_id": i, "function_name": n, "arguments": a} for i, n, a, _ in said.calls
                ]
                found = [(i, result) for i, *_, result in said.calls if result is not None]
                alone = len(said.calls) == len(found) == 1 and maker.often()
                results = [{"content": r} if alone else {"source_call_id": i, "content": r} for i, r in found]
                step |= {"observation": {"results": results}} if results else {}
            steps.append(step)
        rows.append((parent, expected(talk, system)))
        agent = {
            "name": "openhands",
            "version": "1",
            "tool_definitions": [TOOL],
        }
        steps = [{"step_id": at, **step} for at, step in enumerate(steps, start=1)]
        made = {"schema_version": "ATIF-v1.8", "trajectory_id": maker.id("t"), "agent": agent, "steps": steps}
        inner = [trajectory(place, depth + 1) for _ in range(maker.random.randint(0, 2))] if depth < 2 else []
        return {**made, "subagent_trajectories": inner} if inner else made

    document = trajectory(None, 0)
    return Made(json.dumps(document, indent=maker.random.choice([None, 2])).encode(), rows)


def swe_messages(maker: Maker) -> tuple[list[Object], list[Object], list[str]]:
    """Return a history of SWE-agent, its messages, and the words that no row may have."""
    talk = maker.talk(own=False, hidden=True, most=1)
    system = maker.words("system")
    items: list[Object] = [{"role": "system", "content": system, "agent": "main", "message_type": "system_prompt"}]
    for said in talk:
        if isinstance(said, str):
            items.append({"role": "user", "content": said, "agent": "main", "message_type": "observation"})
            continue
        item: Object = {
            "role": "assistant",
            "content": said.text,
            "thought": said.text,
            "action": "ls",
            "agent": "main",
        }
        item |= {"thinking_blocks": [{"type": "thinking", "thinking": said.hidden}]} if said.hidden else {}
        calls = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
            for i, n, a, _ in said.calls
        ]
        items.append(item | {"tool_calls": calls or None, "message_type": "action"})
        for call_id, _, _, result in said.calls:
            content = [{"type": "text", "text": result}] if maker.often() else result
            items.append({"role": "tool", "content": content, "agent": "main", "tool_call_ids": [call_id]})
    return items, expected(talk, system, as_text=True), hidden_in(talk)


def swe_agent(seed: int, own: bool = True) -> Made:
    """Make a trajectory of SWE-agent, which never has reasoning of its own."""
    maker = Maker(seed)
    items, messages, hidden = swe_messages(maker)
    trajectory = [{"action": "noted_action", "observation": "noted_seen", "response": "", "thought": "", "state": {}}]
    made = {"environment": "main", "trajectory": trajectory, "history": items, "info": {"exit_status": "submitted"}}
    return Made(json.dumps(made, indent=2).encode(), [(None, messages)], [*hidden, "noted_"])


def harmony(seed: int) -> Made:
    """Make a conversation of gpt-oss as text."""
    maker = Maker(seed)
    talk = maker.talk(own=True, hidden=False)
    system = maker.words("system").strip()
    text = f"<|start|>system<|message|>{system}<|end|>"
    for said in talk:
        if isinstance(said, str):
            text += f"<|start|>user<|message|>{said}<|end|>"
            continue
        if said.own:
            text += f"<|start|>assistant<|channel|>analysis<|message|>{said.own}<|end|>"
        if said.text:
            channel = "commentary" if said.calls else "final"
            text += f"<|start|>assistant<|channel|>{channel}<|message|>{said.text}<|end|>"
        for _, name, arguments, _ in said.calls:
            to = f"to=functions.{name}"
            header = f" {to}<|channel|>commentary" if maker.often() else f"<|channel|>commentary {to}"
            text += f"<|start|>assistant{header} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
        for _, name, _, result in said.calls:
            text += f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{result}<|end|>"
    if text.endswith("<|end|>"):
        text = text.removesuffix("<|end|>") + "<|return|>"
    return Made(text, [(None, expected(talk, system, ids=False, as_text=True))])


def responses(seed: int) -> Made:
    """Make items of the Responses API."""
    maker = Maker(seed)
    talk = maker.talk(own=True, hidden=True)
    return Made(codex_items(maker, talk), [(None, expected(talk, as_text=True))], [*hidden_in(talk), "noted_"])


def swe_smith(seed: int) -> Made:
    """Make the messages of a row of SWE-smith's trajectories, as JSON text."""
    items, messages, hidden = swe_messages(Maker(seed))
    for item in items:
        item.pop("thinking_blocks", None)
    return Made(json.dumps(items), [(None, messages)], hidden)
