"""The fingerprint of a source: the same for the same content, another for any other, without reading what is known."""

from __future__ import annotations

import http.server
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.datasets_on_disk import write_dataset
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, SourceError, SourceUnavailableError
from tokenloom.resources.sources import fingerprint
from tokenloom.resources.sources.fingerprint import SourceState, source_state
from tokenloom.resources.store import ArtifactStore


def state(config: Path, store: Path) -> SourceState:
    opened = ArtifactStore(store)
    opened.prepare()
    return source_state(PipelineConfig.from_file(config), opened)


def test_the_fingerprint_follows_the_digest_of_the_rows(tmp_path: Path) -> None:
    """Random edits of the files of a folder; the digest of `raw` is the oracle."""
    config = write_dataset(tmp_path, 20, dataset={"name": "rows"})
    rows = tmp_path / "rows"
    rows.mkdir()
    draw = random.Random(5)
    for name in "abc":
        (rows / f"{name}.jsonl").write_text("".join(f'{{"output": "{name}{n}"}}\n' for n in range(5)))
    seen: dict[str, str] = {}
    for step in range(40):
        path = rows / f"{draw.choice('abcd')}.jsonl"
        old = path.read_bytes() if path.exists() else b'{"output": "first"}\n'
        edit = draw.choice(["append", "same size", "touch", "rewrite", "delete"])
        if edit == "append":
            path.write_bytes(old + b'{"output": "more %d"}\n' % step)
        elif edit == "same size":
            before = path.stat() if path.exists() else None
            path.write_bytes(old[:-4] + b"%d" % (step % 10) + old[-3:])
            if before:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif edit == "touch" and path.exists():
            os.utime(path)
        elif edit == "rewrite":
            path.unlink(missing_ok=True)
            path.write_bytes(old)
        elif edit == "delete" and len([*rows.iterdir()]) > 1:
            path.unlink(missing_ok=True)
        found = state(config, tmp_path / "store").fingerprint
        digest = Build(PipelineConfig.from_file(config), ArtifactStore(tmp_path / "raw")).run("raw").digest
        names = sorted(path.name for path in rows.iterdir())
        assert seen.setdefault(f"{digest} {names}", found) == found
    assert len(set(seen.values())) == len(seen) > 10


def test_a_known_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_dataset(tmp_path, 20)
    read: list[str] = []
    digest_file = fingerprint._digest_file
    monkeypatch.setattr(fingerprint, "_digest_file", lambda path: read.append(path) or digest_file(path))
    state(config, tmp_path / "store")
    state(config, tmp_path / "store")
    assert len(read) == 2  # a file that was just written gets no entry
    monkeypatch.setattr("tokenloom.resources.store.known_files.SETTLED_SECONDS", -1.0)
    first = state(config, tmp_path / "store")
    assert state(config, tmp_path / "store") == first
    assert len(read) == 3
    (tmp_path / "small.jsonl").write_text('{"output": "x"}\n')
    assert state(config, tmp_path / "store").fingerprint != first.fingerprint
    assert len(read) == 4


def test_files_beside_the_source_count(tmp_path: Path) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text('{"instruction": "a", "input": "", "output": "b"}\n')
    prompt = {"template": "{instruction}{output}", "label_column": "output"}
    few_shot = {"few_shot": {"count": 1, "source": "examples.jsonl"}}
    config = write_dataset(tmp_path, 20, prompt_template={**prompt, **few_shot})
    first = state(config, tmp_path / "store")
    assert (first.files, first.bytes) == (1, (tmp_path / "small.jsonl").stat().st_size)
    examples.write_text('{"instruction": "c", "input": "", "output": "d"}\n')
    assert state(config, tmp_path / "store").fingerprint != first.fingerprint


def test_an_evaluation_counts_and_is_known_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text('{"question": "What is the first of all questions?"}\n')
    against = [{"name": "items.jsonl", "columns": ["question"]}]
    config = write_dataset(tmp_path, 20, decontaminate={"against": against})
    monkeypatch.setattr("tokenloom.resources.store.known_files.SETTLED_SECONDS", -1.0)
    first = state(config, tmp_path / "store")
    assert (first.files, first.bytes) == (1, (tmp_path / "small.jsonl").stat().st_size)
    read: list[str] = []
    digest_file = fingerprint._digest_file
    monkeypatch.setattr(fingerprint, "_digest_file", lambda path: read.append(path) or digest_file(path))
    assert state(config, tmp_path / "store") == first and not read
    items.write_text('{"question": "What is the second of all questions?"}\n')
    assert state(config, tmp_path / "store").fingerprint != first.fingerprint
    assert read == [str(items)]


def test_a_folder_of_examples_counts(tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "a.jsonl").write_text('{"instruction": "a", "input": "", "output": "b"}\n')
    prompt = {"template": "{instruction}{output}", "label_column": "output"}
    config = write_dataset(tmp_path, 20, prompt_template={**prompt, "few_shot": {"count": 1, "source": "examples"}})
    first = state(config, tmp_path / "store")
    (examples / "b.jsonl").write_text('{"instruction": "c", "input": "", "output": "d"}\n')
    assert state(config, tmp_path / "store").fingerprint != first.fingerprint


def test_a_dataset_of_tensorflow_datasets_is_known_by_its_name_and_the_files_beside(tmp_path: Path) -> None:
    """The package need not be installed for that."""
    examples = tmp_path / "examples.jsonl"
    few_shot = {"template": "{q}{a}", "label_column": "a", "few_shot": {"count": 1, "source": examples.name}}
    found: list[str] = []
    for name, example in (("gsm8k", "b"), ("gsm8k", "b"), ("gsm8k:1.0.0", "b"), ("gsm8k", "c")):
        examples.write_text(f'{{"q": "a", "a": "{example}"}}\n')
        config = write_dataset(tmp_path, 20, dataset={"name": f"tfds://{name}"}, prompt_template=few_shot)
        found.append(state(config, tmp_path / "store").fingerprint)
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 20, dataset={"name": "gone.jsonl"})
    with pytest.raises(ConfigError, match="no such file"):
        state(config, tmp_path / "store")


@contextmanager
def served(headers: dict[str, str], body: bytearray, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """A server of one file; yields its address and the methods of the requests. It answers 0 by closing."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.command)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(bytes(body))

        do_GET = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/rows.jsonl", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (0, SourceUnavailableError, "try again"),
        (404, SourceError, "no such file"),
        (410, SourceError, "no such file"),
        (401, SourceError, "the server returned 401"),
        (403, SourceError, "the server returned 403"),
        (408, SourceUnavailableError, "the server returned 408; try again"),
        (429, SourceUnavailableError, "the server returned 429; try again"),
        (500, SourceUnavailableError, "the server returned 500; try again"),
        (503, SourceUnavailableError, "the server returned 503; try again"),
    ],
)
@pytest.mark.parametrize("building", [False, True])
def test_an_answer_of_a_server_is_an_outage_or_a_mistake(
    tmp_path: Path, status: int, kind: type[Exception], message: str, building: bool
) -> None:
    with served({}, bytearray(b"x"), status) as (address, _):
        config = write_dataset(tmp_path, 20, dataset={"name": f"{address}?token=secret"})
        with pytest.raises(kind, match=message) as raised:
            if building:
                Build(PipelineConfig.from_file(config), ArtifactStore(tmp_path / "store")).run("raw")
            else:
                state(config, tmp_path / "store")
    assert "rows.jsonl" in str(raised.value) and "secret" not in str(raised.value)
    assert isinstance(raised.value, SourceUnavailableError) == (kind is SourceUnavailableError)


@pytest.mark.parametrize("header", ["ETag", "Last-Modified", ""])
def test_a_url_is_known_by_what_its_server_says(tmp_path: Path, header: str) -> None:
    found = []
    headers = {header: "one"} if header else {}
    body = bytearray(b'{"output": "x"}\n')
    with served(headers, body) as (address, asked):
        config = write_dataset(tmp_path, 20, dataset={"name": address})
        for change in (None, None, "two"):
            if change and header:
                headers[header] = change
            elif change:
                body[12:13] = b"y"
            found.append(state(config, tmp_path / "store").fingerprint)
        if header:
            assert "GET" not in asked
    assert found[0] == found[1] != found[2]
    with pytest.raises(SourceUnavailableError):
        state(config, tmp_path / "store")
