"""Hostile CSV, TSV and plain text: quotes, columns, ragged rows, and lines without an end."""

from __future__ import annotations

from collections.abc import Iterator

from support.hostile_inputs.hostile_input import INSPECT, MIB, HostileInput, data_file

DELIMITED = {
    "an endless quote": b'text,b\nx,1\n"' + b"y\n" * 500_000,
    "a quote in a header": b'"text,b\nx,1\n',
    "a quote inside": b'text,b\nx"y"z,1\nx,2\n',
    "text after a quote": b'text,b\n"x"y,1\nx,2\n',
    "quotes of quotes": b"text,b\n" + b'"' * 999_999 + b",1\nx,2\n",
    "only quotes": b'"' * MIB,
    "only delimiters": b"," * MIB,
    "a million columns": b",".join(b"c%d" % n for n in range(1_000_000)) + b"\nx\n",
    "a million columns later": b"text,b\nx,1\n" + b"," * 1_000_000 + b"\ny,2\n",
    "ragged rows": b"text,b\n" + b"".join(b"x" + b",1" * (n % 5) + b"\n" for n in range(50_000)),
    "NUL": b"text,b\nx\0y,1\n\0,\0\n",
    "only NUL": b"\0" * MIB,
    "only a header": b"text,b\n",
    "no header": b"1,2\n3,4\n",
    "no names": b",,,\na,b,c,d\n",
    "one name": b"text,text,text\na,b,c\n",
    "the row's own name": b"text,_row\nx,1\n",
    "a name with markup": b'text,"[/red]","[b"\nx,1,2\n',
    "a name with controls": b'text,"\x1b[2J\x07\n"\nx,1\n',
    "a name of 1 MiB": b"text," + b"n" * MIB + b"\nx,1\n",
    "carriage returns": b"text,b\rx,1\ry,2\r",
    "mixed line ends": b"text,b\r\nx,1\ry,2\nz,3\n\r\r\n",
    "formulas": b"text,b\n\"=cmd|' /C calc'!A0\",@SUM(1)\n",
    "semicolons": b"text;b;c\nx;1;2\n",
    "pipes and tabs": b"text|b\tc\nx|1\t2\n",
    "latin-1": b"text,b\ncaf\xe9,1\n",
    "bad UTF-8": b"text,b\n\xff\xfe\xfd,1\nx,2\n" + b"\xc0\x80,3\n" * 1000,
    "BOM": b"\xef\xbb\xbftext,b\nx,1\n",
    "BOM twice": b"\xef\xbb\xbf\xef\xbb\xbftext,b\nx,1\n",
    "a field of 70 MiB": b"text,b\nx,1\n" + b"y" * 70 * MIB + b",2\nz,3\n",
    "a million empty quotes": b"text,b\n" + b'"",""\n' * 1_000_000,
    "60 MiB of line ends": b"text,b\nx,1\n" + b"\n" * 60 * MIB + b"y,2\n",
    "a quote per line": b"text,b\n" + b'"a\n",1\n' * 200_000,
}
"""Files of delimited text, read as CSV."""

LINES = {
    "no line end": b"x" * 8 * MIB,
    "70 MiB without a line end": b"x" * 70 * MIB,
    "100 MiB of line ends": b"a\n" + b"\n" * 100 * MIB + b"b\n",
    "only line ends": b"\n" * 60 * MIB,
    "only CRLF": b"\r\n" * 8 * MIB,
    "only carriage returns": b"\r" * 8 * MIB,
    "only spaces": b" " * 8 * MIB,
    "spaces and line ends": b" \n" * 4 * MIB + b"a\n",
    "only NUL": b"\0" * 8 * MIB,
    "a million letters": b"x\n" * 1_000_000,
    "two million line ends and letters": b"\n\n\nx\n" * 500_000,
    "line separators": "a\u2028b\u2029c\x85d\n".encode() * 1000,
    "controls": bytes(range(32)) * 1000,
    "all bytes": bytes(range(256)) * 1000,
    "escape sequences": b"\x1b]0;title\x07\x1b[2J\x1b[31m\n" * 1000,
    "right to left": "\u202e\u2066abc\u2069\n".encode() * 1000,
    "joined letters": ("\U0001f468\u200d" * 100_000 + "\n").encode(),
    "accents": ("e" + "\u0301" * 500_000 + "\n").encode(),
    "special tokens": b"</s><|endoftext|><|im_start|><s>\n" * 3000,
}


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, content in DELIMITED.items():
        yield data_file("csv", f"{name}.csv", content)
    for name in ("an endless quote", "ragged rows", "no names", "only delimiters", "quotes of quotes"):
        yield data_file("tsv", f"{name}.tsv", DELIMITED[name].replace(b",", b"\t"))
    for name in ("a name with markup", "a name with controls", "one name", "NUL", "no names", "a name of 1 MiB"):
        yield data_file("csv", f"{name}.csv", DELIMITED[name], command=INSPECT)
    for delimiter in ("\n", '"', "xx", "\0", "", "é"):
        settings = {"reader": {"delimiter": delimiter}}
        yield data_file("csv", f"delimiter {delimiter!r}.csv".replace("\\", ""), b"text,b\nx,1\n", dataset=settings)
    for name, content in LINES.items():
        yield data_file("text", f"{name}.txt", content)
    for rows in ("paragraph", "file"):
        for name in ("no line end", "100 MiB of line ends", "only spaces", "spaces and line ends", "a million letters"):
            yield data_file("text", f"{name} by {rows}.txt", LINES[name], dataset={"reader": {"lines_per_row": rows}})
    for name in ("all bytes", "escape sequences"):
        yield data_file("text", f"{name}.txt", LINES[name], command=INSPECT)
