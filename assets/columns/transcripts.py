"""Transcripts in the style of HH-RLHF: text in which "Human:" and "Assistant:" start turns after blank lines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.resources.tables.flags import Flags, flags_of
from tokenloom.resources.tables.ragged import list_array, offsets_of, ranges, text_array, text_parts

_GAP = b"\n\n"
_SPEAKERS = {b"Human:": "user", b"Assistant:": "assistant", b"System:": "system"}
_CERTAIN = r"(?s)^\s*(?:Human|System):.*\n\nAssistant:"


def is_transcript(text: pa.Array, certain: bool) -> Flags:
    """Return which texts are transcripts.

    Args:
        certain: whether to require a human or system turn at the start and an assistant turn after it; if not, all
            texts count as transcripts.
    """
    return flags_of(pc.match_substring_regex(text, _CERTAIN)) if certain else np.ones(len(text), bool)


def split_transcripts(text: pa.Array) -> tuple[pa.Array, Flags]:
    """Split each transcript into its turns.

    A turn starts with a speaker's name at the start of the text or after a blank line; a system turn only at the start.

    Returns:
        Lists of {role, content}, with the content trimmed, and bool [texts], which are not transcripts.
    """
    offsets, data = text_parts(pc.binary_join_element_wise("\n\n", pc.utf8_ltrim_whitespace(text), ""))
    gaps = np.flatnonzero((data[:-1] == _GAP[0]) & (data[1:] == _GAP[1]))
    row = np.searchsorted(offsets, gaps, side="right") - 1
    padded = np.append(data, np.zeros(16, np.uint8))
    speaker, starts = np.full(len(gaps), -1), np.zeros(len(gaps), np.int64)
    for index, name in enumerate(_SPEAKERS):
        name_start = gaps + len(_GAP)
        same = (padded[name_start[:, None] + np.arange(len(name))] == np.frombuffer(name, np.uint8)).all(axis=1)
        same &= name_start + len(name) <= offsets[row + 1]
        if name == b"System:":
            same &= gaps == offsets[row]
        speaker[same] = index
        starts[same] = name_start[same] + len(name)
    turns = speaker >= 0
    gaps, row, speaker, starts = gaps[turns], row[turns], speaker[turns], starts[turns]
    is_transcript = np.zeros(len(text), bool)
    is_transcript[row[gaps == offsets[row]]] = True
    kept = is_transcript[row]
    gaps, row, speaker, starts = gaps[kept], row[kept], speaker[kept], starts[kept]
    ends = np.append(gaps[1:], 0)
    is_last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, bool)
    ends = np.where(is_last, offsets[row + 1], ends[: len(gaps)])
    content = text_array(offsets_of(ends - starts), data[ranges(starts, ends - starts)])
    roles = pa.array(list(_SPEAKERS.values())).take(pa.array(speaker))
    struct = pa.StructArray.from_arrays([roles, pc.utf8_trim_whitespace(content)], ["role", "content"])
    count = np.bincount(row, minlength=len(text)).astype(np.int64)
    return list_array(offsets_of(count), struct), ~is_transcript
