"""A service that is not S3, or not whole: what it leaves out is named in one sentence; no more is read than fits."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.odd_server import Answer, OddServer, odd_server
from support.soak import some
from tokenloom.errors import StoreError
from tokenloom.resources.store.blobs import bucket as requests
from tokenloom.resources.store.blobs.bucket import Bucket

MIB = 1 << 20
NAME = "objects/x"
HEAD = {"Content-Length": 3, "Last-Modified": "Sat, 28 Nov 2026 20:00:00 GMT", "ETag": '"abc"'}
FIELDS = {"Key": "p/objects/x", "LastModified": "2026-11-28T20:00:00Z", "ETag": "abc", "Size": "3"}


def without(name: str) -> dict[str, str | int]:
    return {key: value for key, value in HEAD.items() if key != name}


def listing(**fields: str | None) -> Answer:
    stated = "".join(f"<{name}>{value}</{name}>" for name, value in (FIELDS | fields).items() if value is not None)
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{stated}</Contents></ListBucketResult>"
    return Answer(200, {"Content-Length": len(body)}, body.encode())


CALLS: dict[str, Callable[[Bucket], Any]] = {
    "stat": lambda bucket: bucket.stat(NAME),
    "read": lambda bucket: bucket.read(NAME),
    "list": lambda bucket: [*bucket.below("objects")],
    "touch": lambda bucket: bucket.touch(NAME),
    "write": lambda bucket: bucket.write(NAME, b"abc"),
    "delete": lambda bucket: bucket.delete_all([NAME]),
}
CASES: dict[str, tuple[str, Answer, str]] = {
    "no size": ("stat", Answer(200, without("Content-Length")), "states no ContentLength"),
    "no tag": ("stat", Answer(200, without("ETag")), "states no ETag"),
    "no time": ("stat", Answer(200, without("Last-Modified")), "states no LastModified"),
    "no headers": ("stat", Answer(), "states no"),
    "a time that is none": ("stat", Answer(200, {**HEAD, "Last-Modified": "soon"}), "cannot read the service's answer"),
    "a size that is none": ("stat", Answer(200, {**HEAD, "Content-Length": "three"}), "is unreachable"),
    "a body without size": ("read", Answer(200, without("Content-Length"), b"abc"), "states no ContentLength"),
    "an endless body": ("read", Answer(200, without("Content-Length"), 200 * MIB), "states no ContentLength"),
    "a huge body": ("read", Answer(200, {**HEAD, "Content-Length": 5 << 30}, 200 * MIB), "sends 5,368,709,120 bytes"),
    "an entry without size": ("list", listing(Size=None), "states no Size"),
    "an entry without tag": ("list", listing(ETag=None), "states no ETag"),
    "an entry without time": ("list", listing(LastModified=None), "states no LastModified"),
    "an entry without name": ("list", listing(Key=None), "states no Key"),
    "an entry of no size": ("list", listing(Size="three"), "cannot read the service's answer"),
    "an entry of no time": ("list", listing(LastModified="soon"), "cannot read the service's answer"),
    "a page of another kind": ("list", Answer(200, {}, b"<html></html>"), "states no IsTruncated"),
    "an empty page": ("list", Answer(200, {"Content-Length": 0}), "states no IsTruncated"),
    "text": ("list", Answer(200, {}, b"oops"), "returned 500"),
    "an endless listing": ("list", Answer(200, {}, 200 * MIB), "larger than 32 MiB"),
    "a huge 400": ("read", Answer(400, {"Content-Length": 200 * MIB}, 200 * MIB), "returned 400"),
    "a huge 403": ("stat", Answer(403, {"Content-Length": 200 * MIB}, 200 * MIB), "returned 403"),
    "an endless 500": ("write", Answer(500, {}, 200 * MIB), "returned 500"),
    "an endless 400 of a listing": ("list", Answer(400, {}, 200 * MIB), "returned 400"),
    "a long code": ("read", Answer(400, {}, b"<Error><Code>" + b"x" * 9000 + b"</Code></Error>"), "returned 400 x"),
    "a page for an error": ("read", Answer(400, {}, b"<html></html>"), "returned 400"),
    "an error of a copy": ("touch", Answer(200, {}, b"<Error><Code>InternalError</Code></Error>"), "returned 500"),
    "errors of a deletion": ("delete", Answer(200, {}, b"<DeleteResult><Error/></DeleteResult>"), ""),
    "nowhere": ("read", Answer(301, {"Content-Length": 0}), "301|cannot read the service's answer"),
    "a long header": ("read", Answer(200, {**HEAD, "x": "y" * 100_000}, b"abc"), "unreachable"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[OddServer]:
    with odd_server() as odd, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "someone")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", odd.url)
        yield odd


@pytest.mark.parametrize("case", some(CASES, 2))
def test_an_odd_answer_is_one_sentence_and_is_not_read_to_its_end(
    server: OddServer, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    call, server.answer, message = CASES[case]
    bucket = Bucket("s3://stores/p")
    bucket._s3._system()  # what is imported takes memory, too
    server.sent, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if message:
        with pytest.raises(StoreError, match=message) as raised:
            CALLS[call](bucket)
        text = str(raised.value)
        assert text.isprintable() and len(text) < 400 and "stores/p" in text
    else:
        CALLS[call](bucket)
    assert server.sent < 9 * 16 * MIB  # what sockets hold of each attempt
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
