"""Servers of sources that leave out headers, redirect without end, or send far more than they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.odd_server import Answer, odd_server
from support.raw_rows import read
from tokenloom.errors import TokenloomError

MIB = 1 << 20
ROW = b'{"text": "a"}\n'
CASES: dict[str, tuple[str, Answer, str]] = {
    "no size of a table": ("x.parquet", Answer(200, {}, b"PAR1"), "the server states no size of it.*download it"),
    "no size of an index": ("x.idx", Answer(200, {}, b"MMIDIDX"), "the server states no size of it.*download it"),
    "a huge 400": ("x.jsonl", Answer(400, {"Content-Length": 200 * MIB}, 200 * MIB), "the server returned 400"),
    "a huge 403": ("x.parquet", Answer(403, {}, 200 * MIB), "the server returned 403"),
    "a huge 404": ("x.csv", Answer(404, {}, 200 * MIB), "no such file"),
    "a huge 500": ("x.jsonl.gz", Answer(500, {}, 200 * MIB), "the server returned 500"),
    "a redirect to itself": ("x.jsonl", Answer(301, {"Location": "/x.jsonl", "Content-Length": 0}), "no such file"),
    "a redirect to a file": ("x.jsonl", Answer(302, {"Location": "file:///etc/passwd"}), "no such file"),
    "a size that is none": ("x.jsonl", Answer(200, {"Content-Length": "three"}, ROW), "the server returned 400"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_odd_server_is_one_sentence(case: str) -> None:
    name, answer, message = CASES[case]
    with odd_server() as server:
        server.answer = answer
        with pytest.raises(TokenloomError, match=rf"^{name}: .*{message}") as raised:
            read(Path("x"), name=f"{server.url}/{name}")
        assert str(raised.value).isprintable() and len(str(raised.value)) < 300
        assert server.sent < 40 * MIB


def test_an_endless_line_of_a_server_is_one_reject() -> None:
    with odd_server() as server:
        server.answer = Answer(200, {}, 100 * MIB)
        rows, rejects, _ = read(Path("x"), name=f"{server.url}/x.jsonl")
    assert (rows, [reject["code"] for reject in rejects]) == ([], ["too_large"])
