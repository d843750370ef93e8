"""Reports texts of control tokens in contents: how many, one of them with its place, and the setting that decides."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from tokenloom.assets.prompts.segments import segments
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.preference_pairs import sides

CONTROL_IN_CONTENT = "control_tokens_in_content"
"""Counter: how often the text of a control token occurs in contents."""

SETTING = "tokenizer.control_tokens_in_content"
_AROUND = 20
"""Characters that are shown before and after a control token."""

_POLICIES = {
    "split": "are tokenized as plain text ({setting}: split); if the rows are templated already, map them to text, "
    "with prompt_template.format_type: text and {setting}: keep",
    "keep": "stay control tokens ({setting}: keep); next to the same token, such as an added BOS or EOS, they are "
    "written once",
}


def control_notice(
    manifest: Manifest, policy: str, store: ArtifactStore, upstream: Callable[[str], Manifest]
) -> list[str]:
    """Return a sentence about the control tokens in contents, if there are any that are not rejected.

    Args:
        manifest: that of the stage tokens.
        policy: what happens to them, the value of `SETTING`.
        upstream: returns the manifest of an earlier stage.
    """
    found = manifest.counters.get(CONTROL_IN_CONTENT)
    if not found or policy not in _POLICIES:
        return []
    example = _example(manifest, store, upstream)
    return [f"{found:,} texts of control tokens in contents{example} {_POLICIES[policy].format(setting=SETTING)}"]


def _example(manifest: Manifest, store: ArtifactStore, upstream: Callable[[str], Manifest]) -> str:
    """Return an example of a control token in a content, with its place; "" if the prompts are no longer stored."""
    index = next((at for at, chunk in enumerate(manifest.chunks) if (chunk.counters or {}).get(CONTROL_IN_CONTENT)), 0)
    try:
        chunk, control = upstream("prompts").chunks[index], upstream("tokenizer").facts["control"]
        prompts = store.objects.get(chunk.output)
    except (StoreError, IndexError):
        return ""
    token = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))
    for texts in sides(prompts).values():
        cut = segments(texts)
        matches = flags_of(pc.match_substring_regex(cut.text, token.pattern)) & ~cut.control
        for at in np.flatnonzero(matches)[:1]:
            text = cut.text[at].as_py()
            start, end = next(token.finditer(text)).span()
            place, shown = (
                chunk.place(texts[ROW][int(cut.row[at])].as_py()),
                text[max(start - _AROUND, 0) : end + _AROUND],
            )
            return f", such as {text[start:end]} in {place} ({shown!r}),"
    return ""
