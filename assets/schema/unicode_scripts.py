"""Counts the letters of UTF-8 text by Unicode script."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints

_BLOCKS: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x41, 0x2B8), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB64), (0xFF21, 0xFF5A)),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Armenian": ((0x530, 0x58F),),
    "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x870, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFE)),
    "Syriac": ((0x700, 0x74F), (0x860, 0x86F)),
    "Thaana": ((0x780, 0x7BF),),
    "Devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
    "Bengali": ((0x980, 0x9FF),),
    "Gurmukhi": ((0xA00, 0xA7F),),
    "Gujarati": ((0xA80, 0xAFF),),
    "Oriya": ((0xB00, 0xB7F),),
    "Tamil": ((0xB80, 0xBFF),),
    "Telugu": ((0xC00, 0xC7F),),
    "Kannada": ((0xC80, 0xCFF),),
    "Malayalam": ((0xD00, 0xD7F),),
    "Sinhala": ((0xD80, 0xDFF),),
    "Thai": ((0xE00, 0xE7F),),
    "Lao": ((0xE80, 0xEFF),),
    "Tibetan": ((0xF00, 0xFFF),),
    "Myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
    "Hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC)),
    "Ethiopic": ((0x1200, 0x139F), (0x2D80, 0x2DDF), (0xAB00, 0xAB2F)),
    "Cherokee": ((0x13A0, 0x13FF), (0xAB70, 0xABBF)),
    "Khmer": ((0x1780, 0x17FF),),
    "Mongolian": ((0x1800, 0x18AF),),
    "Hiragana": ((0x3041, 0x309F), (0x1B001, 0x1B11F)),
    "Katakana": ((0x30A1, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "Bopomofo": ((0x3105, 0x312F), (0x31A0, 0x31BF)),
    "Han": ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
}  # fmt: skip

SCRIPTS = (*_BLOCKS, "other")
"""The scripts that are counted; `other` counts the letters of all other scripts."""

UNICODE = unicodedata.unidata_version
"""The version of Unicode, which defines what a letter is."""

_LATIN, _NO_LETTER = SCRIPTS.index("Latin"), len(SCRIPTS)
_SLICE_BYTES = 1 << 20


def count_letters(data: npt.NDArray[np.uint8]) -> Ints:
    """Count the letters of each script in valid UTF-8; about 2 GB/s for ASCII.

    Args:
        data: uint8 [bytes].

    Returns:
        int64 [len(SCRIPTS)].
    """
    counts = np.zeros(len(SCRIPTS) + 1, np.int64)
    for start in range(0, len(data), _SLICE_BYTES):
        part = data[start : start + _SLICE_BYTES]
        counts[_LATIN] += np.count_nonzero(((part | 0x20) - np.uint8(97)) < 26)
    beyond = data[data >= 128]  # without ASCII, valid UTF-8 stays valid
    if len(beyond):
        points = np.frombuffer(beyond.tobytes().decode("utf-8").encode("utf-32-le"), np.uint32)
        table = _script_of()
        counts += np.bincount(table[np.minimum(points, len(table) - 1)], minlength=len(counts))
    return counts[:-1]


@cache
def _script_of() -> npt.NDArray[np.uint8]:
    """Return the index of each code point's script, `_NO_LETTER` if it is not a letter; the last is for all others."""
    end = max(last for blocks in _BLOCKS.values() for _, last in blocks) + 2
    scripts = np.full(end, SCRIPTS.index("other"), np.uint8)
    for index, blocks in enumerate(_BLOCKS.values()):
        for first, last in blocks:
            scripts[first : last + 1] = index
    is_letter = np.fromiter(map(str.isalpha, map(chr, range(end))), bool, end)
    scripts[~is_letter] = _NO_LETTER
    return scripts
