"""Detects the encoding of text that is not UTF-8.

charset-normalizer determines the script. It cannot distinguish encodings of the Latin script in short text; among
these, the encoding wins in which the letters beyond ASCII best match the alphabet of one language.
"""

from __future__ import annotations

import codecs
import re
import unicodedata

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
_FEW_BYTES, _SAMPLE, _MIN_SCORE = 16, 1 << 16, 0.9
_ODD_IN_WESTERN = frozenset(b"\x80\x81\x8d\x8f\x90\x9d\xfe\xff")


def legacy_encoding(block: bytes) -> str | None:
    """Return the encoding of text that is clearly not UTF-8, or None if it is UTF-8 or the encoding is uncertain.

    Text counts as UTF-8 if it contains at least as many multi-byte UTF-8 sequences as invalid bytes.
    """
    text = block.decode("utf-8", "replace")
    invalid = text.count("\ufffd") - block.count("\ufffd".encode()) - _is_cut(block)
    if invalid <= 0 or len(text) - len(text.encode("ascii", "ignore")) >= 2 * invalid:
        return None
    high = block.translate(None, bytes(range(0x80)))
    if len(high) < _FEW_BYTES and set(high) & _ODD_IN_WESTERN:
        return None
    from charset_normalizer import from_bytes

    sample = b"\n".join(line for line in block.split(b"\n") if not line.isascii())[:_SAMPLE]
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
    letters = "".join(letter for letter in beyond if letter not in _SIGNS).casefold().replace("\u0307", "")
    known = max(sum(map(letters.count, alphabet)) for alphabet in ALPHABETS)
    return (known + max(signs, 0)) / max(len(beyond), 1)


def _is_cut(block: bytes) -> int:
    """Return 1 if the block ends inside a UTF-8 sequence, else 0."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block[-4:])
    return int(bool(decoder.getstate()[0]))
