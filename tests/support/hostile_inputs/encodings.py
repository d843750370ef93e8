"""Text in an encoding other than it seems or than the YAML declares."""

from __future__ import annotations

import codecs
import random
from collections.abc import Iterator

from support.hostile_inputs.hostile_input import FIRST, LAST, MIB, HostileInput, data_file

TEXT = (FIRST * 20 + LAST).decode()


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    noise = random.Random(0).randbytes(MIB)
    content = {
        "UTF-16 without a mark": TEXT.encode("utf-16-le"),
        "UTF-16 BE without a mark": TEXT.encode("utf-16-be"),
        "UTF-32 without a mark": TEXT.encode("utf-32-le"),
        "UTF-16 cut in a character": (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"))[:-1],
        "a mark of UTF-16 before UTF-8": codecs.BOM_UTF16_LE + TEXT.encode(),
        "a mark of UTF-32 before UTF-8": codecs.BOM_UTF32_BE + TEXT.encode(),
        "a mark of UTF-8 before UTF-16": codecs.BOM_UTF8 + TEXT.encode("utf-16-le"),
        "two encodings": TEXT.encode() + TEXT.encode("utf-16-le"),
        "UTF-16 then UTF-8": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le") + TEXT.encode(),
        "lone surrogates in UTF-16": codecs.BOM_UTF16_LE + b"\x00\xd8" * 1000,
        "noise": noise,
        "noise with a mark of UTF-16": codecs.BOM_UTF16_BE + noise,
        "UTF-7": b"+AHsAIgB0AGUAeAB0ACIAOgAiAHgAIgB9-\n",
        "EBCDIC": TEXT.encode("cp500"),
        "Shift JIS": "これは文章です。\n".encode("shift_jis") * 100,
        "GB18030": "这是一个句子。\n".encode("gb18030") * 100,
        "windows-1251": "Это предложение.\n".encode("cp1251") * 100,
        "a late latin-1 letter": b"plain text\n" * 500_000 + b"caf\xe9\n",
    }
    for name, data in content.items():
        yield data_file("encoding", f"{name}.jsonl", data)
        yield data_file("encoding", f"{name}.txt", data)
    declared = ("utf-16", "utf-32", "latin-1", "utf-7", "idna", "rot13", "base64", "zlib", "unicode_escape", "punycode")
    for encoding in (
        *declared,
        "raw_unicode_escape",
        "undefined",
        "hz",
        "iso2022_kr",
        "x" * 5000,
        "../../etc",
        "\0",
        "",
    ):
        name = f"declared {encoding[:12]!r}.txt".replace("/", " ").replace("\\", "")
        yield data_file("encoding", name, TEXT.encode(), dataset={"encoding": encoding})
