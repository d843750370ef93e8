"""Sessions of Claude Code: one event per line, a tree by `parentUuid`.

The format has no specification. The rules follow files of versions 1.0 to 2.1, and the readers claude-code-log,
agentpile and teich. The lines of one API message share its `message.id`. Results of parallel calls are leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from tokenloom.assets.raw.sessions.conversation import (
    Conversation,
    Ids,
    Object,
    Session,
    UnfitSessionError,
    content_of,
    text_of,
)
from tokenloom.assets.stage.rejects import ABANDONED, NO_CONTEXT

MESSAGES = ("user", "assistant")
_NO_WORDS = "(no content)"
"""What Claude Code writes for an answer without text."""
_INTERRUPTED = "[Request interrupted by user]"
"""What Claude Code writes as the user's message after an answer that was stopped before its end."""
_CALLS = ("tool_use", "mcp_tool_use")
_RESULTS = ("tool_result", "mcp_tool_result")
_MOST_STEPS, _MOST_INSERTED = 1 << 20, 8
"""Lines of a file between those of one uuid that are looked at, and texts that a snapshot has before an earlier one."""


@dataclass
class Node:
    """A line with a `uuid`: a message of the user or of the assistant, or another event, which only links others.

    Args:
        message: content and others, of messages that were sent to the model or came from it.
        link: what links the line to others, and names its session.
    """

    line: int
    uuid: str
    parent: str | None
    kind: str
    message: Object | None
    link: Object
    children: list[Node] = field(default_factory=list)

    @property
    def parts(self) -> list[Any]:
        content = (self.message or {}).get("content")
        return content if isinstance(content, list) else [content] if content else []

    @property
    def has_result(self) -> bool:
        return self.kind == "user" and any(_type(part) in _RESULTS for part in self.parts)


_LINKS = ("sessionId", "agentId", "logicalParentUuid", "isSidechain", "forkedFrom", "subtype")


def read_session(events: Sequence[tuple[int, Any]]) -> Session:
    """Return what the events of a file hold.

    Args:
        events: the line and the value of each.
    """
    session = Session()
    nodes = _nodes(events, session)
    trees = _trees(nodes, session)
    tree_of = {node.uuid: index for index, tree in enumerate(trees) for node in tree}
    ids, names, mains = Ids(), dict[int, str | None](), list[str | None]()
    for index, tree in enumerate(trees):
        root = tree[0]
        if not any(node.message for node in tree):
            session.unused("lines that no message follows", len(tree))
            continue
        owner, side = root.link.get("sessionId"), bool(root.link.get("isSidechain"))
        agent = root.link.get("agentId") if side else None
        names[index] = ids.name(f"{owner}/{agent or root.uuid}" if side else owner)
        linked = root.link.get("logicalParentUuid") or root.parent
        parent = names.get(tree_of.get(linked, -1)) if isinstance(linked, str) else None
        mains += [] if side else [names[index]]
        if side and parent is None:
            parent = mains[-1] if mains else owner
        fork = root.link.get("forkedFrom")
        if parent is None and isinstance(fork, dict):
            parent = fork.get("sessionId")
        try:
            line, conversation, model = _conversation(tree, nodes, session)
        except UnfitSessionError as error:
            session.lose(root.line, error)
            continue
        session.add(line, conversation, id=names[index], parent=parent, session=owner, agent=agent, model=model)
    session.rows.sort(key=_line)
    return session


def _nodes(events: Sequence[tuple[int, Any]], session: Session) -> dict[str, Node]:
    """Return the lines that are linked to each other, by `uuid`. Others are counted, repeated ones rejected.

    A line that continues the conversation of an earlier one with its uuid is another line: what comes later follows it.
    """
    nodes, latest, steps = dict[str, Node](), dict[str, Node](), iter(range(_MOST_STEPS))
    for line, event in events:
        if not isinstance(event, dict):
            session.lose(line, UnfitSessionError("not_an_object", "an event is not a JSON object"))
            continue
        kind, uuid, parent = (event.get(name) for name in ("type", "uuid", "parentUuid"))
        message = event.get("message")
        message = message if kind in MESSAGES and isinstance(message, dict) else {}
        spoken = bool(message)
        if not isinstance(uuid, str) or not isinstance(parent, str | None):
            if spoken:
                session.lose(line, UnfitSessionError("unknown_event", "a message has no uuid, or no valid parentUuid"))
            else:
                session.unused(kind)
            continue
        if spoken and (event.get("isApiErrorMessage") or message.get("model") == "<synthetic>"):
            session.unused("answers that Claude Code wrote")
            spoken = False
        elif not spoken and event.get("subtype") != "compact_boundary":
            session.unused(kind)
        sent = {name: message.get(name) for name in ("id", "model", "content")} if spoken else None
        # a uuid that several lines have means the latest of them, as what follows was written after it
        above = latest[parent].uuid if parent in latest else parent
        node = Node(line, uuid, above, str(kind), sent, {name: event[name] for name in _LINKS if event.get(name)})
        if (first := latest.get(uuid)) is not None:
            node.uuid = f"{uuid}#{line}"
            same = first.message == node.message
            if same and first.parent == above:
                session.unused("repeated lines")
                continue
            if not _follows(above, first, nodes, steps):
                reason = f"two lines have the uuid {uuid:.80}; the first is used"
                session.lose(line, UnfitSessionError("repeated_uuid", reason))
                continue
            node.message = None if same and kind == "assistant" else node.message
        nodes[node.uuid] = latest[uuid] = node
    return nodes


def _follows(parent: str | None, first: Node, nodes: dict[str, Node], steps: Iterator[int]) -> bool:
    """Return whether a line with this parent comes after another one in its conversation."""
    for _ in steps:
        above = nodes.get(parent or "")
        if above is None or above is first or above.line < first.line:
            return above is first
        parent = above.parent
    return False


def _trees(nodes: dict[str, Node], session: Session) -> list[list[Node]]:
    """Return the lines of each tree, its root first, in the order of the roots; cycles are rejected.

    A side chain is a tree of its own, and so is what follows a compaction.
    """
    roots: list[Node] = []
    for node in nodes.values():
        above = nodes.get(node.parent) if node.parent else None
        split = above is not None and bool(node.link.get("isSidechain")) != bool(above.link.get("isSidechain"))
        if above is None or split or node.link.get("subtype") == "compact_boundary":
            roots.append(node)
        else:
            above.children.append(node)
    trees = [list(_below(root, set())) for root in roots]
    reached = {node.uuid for tree in trees for node in tree}
    for uuid, node in nodes.items():
        if uuid not in reached:
            cycle = list(_below(node, reached))
            if any(found.message for found in cycle):
                message = f"{len(cycle):,} lines are each other's parents"
                session.lose(min(found.line for found in cycle), UnfitSessionError("parent_cycle", message))
    return trees


def _below(root: Node, seen: set[str]) -> Iterator[Node]:
    """Yield a node and all nodes below it that are not in `seen`, and add them to it."""
    seen.add(root.uuid)
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        for child in node.children:
            if child.uuid not in seen:
                seen.add(child.uuid)
                waiting.append(child)


def _conversation(tree: Sequence[Node], nodes: dict[str, Node], session: Session) -> tuple[int, Conversation, Any]:
    """Return the line of the first message, the conversation up to the last message of a tree, and the model; other
    branches are rejected. Raise UnfitSessionError if it continues lines that the file lacks, or a part is not
    understood."""
    root = tree[0]
    if root.parent is not None and root.parent not in nodes and not root.link.get("isSidechain"):
        raise UnfitSessionError(NO_CONTEXT, f"the line that it continues, {root.parent:.80}, is not in the file")
    # the last message is where the session ended: it and those above it are the conversation
    path = [max((node for node in tree if node.message), key=_line)]
    while path[-1] is not root:
        path.append(nodes[path[-1].parent or ""])
    path.reverse()
    if next(node for node in path if node.message).kind == "assistant":
        raise UnfitSessionError(NO_CONTEXT, "an answer without a message that it answers")
    used = {node.uuid for node in path}
    conversation, models = Conversation(), list[str]()
    for answer, results, said in _turns(path, used):
        conversation.end_answer()
        ended = bool(results) or said is None or not any(text_of(part) == _INTERRUPTED for part in said.parts)
        if answer and not ended:
            session.unused("ends of answers that were interrupted, not trained")
        for node, parts in _without_repeats(answer):
            models += [model] if isinstance(model := (node.message or {}).get("model"), str) else []
            _add_answer(conversation, node, parts, ended)
        for node in results:
            for part in node.parts:
                if _type(part) in _RESULTS:
                    conversation.result(part.get("tool_use_id"), content_of(part.get("content")) or "")
        if said is not None:
            conversation.say("user", content_of([part for part in said.parts if _type(part) not in _RESULTS]))
    for node in sorted((node for node in tree if node.uuid not in used), key=_line):
        if node.uuid not in used:
            branch = list(_below(node, used))
            if messages := sum(found.message is not None for found in branch):
                message = f"{messages:,} messages of a branch that the conversation left"
                first = min(found.line for found in branch if found.message)
                session.lose(first, UnfitSessionError(ABANDONED, message))
    first = next(node.line for node in path if node.message)
    return first, conversation, Counter(models).most_common(1)[0][0] if models else None


def _turns(path: Sequence[Node], used: set[str]) -> Iterator[tuple[list[Node], list[Node], Node | None]]:
    """Yield the lines of each API message, the lines with the results of its calls, and what the user says then.

    Lines of the message and results that are beside the path are added to `used`.
    """
    answer, results = list[Node](), list[Node]()
    for node in (node for node in path if node.message):
        if node.kind == "assistant" and answer and _is_same(answer[0], node):
            answer.append(node)
            continue
        if node.has_result:
            results.append(node)
        said = node if node.kind == "user" and any(_type(part) not in _RESULTS for part in node.parts) else None
        if said is not None or (node.kind == "assistant" and (answer or results)):
            yield (*_with_leaves(answer, results, used), said)
            answer, results = list[Node](), list[Node]()
        if node.kind == "assistant":
            answer.append(node)
    yield (*_with_leaves(answer, results, used), None)


def _with_leaves(answer: list[Node], results: list[Node], used: set[str]) -> tuple[list[Node], list[Node]]:
    """Add the lines beside the path that belong to an API message: the rest of it, and the results of its calls."""
    answer, results = list(answer), list(results)
    waiting: list[tuple[Node, Node]] = [(node, node) for node in answer]
    while waiting:
        said, node = waiting.pop()
        for child in node.children:
            if child.message is None:
                waiting.append((said, child))
            elif child.uuid not in used and (child.has_result or _is_same(said, child)):
                # results of parallel calls, and further lines of an answer, are leaves beside the path
                used.add(child.uuid)
                (results if child.has_result else answer).append(child)
                if not child.has_result:
                    waiting.append((child, child))
    return sorted(answer, key=_line), sorted(results, key=_line)


_line = attrgetter("line")


def _is_same(one: Node, other: Node) -> bool:
    ids = [(node.message or {}).get("id") for node in (one, other)]
    return ids[0] == ids[1] and ids[0] is not None


def _type(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _without_repeats(answer: Sequence[Node]) -> list[tuple[Node, list[Any]]]:
    """Return the lines of one API message, each with its parts that no later line has, too.

    Lines can be snapshots of a message: a later one repeats texts, whole or as the start of longer ones, and calls by
    their id. The last one counts.
    """
    lines = list[tuple[Node, list[Any]]]()
    ids, texts = set[Any](), list[tuple[Any, str]]()  # calls of later lines, and texts of the next one that has any
    for node in reversed(answer):
        parts, texts_here, called = list[Any](), list[tuple[Any, str]](), set[Any]()
        later_texts = set(texts)
        for part in node.parts:
            kind, text = _type(part), text_of(part)
            text = part.get("thinking") if kind == "thinking" else text
            if isinstance(text, str):
                # compared with the texts at about the same place of the later snapshot, which can have more before it
                longer = texts[len(texts_here) : len(texts_here) + _MOST_INSERTED]
                texts_here.append((kind, text))
                is_start = any(of == kind and said.startswith(text) for of, said in longer)
                is_repeated = is_start or (kind, text) in later_texts
            else:
                identity = part.get("id") if kind in _CALLS else None
                is_repeated = isinstance(identity, str) and identity in ids
                called |= {identity} if isinstance(identity, str) else set()
            parts += [] if is_repeated else [part]
        if texts_here or called - ids:  # a text after another call is not a repetition
            texts = texts_here
        ids |= called
        lines.append((node, parts))
    return lines[::-1]


def _add_answer(conversation: Conversation, node: Node, parts: Sequence[Any], ended: bool) -> None:
    """Add parts of a line of the assistant. Lines that a fork repeats are not trained, nor what did not end."""
    train = ended and "forkedFrom" not in node.link
    for part in parts:
        kind, text = _type(part), text_of(part)
        if text is not None:
            conversation.text("" if text == _NO_WORDS else text, train)
        elif kind in _CALLS:
            conversation.call(part.get("id"), part.get("name"), part.get("input"), train)
        elif kind == "thinking" and isinstance(part.get("thinking"), str) and not part.get("signature"):
            conversation.reasoning(part["thinking"], train)
        elif kind in ("thinking", "redacted_thinking"):
            conversation.omit_reasoning()
        else:
            message = f"line {node.line + 1}: a part of type {kind!s:.80} in an answer is not understood"
            raise UnfitSessionError("unknown_part", message)
