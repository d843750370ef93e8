"""A local Hugging Face Hub: the part of its HTTP API that `datasets` and `huggingface_hub` read from."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)(?P<rest>/.*)?")
_RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class HubError(Exception):
    """An error response of the hub: a status, and the code by which clients distinguish errors."""

    def __init__(self, status: HTTPStatus, code: str | None, message: str, commit: str | None = None):
        super().__init__(message)
        self.status = status
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": commit}
        self.headers = {name: value for name, value in headers.items() if value}


@dataclass(frozen=True)
class Snapshot:
    """The files of one repository at one revision."""

    repo: str
    folder: Path

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Content by path, sorted."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    @cached_property
    def commit(self) -> str:
        """A commit id that depends only on the files."""
        hasher = hashlib.sha1(self.repo.encode(), usedforsecurity=False)
        for path, content in self.files.items():
            hasher.update(f"\0{path}\0{len(content)}\0".encode() + content)
        return hasher.hexdigest()

    def info(self) -> dict[str, Any]:
        """Return the response to `repo_info`."""
        siblings = [{"rfilename": path} for path in self.files]
        return {"id": self.repo, "sha": self.commit, "private": False, "gated": False, "siblings": siblings}

    def tree(self, under: str, recursive: bool) -> list[dict[str, Any]]:
        """Return the files and folders below a folder: all of them, or only its direct children."""
        prefix = f"{under}/" if under else ""
        inside = [path for path in self.files if path.startswith(prefix)]
        if not inside:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", f'"{under}" does not exist', self.commit)
        folders = {str(above) for path in inside for above in Path(path).parents if str(above).startswith(prefix)}
        found = [self.entry(path) for path in sorted({*inside, *folders} - {".", under})]
        return found if recursive else [entry for entry in found if "/" not in entry["path"][len(prefix) :]]

    def entry(self, path: str) -> dict[str, Any]:
        """Return a file or folder as an entry of a listing."""
        if path in self.files:
            content = self.files[path]
            return {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
        return {"type": "directory", "path": path, "size": 0, "oid": blob_id(path.encode())}

    def paths(self, requested: list[str]) -> list[dict[str, Any]]:
        """Return the entries of the requested paths that exist."""
        folders = {str(above) for path in self.files for above in Path(path).parents}
        return [self.entry(path) for path in requested if path in self.files or path in folders]


def blob_id(content: bytes) -> str:
    """Return git's id of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class HubServer:
    """Serves a folder of repositories on a free port, until the `with` block ends.

    `root/datasets/org/name` is a dataset's `main`, `root/datasets/org/name@v1` its branch `v1`, `root/models/org/name`
    a model. A change of the files makes a new commit.

    Args:
        root: the folder.
        token: clients that send it can read the gated repositories; clients that send another one are refused.
        gated: names of repositories, such as `org/name`.
        closed: names of gated repositories whose terms the owner of the token has not accepted.
    """

    def __init__(self, root: Path, token: str | None = None, gated: tuple[str, ...] = (), closed: tuple[str, ...] = ()):
        self.root, self.token, self.gated, self.closed = root, token, gated, closed
        self.busy = 0
        """Number of requests for files that are answered with 503 from now on."""
        self.requests: list[str] = []
        """All requests, such as `HEAD /org/name/resolve/main/config.json`."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self._server.hub = self  # pyright: ignore[reportAttributeAccessIssue]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def handler(self) -> type[BaseHTTPRequestHandler]:
        """What answers requests."""
        return Handler

    def snapshot(self, kind: str, repo: str, revision: str = "main") -> Snapshot:
        """Return a repository at a branch or commit."""
        main = self.root / kind / repo
        if not main.is_dir():
            raise HubError(HTTPStatus.NOT_FOUND, "RepoNotFound", "Repository not found")
        for folder in [main, *sorted(main.parent.glob(f"{main.name}@*"))]:
            snapshot = Snapshot(repo, folder)
            if revision in (folder.name.partition("@")[2] or "main", snapshot.commit):
                return snapshot
        raise HubError(HTTPStatus.NOT_FOUND, "RevisionNotFound", f"Invalid rev id: {revision}")


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        return self.server.hub  # pyright: ignore[reportAttributeAccessIssue]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.requests.append(f"{self.command} {self.path}")
        try:
            url = urlsplit(self.path)
            if found := _API.fullmatch(url.path):
                self._api(found, parse_qs(url.query), parse_qs(body.decode()))
            elif found := _RESOLVE.fullmatch(url.path):
                self._resolve(found)
            else:
                raise HubError(HTTPStatus.NOT_FOUND, None, "Sorry, we can't find the page you are looking for.")
        except HubError as error:
            self._send(error.status, json.dumps({"error": str(error)}).encode(), error.headers)

    def _api(self, found: re.Match[str], query: dict[str, list[str]], form: dict[str, list[str]]) -> None:
        """Answer `/api/<kind>/<repo>`, and below it `/revision/…`, `/tree/…` and `/paths-info/…`."""
        _, what, revision, path = ((found["rest"] or "") + "////").split("/", 3)
        snapshot = self._snapshot(found["kind"], found["repo"], unquote(revision) or "main")
        if what in ("", "revision"):
            answer: Any = snapshot.info()
        elif what == "tree":
            answer = snapshot.tree(unquote(path).strip("/"), query.get("recursive") in (["true"], ["True"]))
        elif what == "paths-info":
            answer = snapshot.paths(form.get("paths", []))
        else:
            raise HubError(HTTPStatus.NOT_FOUND, None, f"no such call: {what}")
        self._send(HTTPStatus.OK, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, found: re.Match[str]) -> None:
        """Answer `/<repo>/resolve/<revision>/<path>` (prefixed with `/datasets` for datasets): a file, or a range."""
        if self.hub.busy:
            self.hub.busy -= 1
            raise HubError(HTTPStatus.SERVICE_UNAVAILABLE, None, "busy")
        kind = "datasets" if found["kind"] else "models"
        snapshot = self._snapshot(kind, found["repo"], unquote(found["revision"]))
        if found["repo"] in self.hub.closed:
            message = f"Access to {found['repo']} is restricted and you are not in the authorized list."
            raise HubError(HTTPStatus.FORBIDDEN, "GatedRepo", message)
        if found["repo"] in self.hub.gated and "Authorization" not in self.headers:
            raise HubError(HTTPStatus.UNAUTHORIZED, "GatedRepo", f"Access to {found['repo']} is restricted.")
        content = snapshot.files.get(unquote(found["path"]))
        if content is None:
            raise HubError(HTTPStatus.NOT_FOUND, "EntryNotFound", "Entry not found", snapshot.commit)
        headers = {"X-Repo-Commit": snapshot.commit, "ETag": f'"{blob_id(content)}"', "Accept-Ranges": "bytes"}
        if part := _RANGE.fullmatch(self.headers.get("Range", "")):
            start, end = int(part[1]), min(int(part[2] or len(content)) + 1, len(content))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            self._send(HTTPStatus.PARTIAL_CONTENT, content[start:end], headers)
        else:
            self._send(HTTPStatus.OK, content, headers)

    def _snapshot(self, kind: str, repo: str, revision: str) -> Snapshot:
        """Return the repository, for clients that send the right token or none."""
        if self.headers.get("Authorization") not in (None, f"Bearer {self.hub.token}"):
            raise HubError(HTTPStatus.UNAUTHORIZED, None, "Invalid credentials in Authorization header")
        return self.hub.snapshot(kind, repo, revision)

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
