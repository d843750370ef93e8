"""Detects files of sessions, and parses each to its rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.raw.formats.parsed_chunk import ParsedChunk
from tokenloom.assets.raw.formats.record_boundaries import NEWLINE, Bytes
from tokenloom.assets.raw.formats.text import is_utf8
from tokenloom.assets.raw.sessions import claude_code, openai, trajectories
from tokenloom.assets.raw.sessions.conversation import Session, UnfitSessionError
from tokenloom.assets.stage.rejects import EXCERPT_CHARACTERS, REJECTS, ROW
from tokenloom.resources.tables.json_text import LONE_SURROGATE, MAX_DEPTH, TOO_DEEP, is_deeper, to_json_text
from tokenloom.resources.tables.json_values import typed
from tokenloom.resources.tables.ragged import Ints

READERS: dict[str, Callable[[Sequence[Any]], Session]] = {
    "claude_code": claude_code.read_session,
    "codex": openai.read_session,
    "atif": trajectories.read_atif,
    "swe_agent": trajectories.read_swe_agent,
}
"""How the events or documents of a file are read, by format."""
SESSIONS = {
    "claude_code": "sessions of Claude Code",
    "codex": "sessions of Codex",
    "atif": "trajectories in ATIF",
    "swe_agent": "trajectories of SWE-agent",
}
"""What files of a format hold, in words."""
EVENTS = ("claude_code", "codex")
"""Formats of one event per line; a file of the others holds documents."""
_HEAD, _LINES, _LAST = 1 << 22, 64, 400
_ATIF = re.compile(rb'\s*\[?\s*\{\s*"schema_version"\s*:\s*"' + trajectories.VERSION.encode())
_MINI = re.compile(rb'"trajectory_format"\s*:\s*"mini-swe-agent')


def detected(head: bytes, name: str) -> str | None:
    """Return the format of sessions that the start of a JSON file has, or None.

    Args:
        name: the file's format: json or jsonl.
    """
    head = head[:_HEAD]
    if _ATIF.match(head):
        return "atif"
    if name == "json":
        return "swe_agent" if _MINI.search(head) else None
    if b'"parentUuid"' in head or b'"payload"' in head or b'"record_type"' in head:
        for line in head.split(b"\n", _LINES)[:_LINES]:
            try:
                event = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError):
                continue
            if found := _format_of(event):
                return found
    return None


def _format_of(event: Any) -> str | None:
    if not isinstance(event, dict):
        return None
    kind = event.get("type")
    if kind in claude_code.MESSAGES and {"parentUuid", "uuid", "sessionId", "message"} <= event.keys():
        return "claude_code"
    if kind in openai.EVENTS and isinstance(event.get("payload"), dict) and "timestamp" in event:
        return "codex"
    return "codex" if event.get("record_type") == "state" else None


def places(data: Bytes) -> Ints:
    """Return the ends of the places that rows of documents can have: more than a record can have rows, one at least."""
    return np.flatnonzero((data == NEWLINE) | (data == ord("{"))) + 1


def parse_sessions(data: Bytes, bounds: Ints, name: str) -> ParsedChunk:
    """Parse files of sessions to rows, each file a record. Files without messages are filtered.

    Args:
        data: uint8 [bytes], the bytes of the chunk.
        bounds: int64 [records + 1] into `data`.
        name: the format, a key of `READERS`.
    """
    rows: list[tuple[int, int, dict[str, Any]]] = []
    lost_parts: list[tuple[int, int, str, str, str]] = []
    counts, filtered = Counter[str](), 0
    for record in range(len(bounds) - 1):
        content = data[bounds[record] : bounds[record + 1]]
        session = _session(content.tobytes(), name)
        counts += session.counts
        # a file without any message counts as one filtered row, so that the counts add up
        filtered += session.filtered or not (session.rows or session.lost)
        last = max(len(places(content)) - 1, 0)
        for row in session.rows:
            try:
                texts = {key: to_json_text(value) for key, value in row.columns.items() if value is not None}
                try:
                    "".join(texts.values()).encode()
                except UnicodeEncodeError:
                    raise UnfitSessionError("lone_surrogate", LONE_SURROGATE) from None
                rows.append((record, row.line, texts))
            except UnfitSessionError as error:
                session.lose(row.line, error)
        lines = content.tobytes().split(b"\n") if session.lost and name in EVENTS else []
        for lost in sorted(session.lost):
            # of events the line itself is shown, of documents the start of the file
            shown = (lines[lost.line] if lines else content[:_LAST].tobytes())[:_LAST].decode(errors="replace")
            lost_parts.append((record, min(lost.line, last), lost.code, lost.message, shown[:EXCERPT_CHARACTERS]))
    names = list(dict.fromkeys(key for *_, texts in rows for key in texts))
    table = pa.table({key: typed(pa.array([texts.get(key) for *_, texts in rows], pa.string())) for key in names})
    of_rows, of_lost = (np.array([place[:2] for place in part], np.int64).reshape(-1, 2) for part in (rows, lost_parts))
    rejects = pa.Table.from_pylist(
        [
            {ROW: record, "stage": "raw", "code": code, "field": "", "message": message, "excerpt": excerpt}
            for record, _, code, message, excerpt in lost_parts
        ],
        REJECTS,
    )
    return ParsedChunk(table, of_rows[:, 0], rejects, filtered, (of_rows[:, 1], of_lost[:, 1]), counts)


def _session(content: bytes, name: str) -> Session:
    """Return what a file holds; a file that cannot be read as a whole is one rejected part."""
    try:
        if name not in EVENTS:
            return READERS[name](_documents(content))
        lost = Session()
        session = READERS[name](list(_events(content, lost)))
    except UnfitSessionError as error:
        session = Session()
        session.lose(0, error)
        return session
    session.lost += lost.lost
    session.counts += lost.counts
    if lost.lost and name == "codex":  # the items follow each other, so that a missing one changes all rows
        session.rows.clear()
    return session


def _events(content: bytes, session: Session) -> Iterator[tuple[int, Any]]:
    """Yield the line and the value of each event; others are rejected, but an incomplete last line is only counted."""
    lines = content.rstrip().split(b"\n")
    for at, line in enumerate(lines):
        if not line.strip(b" \t\r\0"):
            if line.strip():
                session.lose(at, UnfitSessionError("invalid_json", "NUL bytes instead of an event"))
            continue
        try:
            yield at, _value(line)
        except UnfitSessionError as error:
            if at == len(lines) - 1 and error.code == "invalid_json":
                session.unused("incomplete last lines")
            else:
                session.lose(at, error)


def _documents(content: bytes) -> list[Any]:
    """Return the documents of a file: one, or several as a list or one per line."""
    try:
        value = _value(content)
    except UnfitSessionError:
        lines = [line for line in content.split(b"\n") if line.strip()]
        if len(lines) < 2 or not lines[0].rstrip().endswith(b"}"):
            raise
        return [_value(line) for line in lines]
    return value if isinstance(value, list) else [value]


def _value(text: bytes) -> Any:
    """Return the value of JSON text; raise UnfitSessionError if it is not valid, or nested too deeply."""
    if is_deeper(text, MAX_DEPTH):
        raise UnfitSessionError("nested_too_deeply", TOO_DEEP)
    if not is_utf8(text):
        raise UnfitSessionError("invalid_utf8", "not UTF-8")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnfitSessionError("invalid_json", f"not valid JSON: {error}") from error
