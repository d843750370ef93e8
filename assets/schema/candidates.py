"""What a dataset's columns are, by their names and types: candidates for its form and for the role of each column."""

from __future__ import annotations

from typing import Any

ALIASES: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "chat"),
    "prompt": ("prompt", "instruction", "question", "query", "problem", "user"),
    "context": ("input", "context"),
    "completion": ("completion", "output", "response", "answer", "target", "assistant", "summary"),
    "system": ("system", "system_prompt"),
    "text": ("text", "content", "document"),
}
"""For each role, the column names that stand for it, the most telling first."""

FORMS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "text": ("text",),
}
"""For each canonical form, the roles it needs; the first form whose roles are all found is the likeliest."""


def roles(columns: list[dict[str, Any]], mapping: dict[str, str]) -> dict[str, str]:
    """Role to column: what `mapping` says, then the first alias among the columns.

    Args:
        columns: as `tokenloom.assets.schema.sketch.merge` describes them.
    """
    found = dict(mapping)
    by_name = {column["column"].lower(): column["column"] for column in columns}
    nested = {column["column"] for column in columns if column["type"].startswith(("list", "struct"))}
    for role, names in ALIASES.items():
        if role in found:
            continue
        for name in names:
            column = by_name.get(name)
            if column and column not in found.values() and (column in nested) == (role == "messages"):
                found[role] = column
                break
    if "context" in found and "prompt" not in found and "context" not in mapping:
        found["prompt"] = found.pop("context")
    return found


def form(found: dict[str, str]) -> str | None:
    """The canonical form that the roles make, or None."""
    return next((name for name, needed in FORMS.items() if all(role in found for role in needed)), None)
