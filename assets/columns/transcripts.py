"""Transcripts, as HH-RLHF writes them: a text in which "Human:" and "Assistant:" stand behind blank lines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.columns.text import Flags, flags_of
from tokenloom.resources.tables.ragged import list_array, offsets_of, ranges, text_array, text_parts

_GAP = b"\n\n"
_SPEAKERS = {b"Human:": "user", b"Assistant:": "assistant", b"System:": "system"}
_CERTAIN = r"(?s)^\s*(?:Human|System):.*\n\nAssistant:"


def is_transcript(text: pa.Array, certain: bool) -> Flags:
    """Which texts are transcripts; all of them, unless only those are wanted that certainly are."""
    return flags_of(pc.match_substring_regex(text, _CERTAIN)) if certain else np.ones(len(text), bool)


def split_transcripts(text: pa.Array) -> tuple[pa.Array, Flags]:
    """The turns of each transcript as a list of {role, content}, contents trimmed, and which texts are none.

    A turn begins with a speaker's name at the text's begin or behind a blank line; a system turn only at its begin.
    """
    offsets, data = text_parts(pc.binary_join_element_wise("\n\n", pc.utf8_ltrim_whitespace(text), ""))
    gaps = np.flatnonzero((data[:-1] == _GAP[0]) & (data[1:] == _GAP[1]))
    row = np.searchsorted(offsets, gaps, side="right") - 1
    padded = np.append(data, np.zeros(16, np.uint8))
    speaker, behind = np.full(len(gaps), -1), np.zeros(len(gaps), np.int64)
    for index, name in enumerate(_SPEAKERS):
        begin = gaps + len(_GAP)
        same = (padded[begin[:, None] + np.arange(len(name))] == np.frombuffer(name, np.uint8)).all(axis=1)
        same &= begin + len(name) <= offsets[row + 1]
        if name == b"System:":
            same &= gaps == offsets[row]
        speaker[same] = index
        behind[same] = begin[same] + len(name)
    turns = speaker >= 0
    gaps, row, speaker, behind = gaps[turns], row[turns], speaker[turns], behind[turns]
    begins_so = np.zeros(len(text), bool)
    begins_so[row[gaps == offsets[row]]] = True
    kept = begins_so[row]
    gaps, row, speaker, behind = gaps[kept], row[kept], speaker[kept], behind[kept]
    ends = np.append(gaps[1:], 0)
    is_last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, bool)
    ends = np.where(is_last, offsets[row + 1], ends[: len(gaps)])
    said = text_array(offsets_of(ends - behind), data[ranges(behind, ends - behind)])
    names = pa.array(list(_SPEAKERS.values())).take(pa.array(speaker))
    struct = pa.StructArray.from_arrays([names, pc.utf8_trim_whitespace(said)], ["role", "content"])
    count = np.bincount(row, minlength=len(text)).astype(np.int64)
    return list_array(offsets_of(count), struct), ~begins_so
