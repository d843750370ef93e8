"""Converts a file's text to UTF-8, block by block, by its byte-order mark, a declared encoding, or a detected one.

charset-normalizer determines the script. It cannot distinguish encodings of the Latin script in short text; among
these, the encoding wins in which the letters beyond ASCII best match the alphabet of one language.

Bytes that are not valid in the encoding are passed through. They are not valid UTF-8, so only their row is rejected.
"""

from __future__ import annotations

import codecs
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator

import numpy as np

from tokenloom.errors import SourceError

ENCODINGS = (
    *("cp1252", "mac_roman", "cp1250", "iso8859_2", "cp1254", "cp1257", "cp850", "cp437"),
    *("cp1251", "koi8_r", "cp866", "mac_cyrillic", "iso8859_5", "cp1253", "cp1255", "cp1256", "cp1258", "cp874"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
"""The encodings that can be detected; all are ASCII below 128. cp1252 includes latin-1. Those of the Latin script are
first, the most likely one first."""

LATIN = ENCODINGS[:8]
ALPHABETS = (
    "àâäçéèêëîïôöùûüœæ",  # French
    "áéíñóúü",  # Spanish
    "áàâãçéêíóôõúü",  # Portuguese
    "äöüßé",  # German
    "àèéìîòù",  # Italian
    "åäöæøéü",  # Scandinavian, Finnish
    "áéíóúýþðæö",  # Icelandic
    "ąćęłńóśźż",  # Polish
    "áäčďéěíľĺňóôřŕšťúůýž",  # Czech, Slovak
    "áéíóöőúüű",  # Hungarian
    "ăâîşţșț",  # Romanian
    "čćđšž",  # Croatian, Slovene
    "çğıöşüâîû",  # Turkish
    "ąčęėįšųūžāēģīķļņ",  # Lithuanian, Latvian
    "äöüõšž",  # Estonian
)
"""The lower-case letters beyond ASCII of languages in the Latin script, one string per language."""

_SIGNS = frozenset(
    "\u00a0\u00a1\u00bf\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2022\u2026\u20ac\u00a3\u00a7\u00b0\u00a9\u00ae\u2122\u00b7\u00aa\u00ba\u00bd"
)
_WITHIN_WORD = re.compile(r"(?<=[^\W\d_])([^\w\s\u2019\u2018\u00b7\u2013])(?=[^\W\d_])")
_FEW_BYTES, _SCORED_SAMPLE, _MIN_SCORE = 16, 1 << 16, 0.9
_ODD_IN_WESTERN = frozenset(b"\x80\x81\x8d\x8f\x90\x9d\xfe\xff")


def legacy_encoding(block: bytes) -> str | None:
    """Return the encoding of text that is clearly not UTF-8, or None if it is UTF-8 or the encoding is uncertain.

    Text counts as UTF-8 if it contains at least as many multi-byte UTF-8 sequences as invalid bytes.
    """
    text = block.decode("utf-8", "replace")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block[-4:])
    # a character that the block's end cuts is not invalid, nor is a replacement character of the text's own
    invalid = text.count("\ufffd") - block.count("\ufffd".encode()) - bool(decoder.getstate()[0])
    if invalid <= 0 or len(text) - len(text.encode("ascii", "ignore")) >= 2 * invalid:
        return None
    high = block.translate(None, bytes(range(0x80)))
    # few bytes show no alphabet, and these hardly occur in Western text: rather no guess than a wrong one
    if len(high) < _FEW_BYTES and set(high) & _ODD_IN_WESTERN:
        return None
    # slow to import, and only text that is not UTF-8 needs it
    from charset_normalizer import from_bytes

    # lines of ASCII look alike in all encodings, and would only dilute the sample
    sample = b"\n".join(line for line in block.split(b"\n") if not line.isascii())[:_SCORED_SAMPLE]
    best = from_bytes(sample, cp_isolation=list(ENCODINGS)).best()
    detected = None if best is None else best.encoding
    if detected is None or detected in LATIN or _is_latin(str(best)):
        score, _, encoding = max((_score(sample, encoding), -rank, encoding) for rank, encoding in enumerate(LATIN))
        return encoding if score >= _MIN_SCORE else detected
    return detected


def _is_latin(text: str) -> bool:
    letters = [letter for letter in text[:4096] if not letter.isascii() and letter.isalpha()]
    latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return latin > len(letters) / 2


def _score(data: bytes, encoding: str) -> float:
    """Return the fraction of non-ASCII characters that are letters of the best matching language or common symbols."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return 0.0
    odd = len([sign for sign in _WITHIN_WORD.findall(text) if not sign.isascii()])
    beyond = [letter for letter in text if not letter.isascii()]
    signs = sum(letter in _SIGNS for letter in beyond) - odd
    # the case-folded dotted I of Turkish leaves a combining dot
    letters = "".join(letter for letter in beyond if letter not in _SIGNS).casefold().replace("\u0307", "")
    in_alphabet = max(sum(map(letters.count, alphabet)) for alphabet in ALPHABETS)
    return (in_alphabet + max(signs, 0)) / max(len(beyond), 1)


MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, because it starts with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE = 1 << 16


def utf8_blocks(
    blocks: Iterator[bytes], encoding: str, detect: bool, name: str, found: Callable[[str], None]
) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8 without a byte-order mark, in blocks.

    Args:
        blocks: the file's bytes; no block is empty.
        encoding: a codec, or "auto": given by the byte-order mark, else UTF-8 or a detected encoding.
        detect: whether `auto` can detect a legacy encoding in text that is not UTF-8. The first block that is not
            ASCII decides. Text whose first block is UTF-8 is not taken for UTF-16 or UTF-32; JSON, which contains no
            zeros, can be.
        name: the file, for messages.
        found: called with the encoding if it is not UTF-8 or could be another one.

    Raises:
        SourceError: UTF-16 or UTF-32 text is damaged; the message gives the byte.
    """
    first = next(blocks, b"")
    if encoding == "auto":
        mark, encoding = next(((mark, codec) for mark, codec in MARKS if first.startswith(mark)), (b"", ""))
        first = first.removeprefix(mark)
        wide = "" if encoding else _wide(first)
        if wide and detect and _is_utf8(first):
            found(f"UTF-8 with zero bytes like those of {wide}; set dataset.encoding if it is {wide}")
        else:
            encoding = encoding or wide
    rest = chained(first, blocks)
    if encoding:
        if codecs.lookup(encoding).name != "utf-8":
            found(encoding)
            yield from _without_mark(_decoded(rest, encoding, name))
        else:
            yield from _without_mark(rest)
    elif detect:
        yield from _detected(rest, name, found)
    else:
        yield from rest


def chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    """Return the blocks with `first` before them, unless it is empty."""
    return itertools.chain([first] if first else [], rest)


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield from chained(next(blocks, b"").removeprefix(codecs.BOM_UTF8), blocks)


def _wide(head: bytes) -> str:
    """Return the codec of UTF-16 or UTF-32 text without a mark, or "".

    In such text, the zeros of spaces, digits and line ends are at the same positions within each unit.
    """
    sample = head[: _SAMPLE - _SAMPLE % 4]
    if b"\0" not in sample:
        return ""
    zeros = np.flatnonzero(np.frombuffer(sample, np.uint8) == 0)
    if len(zeros) < max(2, len(sample) / 100) or (len(zeros) < len(sample) / 4 and _is_narrow(sample)):
        return ""
    # the fraction of zeros at each of the four places of a unit of UTF-32, or of two of UTF-16
    of_four = np.bincount(zeros % 4, minlength=4) / (len(sample) / 4)
    codecs_by_zeros = (
        ("utf-32-le", of_four[2:].min() > 0.5 and of_four[0] < 0.05),
        ("utf-32-be", of_four[:2].min() > 0.5 and of_four[3] < 0.05),
        ("utf-16-le", of_four[[0, 2]].max() < 0.02),
        ("utf-16-be", of_four[[1, 3]].max() < 0.02),
    )
    codec = next((codec for codec, fits in codecs_by_zeros if fits), "")
    if codec and b"\n" in sample and "\n" not in codecs.getincrementaldecoder(codec)("replace").decode(sample):
        return ""  # the byte of a line break that is none in the codec
    return codec


def _is_utf8(block: bytes) -> bool:
    """Return whether a block, which can end inside of a character, is UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block)
    except UnicodeDecodeError:
        return False
    return True


def _is_narrow(sample: bytes) -> bool:
    """Return whether bytes without their zeros are UTF-8 with few control characters; UTF-16 and UTF-32 are not."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(sample.replace(b"\0", b""))
    except UnicodeDecodeError:
        return False
    controls = sum(text.count(chr(code)) for code in range(1, 32) if chr(code) not in "\t\n\r\f")
    return controls < len(text) / 10


def _decoded(blocks: Iterator[bytes], encoding: str, name: str) -> Iterator[bytes]:
    # a byte that is passed through would shift the units of UTF-16 and UTF-32
    lenient = not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape" if lenient else "strict")
    done = 0
    try:
        for block in blocks:
            if text := decoder.decode(block):
                yield text.encode("utf-8", "surrogateescape")
            done += len(block)
        if text := decoder.decode(b"", final=True):
            yield text.encode("utf-8", "surrogateescape")
    except UnicodeError as error:
        at = done + error.start if isinstance(error, UnicodeDecodeError) else done
        raise SourceError(f"{name}: not valid {encoding} near byte {at}: {error}; set dataset.encoding") from error


def _detected(blocks: Iterator[bytes], name: str, found: Callable[[str], None]) -> Iterator[bytes]:
    for block in blocks:
        if block.isascii():
            yield block
            continue
        if (encoding := legacy_encoding(block)) is None:
            yield block
            yield from blocks
        else:
            found(encoding)
            yield from _decoded(chained(block, blocks), encoding, name)
        return
