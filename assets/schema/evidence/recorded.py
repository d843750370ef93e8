"""Columns of conversations in the records of an API or an agent: which dialect their messages are in."""

from __future__ import annotations

import re

from tokenloom.assets.schema.evidence.profiles import Profile

DIALECTS = {
    "responses": "OpenAI Responses items",
    "harmony": "harmony",
    "swe_agent": "SWE-agent messages",
    "anthropic": "Anthropic messages with signed reasoning",
}
"""What each dialect is called."""

_CHANNELS = {"analysis", "commentary", "final"}
_ITEM_FIELDS = {"call_id", "encrypted_content", "summary"}
_ITEMS = re.compile(r'\s*\[\s*\{.*"type"\s*:\s*"(reasoning|(function|custom_tool)_call(_output)?)"', re.DOTALL)
_HARMONY = re.compile(r"\s*<\|start\|>(system|developer|user|assistant)\b")


def dialect_of(profile: Profile) -> str | None:
    """Return the dialect of a column of conversations, a key of `DIALECTS`; None for any other column."""
    item = profile.within.get((*profile.steps, None))
    if item is None:
        return _of_text(profile)
    fields, channel = {*item.fields}, item.field("channel")
    if "type" in fields and fields & _ITEM_FIELDS:
        return "responses"
    if channel is not None and fields & {"role", "author"} and {*(channel.facts.get("values") or ())} <= _CHANNELS:
        return "harmony"
    if "role" in fields and {"thought", "action"} <= fields:
        return "swe_agent"
    signed = profile.within.get((*item.steps, "content", None, "signature"))
    return "anthropic" if signed is not None and "role" in fields else None


def _of_text(profile: Profile) -> str | None:
    """Return the dialect of texts: of trajectories of SWE-smith, by the columns beside them."""
    examples = profile.facts.get("examples") or ()
    if profile.kind != "text" or not profile.is_column or not examples:
        return None
    if all(map(_HARMONY.match, examples)):
        return "harmony"
    if all(map(_ITEMS.match, examples)):
        return "responses"
    beside = {("traj_id",), ("instance_id",)} <= profile.within.keys()
    return "swe_agent" if beside and all(text.lstrip().startswith("[") for text in examples) else None
