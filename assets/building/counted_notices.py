"""What a stage's counters say about the rows, as sentences with the setting that decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow.compute as pc

from tokenloom.assets.columns.canonical import NULL_FIELDS
from tokenloom.assets.columns.repeated_prompts import REMOVED, REPEATED
from tokenloom.assets.prompts.segments import segments
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.stage import CONTROL_IN_CONTENT
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.flags import flags_of
from tokenloom.resources.tables.preference_pairs import sides

CONTROL = "tokenizer.control_tokens_in_content"
_AROUND = 20
"""Characters that are shown before and after a control token."""

_FEW = 0.01
"""Fraction of answers that can begin with their prompt by chance."""

_POLICIES = {
    "split": "are tokenized as plain text ({setting}: split); if the rows are templated already, map them to text, "
    "with prompt_template.format_type: text and {setting}: keep",
    "keep": "stay control tokens ({setting}: keep); next to the same token, such as an added BOS or EOS, they are "
    "written once",
}


def counted_notices(
    config: PipelineConfig, manifest: Manifest, store: ArtifactStore, upstream: Callable[[str], Manifest]
) -> Iterator[str]:
    """Yield sentences about what a stage counted.

    Args:
        manifest: the stage's.
        upstream: returns the manifest of an earlier stage.
    """
    counters = manifest.counters
    if (rows := counters.get(NULL_FIELDS)) and "struct_nulls" not in config.dataset.model_fields_set:
        yield (
            f"{rows:,} rows have null fields in structs; they are omitted, because Arrow also gives a struct the "
            "fields of other rows. To write them as null, set dataset.struct_nulls: keep"
        )
    if rows := counters.get(REMOVED):
        yield f"{rows:,} pairs repeat the prompt at the start of chosen and rejected; the repetition is removed"
    if (rows := counters.get(REPEATED, 0)) > _FEW * manifest.total("rows_out"):
        yield (
            f"{rows:,} answers begin with their prompt, or with its last line, which is trained as part of the answer; "
            "remove it in the data if it is repeated"
        )
    policy = config.tokenizer.control_tokens_in_content
    if (found := counters.get(CONTROL_IN_CONTENT)) and policy in _POLICIES:
        example = _example(manifest, store, upstream)
        yield f"{found:,} texts of control tokens in contents{example} {_POLICIES[policy].format(setting=CONTROL)}"


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
