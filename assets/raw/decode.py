"""Brings a file's text to UTF-8, block by block: byte-order marks, a declared encoding, or a detected one.

Bytes that are no text in the encoding stay as they are, so that they are no UTF-8 and only their row is rejected.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator

from tokenloom.errors import SourceError

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LEGACY = (
    *("cp1252", "mac_roman", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258"),
    *("iso8859_2", "iso8859_5", "iso8859_15", "cp437", "cp850", "cp866", "mac_cyrillic", "cp874"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
"""Encodings that are tried where text is not UTF-8, all of them ASCII below 128; cp1252 holds all of latin-1's text."""

WESTERN = "cp1252"
_FEW, _SAMPLE = 16, 1 << 16
_ODD_IN_WESTERN = frozenset(b"\x80\x81\x8d\x8f\x90\x9d\xfe\xff")


def utf8_blocks(
    blocks: Iterator[bytes], encoding: str, detect: bool, name: str, found: Callable[[str], None]
) -> Iterator[bytes]:
    """The text of a file as UTF-8 without a byte-order mark, in blocks.

    Args:
        blocks: the file's bytes; none of them empty.
        encoding: a codec, or "auto": by the byte-order mark, else UTF-8 or what `detect` finds.
        detect: whether `auto` may take text that is not UTF-8 for a legacy encoding, decided at the first block that
            is not ASCII.
        name: the file, for messages.
        found: told of an encoding other than UTF-8.

    Raises:
        SourceError: UTF-16 or UTF-32 text is damaged; the message names the byte.
    """
    first = next(blocks, b"")
    if encoding == "auto":
        mark, encoding = next(((mark, codec) for mark, codec in MARKS if first.startswith(mark)), (b"", ""))
        first = first.removeprefix(mark)
        encoding = encoding or _wide(first)
    rest = _chained(first, blocks)
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


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    yield from _chained(first, blocks)


def _wide(head: bytes) -> str:
    """UTF-16 or UTF-32 without a mark: text that begins with two ASCII characters shows by its zeros (RFC 4627)."""
    patterns = {"x0x0": "utf-16-le", "0x0x": "utf-16-be", "x000": "utf-32-le", "000x": "utf-32-be"}
    zeros = "".join("x" if byte else "0" for byte in head[:4])
    sample = head[:4096]
    return patterns.get(zeros, "") if sample.count(0) > len(sample) / 4 else ""


def _decoded(blocks: Iterator[bytes], encoding: str, name: str) -> Iterator[bytes]:
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
        raise SourceError(f"{name}: not {encoding} text near byte {at}: {error}; set dataset.encoding") from error


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
            yield from _decoded(_chained(block, blocks), encoding, name)
        return


def legacy_encoding(block: bytes) -> str | None:
    """The encoding of text that is plainly not UTF-8, or None where it is, or where nothing is sure.

    Text counts as UTF-8 when it holds at least as many of its sequences as bytes that fit none. Else
    charset-normalizer decides among `LEGACY`, and `WESTERN` wins where that is as likely as its first choice.
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
    matches = list(from_bytes(telling, cp_isolation=list(LEGACY)))
    if not matches:
        return None
    best = matches[0]
    western = next((match for match in matches if match.encoding == WESTERN), None)
    alike = western is not None and (western.chaos, -western.coherence) <= (best.chaos, -best.coherence)
    return WESTERN if alike or WESTERN in best.could_be_from_charset else best.encoding


def _is_cut(block: bytes) -> int:
    """1 where the block ends inside a UTF-8 sequence, else 0."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(block[-4:])
    return int(bool(decoder.getstate()[0]))
