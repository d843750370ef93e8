"""Hostile JSON and JSON Lines: depth, width, numbers, names, escapes, and records without an end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from support.hostile_inputs.hostile_input import FIRST, INSPECT, LAST, MIB, HostileInput, data_file

BETWEEN = {
    "unknown escape": rb'{"text": "\x41"}',
    "half an escape": rb'{"text": "\u12"}',
    "lone high surrogate": rb'{"text": "\ud800"}',
    "lone low surrogate": rb'{"text": "\udc00"}',
    "surrogates in reverse": rb'{"text": "\udc00\ud800"}',
    "lone surrogate in a name": rb'{"text": "x", "\ud800": 1}',
    "raw control character": b'{"text": "a\x01b"}',
    "raw tab": b'{"text": "a\tb"}',
    "raw NUL": b'{"text": "a\0b"}',
    "NUL between": b'{"text":\0"a"}',
    "escaped NUL": rb'{"text": "a\u0000b"}',
    "single quotes": b"{'text': 'x'}",
    "name without quotes": b'{text: "x"}',
    "trailing comma": b'{"text": "x",}',
    "comment": b'{"text": "x"} // comment',
    "block comment": b'/* comment */ {"text": "x"}',
    "two commas": b'{"text": "x",,"a": 1}',
    "no colon": b'{"text" "x"}',
    "no value": b'{"text": }',
    "only a comma": b",",
    "open object": b'{"text": "x"',
    "open text": b'{"text": "x',
    "closed twice": b'{"text": "x"}}',
    "two on a line": b'{"text": "x"}{"text": "y"}',
    "forty on a line": b'{"text": "x"} ' * 40,
    "BOM between": b'\xef\xbb\xbf{"text": "x"}',
    "BOM in a name": b'{"\xef\xbb\xbftext": "x"}',
    "overlong UTF-8": b'{"text": "\xc0\xaf"}',
    "UTF-8 of a surrogate": b'{"text": "\xed\xa0\x80"}',
    "beyond Unicode": b'{"text": "\xf4\x90\x80\x80"}',
    "half a character": b'{"text": "\xe2\x82"}',
    "latin-1": b'{"text": "caf\xe9"}',
    "record separator": b'\x1e{"text": "x"}',
    "form feed": b'\x0c{"text": "x"}',
    "no-break space": b'\xc2\xa0{"text": "x"}',
    "line separator inside": '{"text": "a\u2028b"}'.encode(),
    "null": b"null",
    "true": b"true",
    "text": b'"x"',
    "number": b"1",
    "list": b"[1]",
    "list of pairs": b'[["text", "x"]]',
    "NaN": b'{"text": NaN}',
    "Infinity": b'{"text": "x", "n": -Infinity}',
    "hexadecimal": b'{"text": "x", "n": 0x10}',
    "leading zero": b'{"text": "x", "n": 01}',
    "bare point": b'{"text": "x", "n": 1.}',
    "plus": b'{"text": "x", "n": +1}',
    "1e400": b'{"text": "x", "n": 1e400}',
    "1e999999999": b'{"text": "x", "n": 1e999999999}',
    "minus zero": b'{"text": "x", "n": -0}',
    "2^63": b'{"text": "x", "n": 9223372036854775808}',
    "5,000 digits": b'{"text": "x", "n": %s}' % (b"7" * 5000),
    "100,000 decimals": b'{"text": "x", "n": 0.%s}' % (b"7" * 100_000),
    "an exponent of 100,000 digits": b'{"text": "x", "n": 1e%s}' % (b"7" * 100_000),
    "no name": b'{"": "x"}',
    "the row's own name": b'{"text": "x", "_row": 1}',
    "a prototype": b'{"text": "x", "__proto__": {"a": 1}, "__class__": 1}',
    "a name twice": b'{"text": "x", "text": "y"}',
    "a name 100,000 times": b"{" + b'"a": 1, ' * 100_000 + b'"text": "x"}',
    "a name of 4 MiB": b'{"text": "x", "%s": 1}' % (b"n" * 4 * MIB),
    "a name with markup": b'{"text": "x", "[/bold] [link=x]": 1}',
    "a name with controls": rb'{"text": "x", "\u001b[2J\n\r\u0007\u202e": 1}',
    "an empty object": b"{}",
    "text of a list": b'{"text": ["x"]}',
    "text of an object": b'{"text": {"a": "x"}}',
    "text of a number": b'{"text": 5}',
    "deep text": b'{"text": %s1%s}' % (b"[" * 70, b"]" * 70),
    "a million lists": b'{"text": "x", "a": %s' % (b"[" * 1_000_000),
    "a million objects": b'{"text": "x", "a": %s' % (b'{"a":' * 1_000_000),
    "a million empty lists": b'{"text": "x", "a": [%s[]]}' % (b"[]," * 1_000_000),
    "a million zeros": b'{"text": "x", "a": [%s0]}' % (b"0," * 1_000_000),
    "a million backslashes": b'{"text": "%s"}' % (b"\\\\" * 1_000_000),
    "a million accents": '{"text": "a%s"}'.replace("%s", "\u0301" * 1_000_000).encode(),
    "a million NULs": rb'{"text": "%s"}' % (rb"\u0000" * 1_000_000),
    "a million quotes": b'{"text": "%s"}' % (rb"\"" * 1_000_000),
    "a million spaces": b'{"text": "x%s"}' % (b" " * 1_000_000),
    "eight million letters": b'{"text": "%s"}' % (b"x" * 8 * MIB),
    "2^20 names": b'{"text": "x", %s}' % b", ".join(b'"k%d": 1' % n for n in range(1 << 20)),
    "2^20 inner names": b'{"text": "x", "a": {%s}}' % b", ".join(b'"k%d": 1' % n for n in range(1 << 20)),
}
"""What is between two good lines."""

WHOLE = {
    "a number": b"1",
    "a text": b'"x"',
    "null": b"null",
    "null and a line": b"null\n" + FIRST,
    "an open list": b"[",
    "an open object": b"{",
    "a comma in a list": b"[,]",
    "an empty list": b"[]",
    "an empty object": b"{}",
    "a list of nulls": b"[null, null]",
    "a list of numbers": b"[1, 2, 3]",
    "a list of lists": b"[[[1]], [[2]]]",
    "an object of numbers": b'{"a": 1, "b": 2}',
    "two lists": b'[{"text": "x"}] [{"text": "y"}]',
    "two lists in an object": b'{"a": [{"text": "x"}], "b": [{"text": "y"}]}',
    "a list closed by a brace": b'[{"text": "x"}}',
    "text after a list": b'[{"text": "x"}] x',
    "a quote that is never closed": b'[{"text": "x"}, {"text": "' + b"x" * MIB,
    "a million brackets": b"[" * 1_000_000,
    "a million braces": b'{"a":' * 1_000_000,
    "a million commas": b"[" + b"," * 1_000_000 + b"]",
    "a million objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "a million entries": b"{" + b",".join(b'"k%d":{"text":"x"}' % n for n in range(300_000)) + b"}",
    "one name for all entries": b"{" + b",".join([b'"k":{"text":"x"}'] * 1000) + b"}",
    "lists inside lists": b'{"a": [{"b": [{"c": [{"text": "x"}]}]}]}',
    "32 MiB of spaces": b" " * 32 * MIB,
    "16 MiB of spaces in a list": b'[{"text": "x"},' + b" " * 16 * MIB + b'{"text": "y"}]',
}
"""Whole files, read as `.json` and as `.jsonl`."""


def inputs() -> Iterator[HostileInput]:
    """Yield all of them."""
    for name, record in BETWEEN.items():
        file = partial(data_file, "json record", f"{name}.jsonl".replace("/", " "), FIRST + record + b"\n" + LAST)
        yield file("3: .*_row is reserved" if name == "the row's own name" else r"0: [34] rows|\d: x.*")
        if len(record) < 300 and any(word in name for word in ("name", "surrogate", "control", "NaN", "1e", "NUL")):
            yield file("", command=INSPECT)
    for name, content in WHOLE.items():
        yield data_file("json file", f"{name}.json", content)
    for name in ("null and a line", "a million brackets", "an open list", "a million objects", "32 MiB of spaces"):
        yield data_file("json file", f"{name}.jsonl", WHOLE[name])
    yield from _wide()
    yield from _long()
    yield from _roots()


def _wide() -> Iterator[HostileInput]:
    """Yield files whose rows or nested values have many different names."""
    rows = b"".join(b'{"text": "x", "k%d": 1}\n' % n for n in range(1 << 17))
    yield data_file("json names", "a name per row.jsonl", rows, "3: .*columns")
    yield data_file("json names", "inspect too.jsonl", rows, "3: .*columns", command=INSPECT)
    rows = b"".join(b'{"text": "x", "a": {"k%d": 1}}\n' % n for n in range(1 << 18))
    yield data_file("json names", "an inner name per row.jsonl", rows, f"0: {1 << 18} rows, 0 rejected")
    rows = b"".join(b'{"text": "x", "a": {"k%d": {"k%d": "v"}}}\n' % (n % 300, n) for n in range(1 << 16))
    yield data_file("json names", "names in names.jsonl", rows, f"0: {1 << 16} rows, 0 rejected")
    rows = b"".join(b'{"text": "x", "a": [{"k%d": [%d]}, {"j%d": {}}]}\n' % (n, n, n) for n in range(1 << 16))
    yield data_file("json names", "names in lists.jsonl", rows, f"0: {1 << 16} rows, 0 rejected")
    many = [json.dumps({"text": "x", "a": {f"k{n}": n for n in range(9000)}}).encode() + b"\n"] * 60
    yield data_file("json names", "9,000 inner names in each row.jsonl", b"".join(many), "0: 60 rows, 0 rejected")
    few = b"".join(b'{"text": "x", "a": {"k%d": 1}}\n' % (n % 9000) for n in range(100_000))
    yield data_file("json names", "9,000 inner names in 100,000 rows.jsonl", few, "0: 100000 rows, 0 rejected")
    first = json.dumps({"text": "x", "a": {f"k{n}": 1 for n in range(20_000)}}).encode() + b"\n"
    rows = first + b'{"text": "x", "a": {}}\n' * 200_000
    yield data_file("json names", "20,000 inner names in one row.jsonl", rows, "0: 200001 rows, 0 rejected")
    first = json.dumps({"text": "x", **{f"k{n}": 1 for n in range(9990)}}).encode() + b"\n"
    rows = first + b'{"text": "x"}\n' * 50_000
    yield data_file("json names", "9,990 names in one row.jsonl", rows, "3: .*columns")
    kinds = (b'"x"', b"1", b"[1]", b'{"a": 1}', b"null", b"true", b"1.5")
    rows = b"".join(b'{"text": "x", "a": %s}\n' % kinds[n % 7] for n in range(100_000))
    yield data_file("json names", "another kind in each row.jsonl", rows, "0: 100000 rows, 0 rejected")
    rows = b"".join(b'{"text": "x", "a": %s}\n' % (b'{"a":' * (n % 60) + b"1" + b"}" * (n % 60)) for n in range(20_000))
    yield data_file("json names", "another depth in each row.jsonl", rows, "0: 20000 rows, 0 rejected")
    wide = {"": "x"}
    for _ in range(14):
        wide = {"a": wide, "b": wide}
    yield data_file("json names", "a tree of 2^14 leaves.jsonl", FIRST + json.dumps(wide).encode() + b"\n" + LAST)


def _long() -> Iterator[HostileInput]:
    """Yield files with many or endless records."""
    yield data_file("json size", "an endless record.jsonl", FIRST + b'{"text": "' + b"x" * 80 * MIB, "0: 2 rows, 1 rej")
    yield data_file("json size", "an endless list.json", b'[{"text": "' + b"x" * 80 * MIB)
    yield data_file("json size", "100 MiB of line ends.jsonl", FIRST + b"\n" * 100 * MIB + LAST, "0: 2 rows, 0 rej")
    yield data_file("json size", "50 MiB of CRLF.jsonl", FIRST + b"\r\n" * 25 * MIB + LAST, "0: 2 rows, 0 rejected")
    yield data_file("json size", "only carriage returns.jsonl", (FIRST + LAST).replace(b"\n", b"\r") * 1000)
    yield data_file("json size", "no last line end.jsonl", FIRST + LAST[:-1], "0: 2 rows, 0 rejected")
    yield data_file("json size", "a million empty objects.jsonl", FIRST + b"{}\n" * 1_000_000, "2: .*column_mapping")
    yield data_file("json size", "300,000 bad lines.jsonl", FIRST + b"{\n" * 300_000, "0: 300001 rows, 300000 rejected")
    bad = b'{"text": "\xff"}\n' * 100_000
    yield data_file("json size", "100,000 lines that are not UTF-8.jsonl", FIRST + bad, "0: 100001 rows, 100000 rej")
    yield data_file(
        "json size", "100 letters at most.jsonl", FIRST * 9, "3: .*", dataset={"reader": {"max_record_bytes": 9}}
    )
    many = b'{"text": "' + b"x" * 300_000 + b'"}\n'
    yield data_file("json size", "60 large records.jsonl", many * 60, "0: 60 rows, 0 rejected")
    mixed = FIRST * 1000 + b'{"text": "' + b"x" * 30 * MIB + b'"}\n' + FIRST * 1000
    yield data_file("json size", "a record of 30 MiB.jsonl", mixed, "0: 2001 rows, 0 rejected")


def _roots() -> Iterator[HostileInput]:
    """Yield paths to the rows that lead nowhere, or far."""
    nested = b'{"a": {"b": [{"text": "x", "c": [{"d": 1}]}]}}'
    roots = (
        "a.b[]",
        "a[]",
        "b[]",
        "a.b[].c[]",
        "a.b[].x[]",
        "a.b",
        "[]",
        "a..b[]",
        "`a.b[]",
        "a.b[]" * 500,
        "x" * 9999,
    )
    for number, root in enumerate(roots):
        yield data_file("json root", f"root {number}.json", nested, dataset={"reader": {"root": root}})
    rows = b'{"a": [%s]}' % b",".join([b'{"b": [%s]}' % b",".join([b'{"text": "x"}'] * 300)] * 300)
    yield data_file("json root", "300 times 300.json", rows, "0: 90000 rows", dataset={"reader": {"root": "a[].b[]"}})
    wide = b'{"a": [{"around": "%s", "b": [%s]}]}' % (b"x" * MIB, b",".join([b'{"text": "x"}'] * 3000))
    yield data_file("json root", "3,000 times 1 MiB.json", wide, dataset={"reader": {"root": "a[].b[]"}})
