"""Tells in which encoding text is that is not UTF-8.

charset-normalizer finds the script. Among encodings of the Latin script, which it cannot tell apart by short text, that
one wins in which the letters beyond ASCII are those of one language's alphabet.
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
"""Encodings that are tried, all of them ASCII below 128; cp1252 holds all of latin-1's text. The first ones are those
of the Latin script, the likeliest first."""

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
"""Small letters beyond ASCII of languages in the Latin script, one string each."""

_SIGNS = frozenset(
    "\u00a0\u00a1\u00bf\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2022\u2026\u20ac\u00a3\u00a7\u00b0\u00a9\u00ae\u2122\u00b7\u00aa\u00ba\u00bd"
)
_WITHIN_WORD = re.compile(r"(?<=[^\W\d_])([^\w\s\u2019\u2018\u00b7\u2013])(?=[^\W\d_])")
_FEW, _SAMPLE, _FITS = 16, 1 << 16, 0.9
_ODD_IN_WESTERN = frozenset(b"\x80\x81\x8d\x8f\x90\x9d\xfe\xff")


def legacy_encoding(block: bytes) -> str | None:
    """The encoding of text that is plainly not UTF-8, or None where it is, or where nothing is sure.

    Text counts as UTF-8 when it holds at least as many of its sequences as bytes that fit none.
    """
    text = block.decode("utf-8", "replace")
    invalid = text.count("\ufffd") - block.count("\ufffd".encode()) - _is_cut(block)
    if invalid <= 0 or len(text) - len(text.encode("ascii", "ignore")) >= 2 * invalid:
        return None
    high = block.translate(None, bytes(range(0x80)))
    if len(high) < _FEW and set(high) & _ODD_IN_WESTERN:
        return None
    from charset_normalizer import from_bytes

    telling = b"\n".join(line for line in block.split(b"\n") if not line.isascii())[:_SAMPLE]
    best = from_bytes(telling, cp_isolation=list(ENCODINGS)).best()
    found = None if best is None else best.encoding
    if found is None or found in LATIN or _is_latin(str(best)):
        scores = [(_fit(telling, encoding), -rank, encoding) for rank, encoding in enumerate(LATIN)]
        score, _, encoding = max(scores)
        return encoding if score >= _FITS else found
    return found


def _is_latin(text: str) -> bool:
    letters = [letter for letter in text[:4096] if not letter.isascii() and letter.isalpha()]
    latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return latin > len(letters) / 2


def _fit(data: bytes, encoding: str) -> float:
    """The share of characters beyond ASCII that the language which fits best has letters or signs for."""
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
    """1 where the block ends inside a UTF-8 sequence, else 0."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block[-4:])
    return int(bool(decoder.getstate()[0]))
