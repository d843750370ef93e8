"""Rows with hostile images, paths, addresses and marks: each is rejected with a code and a sentence, or stops the build
with a sentence; no address is reached that the YAML does not list."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image

from support.image_rows import Built, Oracle, write_lines, write_yaml
from support.vision_processors import picture
from tokenloom.assets.media import places
from tokenloom.errors import SourceUnavailableError, TokenloomError

Row = dict[str, Any]


def encoded(width: int = 40, height: int = 30, name: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(width, height).save(file, name, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            *(
                struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
                for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b""))
            ),
        ]
    )


def url_of(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def asked(*parts: Any, answer: Any = "A cat.", **columns: Any) -> Row:
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else [*parts]
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], **columns}


def shown(path: Any, **fields: Any) -> Row:
    return asked({"type": "image", "path": path, **fields}, {"type": "text", "text": "What?"})


def nested(depth: int) -> Any:
    value: Any = "a.png"
    for _ in range(depth):
        value = {"image": value}
    return value


GOOD = {"type": "image", "image": url_of(encoded())}
TEXT = {"type": "text", "text": "What?"}

ROWS: dict[str, tuple[Row, str]] = {
    # content
    "a truncated PNG": (shown("truncated.png"), "image_damaged"),
    "a truncated JPEG": (shown("truncated.jpg"), "image_damaged"),
    "a text": (shown("text.png"), "not_an_image"),
    "nothing": (shown("empty.png"), "not_an_image"),
    "a bomb of a header": (shown("bomb.png"), "image_too_large"),
    "too many pixels": (shown("large.png"), "image_too_large"),
    "no pixels": (shown("zero.png"), "image_empty"),
    "a header only": (shown("header.png"), "image_damaged"),
    "an SVG": (shown("a.svg"), "not_an_image"),
    "a PDF": (shown("a.pdf"), "not_an_image"),
    "noise": (shown("noise.bin"), "not_an_image"),
    # paths
    "a missing file": (shown("missing.png"), "image_missing"),
    "a path to above": (shown("../secret.png"), "image_outside"),
    "a long way to above": (shown("a/b/../../../../../../../../../../etc/passwd"), "image_outside"),
    "an absolute path": (shown("/etc/passwd"), "image_outside"),
    "an endless device": (shown("/dev/zero"), "image_outside"),
    "a link to outside": (shown("link.png"), "image_outside"),
    "a link to an endless device": (shown("zero"), "image_outside"),
    "a link to itself": (shown("loop.png"), "image_missing"),
    "a FIFO": (shown("fifo"), "image_missing"),
    "a folder": (shown("folder"), "image_missing"),
    "the folder": (shown("."), "image_missing"),
    "a NUL byte": (shown("a\0.png"), "image_missing"),
    "a long name": (shown("a" * 5000), "image_missing"),
    "a long path": (shown("a/" * 3000), "image_missing"),
    "a file below a file": (shown("good.png/a.png"), "image_missing"),
    # base64
    "no base64": (asked({"type": "image", "base64": "%%%"}, TEXT), "image_part"),
    "base64 with a wrong length": (asked({"type": "image", "base64": "abcde"}, TEXT), "image_part"),
    "base64 of nothing": (asked({"type": "image", "image": "data:image/png;base64,"}, TEXT), "not_an_image"),
    "large base64 of zeros": (asked({"type": "image", "base64": "AAAA" * 1_000_000}, TEXT), "not_an_image"),
    "a data URL in plain text": (asked({"type": "image", "image": "data:image/png,abc"}, TEXT), "image_part"),
    "a data URL without a comma": (asked({"type": "image", "image": "data:image/png;base64"}, TEXT), "image_part"),
    # addresses
    "a file URL": (shown("file:///etc/passwd"), "image_outside"),
    "a file URL with an escaped path": (shown("file://%2e%2e/secret.png"), "image_outside"),
    "a file URL of another host": (shown("file://example.org/etc/passwd"), "image_missing"),
    "a file URL with a NUL": (shown("file:///%00"), "image_missing"),
    "an FTP URL": (shown("ftp://127.0.0.1/a.png"), "image_refused"),
    "an S3 URL": (shown("s3://bucket/a.png"), "image_refused"),
    "an unknown protocol": (shown("gopher://127.0.0.1/a.png"), "image_refused"),
    "a host that is not listed": (shown("http://localhost:9/a.png"), "image_refused"),
    "a listed host as a user": (shown("http://127.0.0.1@localhost:9/a.png"), "image_refused"),
    "a user of a listed host": (shown("http://localhost@127.0.0.1:9/a.png"), "image_refused"),
    "a listed host behind a backslash": (shown("http://localhost:9\\@127.0.0.1/a.png"), "image_refused"),
    "a host that starts as a listed one": (shown("http://127.0.0.1.example.org/a.png"), "image_refused"),
    "no host": (shown("http:///a.png"), "image_refused"),
    "a wrong port": (shown("http://127.0.0.1:99999/a.png"), "image_refused"),
    "a wrong IPv6 address": (shown("http://[::1/a.png"), "image_refused"),
    # marks and parts
    "fewer images than marks": (asked("<image> <image> What?", images=["good.png"]), "image_marks"),
    "more images than marks": (asked("<image> What?", images=["good.png", "good.png"]), "image_marks"),
    "a part without an image": (asked({"type": "image"}, TEXT), "image_marks"),
    "a shape that the processor rejects": (shown("thin.png"), "image_refused"),
    "a mark without an image": (asked("<image> What?", images=[]), "image_marks"),
    "an index without a column": (asked({"type": "image", "index": 0}, TEXT), "image_part"),
    "an index after the end": (asked({"type": "image", "index": 1}, TEXT, images=["good.png"]), "image_part"),
    "an index before the start": (asked({"type": "image", "index": -1}, TEXT, images=["good.png"]), "image_part"),
    "an index that is no number": (asked({"type": "image", "index": "a"}, TEXT, images=["good.png"]), "image_part"),
    "an index and an image": (shown("good.png", index=0), "image_part"),
    "an image that no index names": (
        asked({"type": "image", "index": 1}, TEXT, images=["good.png"] * 2),
        "image_marks",
    ),
    "bare base64 of something else": (shown("iVBORw0KGgo" + "A" * 90), "image_part"),
    "bare base64 of a damaged image": (shown(base64.b64encode(encoded()[:40]).decode()), "image_damaged"),
    "an image without a user": (
        {"messages": [{"role": "assistant", "content": "A cat."}], "images": ["good.png"]},
        "image_marks",
    ),
    "a video": (asked({"type": "video", "video": "a.mp4"}, TEXT), "not_text"),
    "a video next to an image": (asked(GOOD, {"type": "video", "video": "a.mp4"}, TEXT), "not_text"),
    "audio": (asked({"type": "audio", "audio": "a.wav"}, TEXT), "not_text"),
    "input audio": (asked({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}), "not_text"),
    "an unknown field": (shown("good.png", crop=[1, 2]), "image_part"),
    "two images in one part": (shown("good.png", url="good.png"), "image_part"),
    "a number": (shown(5), "image_part"),
    "a list": (shown(["good.png"]), "image_part"),
    "an unknown source": (asked({"type": "image", "source": {"type": "file", "file_id": "a"}}, TEXT), "image_part"),
    "a digest of another dataset": (asked({"type": "image", "media": "../../x"}, TEXT), "image_part"),
    "a digest": (asked({"type": "image", "media": "ab" * 32}, TEXT), "image_part"),
    "a part in a part": (asked({"type": "image", "image": nested(3)}, TEXT), "image_missing"),
    "parts in parts without end": (asked({"type": "image", "image": nested(400)}, TEXT), "nested_too_deeply"),
    "a column with numbers": (asked("<image>", images=[3]), "image_part"),
    "a column with an unknown field": (asked("<image>", images=[{"path": "good.png", "crop": 1}]), "image_part"),
    "an image in an answer": (asked(GOOD, TEXT, answer=[{"type": "text", "text": "See"}, GOOD]), "accepted"),
    "a mark in an answer": (asked("<image> What?", answer="An <image>", images=["good.png"]), "image_marks"),
    "a mark of its own": (asked("What \ue0d4 is it?"), "private_use"),
    "a mark next to an image": (asked(GOOD, {"type": "text", "text": "What \ue0d4?"}), "image_part"),
    "a break next to an image": (asked(GOOD, {"type": "text", "text": "What \ue0d5?"}), "image_part"),
    "a break after a leading image": (asked("\ue0d5What?", images=["good.png"]), "private_use"),
    "a mark of its own with an image": (asked("<image> \ue0d4?", images=["good.png"]), "private_use"),
    "a mark in an answer to an image": (asked(GOOD, TEXT, answer="A \ue0d4"), "private_use"),
    "a placeholder": (asked(GOOD, TEXT, answer="A \ue0d60.1\ue0d7"), "accepted"),
    "a placeholder that does not exist": (asked(GOOD, TEXT, answer="A \ue0d67.7\ue0d7"), "accepted"),
    "a placeholder in a part": (asked(GOOD, {"type": "text", "text": "\ue0d60.1\ue0d7"}), "accepted"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    above = tmp_path_factory.mktemp("above")
    folder = above / "data"
    Oracle("qwen2_vl", "parts").save(folder / "processor")
    files = {
        "good.png": encoded(),
        "truncated.png": encoded()[:-400],
        "truncated.jpg": encoded(200, 200, "JPEG")[:-3000],
        "text.png": b"this is not an image",
        "empty.png": b"",
        "bomb.png": png_header(60_000, 60_000),
        "large.png": encoded(400, 300),
        "zero.png": png_header(0, 10),
        "thin.png": encoded(3000, 2),
        "header.png": encoded()[:40],
        "a.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "a.pdf": b"%PDF-1.4\n",
        "noise.bin": os.urandom(5000),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (above / "secret.png").write_bytes(encoded())
    (folder / "link.png").symlink_to("../secret.png")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    return folder


def built(folder: Path, rows: list[Row], store: Path, name: str = "rows", **media: Any) -> Built:
    write_lines(folder / f"{name}.jsonl", rows)
    dataset = {
        "name": f"{name}.jsonl",
        "column_mapping": {
            "messages": "messages",
            **({"images": "images"} if any("images" in row for row in rows) else {}),
        },
        "media": {"allow_urls": ["127.0.0.1"], "max_pixels": 100_000, **media},
    }
    sections = {"dataset": dataset, "validation": {"max_reject_fraction": 1.0}}
    return Built.of(write_yaml(folder, f"{name}.jsonl", folder / "processor", **sections), store)


def assert_sentence(text: str) -> None:
    assert text.strip()
    assert "\n" not in text
    assert "Traceback" not in text
    assert len(text) < 1000


def test_each_hostile_row_is_rejected_with_a_code_and_a_sentence(folder: Path, tmp_path: Path) -> None:
    fine = asked(GOOD, TEXT)
    rows = [fine, *(row for row, _ in ROWS.values()), fine]
    made = built(folder, rows, tmp_path / "store")
    rejects = made.rejects()
    found = {name: rejects.get(number, ("", "accepted", ""))[1] for number, name in enumerate(ROWS, 1)}
    assert found == {name: code for name, (_, code) in ROWS.items()}
    for _, _, message in rejects.values():
        assert_sentence(message)
    accepted = {number for number, (_, code) in enumerate(ROWS.values(), 1) if code == "accepted"}
    assert made.rows().keys() == {0, *accepted, len(rows) - 1}
    assert len(ROWS) >= 60


@pytest.mark.parametrize(
    "name",
    [
        "a listed host as a user",
        "parts in parts without end",
        "a placeholder that does not exist",
        "a digest of another dataset",
    ],
)
def test_a_hostile_row_alone(name: str, folder: Path, tmp_path: Path) -> None:
    row, code = ROWS[name]
    try:
        made = built(folder, [asked(GOOD, TEXT), row], tmp_path / "store", "alone")
    except TokenloomError as error:
        assert_sentence(str(error))
    else:
        assert made.rejects().get(1, ("", "accepted", ""))[1] == code


@pytest.mark.parametrize("character", [chr(code) for code in range(0xE0D0, 0xE0D8)])
def test_private_use_characters_are_kept_or_the_row_is_rejected(character: str, folder: Path, tmp_path: Path) -> None:
    oracle = Oracle("qwen2_vl", "parts")
    texts = [f"What{character}?", character, f"{character}a{character}", f"{character}0.1{character}"]
    messages = [asked("What?")["messages"]]
    messages += [
        row["messages"]
        for text in texts
        for row in (
            asked(text),
            asked("What?", answer=f"It is {text}"),
            asked(GOOD, {"type": "text", "text": text}),
            asked(GOOD, TEXT, answer=f"It is {text}"),
            asked({"type": "text", "text": text}, GOOD, {"type": "text", "text": text}),
        )
    ]
    made = built(folder, [{"messages": row} for row in messages], tmp_path / "store", "private")
    rejects, ids = made.rejects(), made.ids()
    image = picture(40, 30)
    for number, row in enumerate(messages):
        if number in rejects:
            assert rejects[number][1] in ("private_use", "image_part"), rejects[number]
            assert_sentence(rejects[number][2])
            continue
        images = [image for part in row[0]["content"] if isinstance(part, dict) and part["type"] == "image"]
        plain = [{**message, "content": plainly(message["content"])} for message in row]
        assert ids[number] == oracle.row(plain, images)


def plainly(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [part if part["type"] == "text" else {"type": "image", "path": ""} for part in content]


class Handler(BaseHTTPRequestHandler):
    """Answers by path, and records the paths."""

    def do_GET(self) -> None:
        server = cast("Server", self.server)
        server.seen.append(self.path)
        server.answers[self.path.partition("?")[0]](self)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A local server."""

    daemon_threads = True

    def __init__(self, answers: dict[str, Callable[[BaseHTTPRequestHandler], None]]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.seen, self.port = answers, list[str](), self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


def says(status: int, content: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def slowly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        threading.Event().wait(0.05)


def endlessly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


def half(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"x" * 500)


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\0\1\2 garbage\r\n\r\n")


@pytest.fixture
def other() -> Iterator[Server]:
    server = Server({"/a.png": says(200, encoded())})
    yield server
    server.close()


@pytest.fixture
def server(other: Server) -> Iterator[Server]:
    busy = iter(range(1, 100))

    def once_busy(handler: BaseHTTPRequestHandler) -> None:
        (says(503) if next(busy) == 1 else says(200, encoded()))(handler)

    server = Server(
        {
            "/a.png": says(200, encoded()),
            "/ü.png".encode().decode("latin-1"): says(200, encoded()),
            "/%C3%BC%20b.png": says(200, encoded()),
            "/busy.png": once_busy,
            "/moved.png": says(302, Location=f"http://localhost:{other.port}/a.png"),
            "/here.png": says(301, Location="/a.png"),
            "/missing.png": says(404),
            "/forbidden.png": says(403),
            "/error.png": says(500),
            "/text.png": says(200, b"<html></html>"),
            "/slow.png": slowly,
            "/endless.png": endlessly,
            "/half.png": half,
            "/garbage.png": garbage,
        }
    )
    yield server
    server.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(places, "DOWNLOAD_SECONDS", 1)
    monkeypatch.setattr(places, "MAX_BYTES", 3 << 20)
    monkeypatch.setattr(places, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic))


@pytest.mark.usefixtures("quick")
def test_images_of_listed_hosts(server: Server, other: Server, folder: Path, tmp_path: Path) -> None:
    root = f"http://127.0.0.1:{server.port}"
    expected = {
        f"{root}/a.png": "accepted",
        f"{root}/busy.png": "accepted",
        f"{root}/ü b.png": "accepted",
        f"{root}/a.png?width=3#top": "accepted",
        f"{root}/moved.png": "image_missing",
        f"{root}/here.png": "image_missing",
        f"{root}/missing.png": "image_missing",
        f"{root}/forbidden.png": "image_missing",
        f"{root}/text.png": "not_an_image",
        f"{root}/endless.png": "image_too_large",
        f"http://localhost:{other.port}/a.png": "image_refused",
    }
    rows = [shown(url) for url in expected]
    made = built(folder, rows, tmp_path / "store", "served")
    rejects = made.rejects()
    assert [rejects.get(number, ("", "accepted", ""))[1] for number in range(len(rows))] == [*expected.values()]
    assert other.seen == []
    seen = len(server.seen)
    again = built(folder, [*rows[:4], rows[-1]], tmp_path / "store", "served")
    assert len(server.seen) == seen  # what an address had is known
    assert len(again.rows()) == 4


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["slow", "error", "half", "garbage"])
def test_a_server_that_does_not_answer_stops_the_build_with_a_sentence(
    name: str, server: Server, folder: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(SourceUnavailableError) as caught:
        built(folder, [shown(f"http://127.0.0.1:{server.port}/{name}.png")], tmp_path / "store", name)
    assert_sentence(str(caught.value))
    assert "127.0.0.1" in str(caught.value)
    assert len(server.seen) == places.ATTEMPTS
    assert time.monotonic() - started < 20


@pytest.mark.usefixtures("quick")
def test_nothing_listens(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1"):
        built(folder, [shown("http://127.0.0.1:9/a.png")], tmp_path / "store", "refused")


@pytest.mark.usefixtures("quick")
def test_names_of_hosts_are_not_case_sensitive(server: Server, folder: Path, tmp_path: Path) -> None:
    rows = [shown(f"http://LocalHost:{server.port}/a.png")]
    made = built(folder, rows, tmp_path / "store", "case", allow_urls=["LOCALHOST"])
    assert made.rejects() == {}


def test_the_good_image_is_what_the_oracle_takes() -> None:
    content = base64.b64decode(GOOD["image"].partition(",")[2])
    assert Image.open(io.BytesIO(content)).tobytes() == picture(40, 30).tobytes()
    assert json.loads(json.dumps(GOOD)) == GOOD
