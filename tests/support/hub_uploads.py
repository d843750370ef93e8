"""A local Hugging Face Hub that takes uploads, and counts the bytes of files that it is sent: whole files by the LFS
protocol, or the xorbs (blocks of new pieces) of the Xet protocol, as `hf_xet` sends them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.hub_server import Handler, HubError, HubServer

_DATASET = re.compile(r"/api/datasets/([^/]+/[^/]+)/(preupload|commit|branch|xet-write-token)/([^/]+)")


class UploadHub(HubServer):
    """A hub of datasets that can be written with `token`.

    Attributes:
        sent: bytes of files that were uploaded. Card and other small files, which are part of the commit, count too.
        messages: those of all commits.
    """

    def __init__(self, root: Path, token: str = "hf_secret"):
        self.sent, self.blobs, self.messages, self.writer = 0, dict[str, bytes](), list[str](), token
        super().__init__(root, token)

    @property
    def handler(self) -> type[BaseHTTPRequestHandler]:
        return _Handler

    def folder(self, repo: str, branch: str) -> Path:
        """The folder of a branch."""
        return self.root / "datasets" / (repo if branch == "main" else f"{repo}@{branch}")


class _Handler(Handler):
    hub: UploadHub  # pyright: ignore[reportIncompatibleMethodOverride]

    def do_PUT(self) -> None:
        content = self._body()
        self.hub.sent += len(content)
        self.hub.blobs[hashlib.sha256(content).hexdigest()] = content
        self._json({})

    def do_GET(self) -> None:
        if found := _DATASET.fullmatch(urlsplit(self.path).path):
            assert found[2] == "xet-write-token"
            place = {"X-Xet-Cas-Url": self.hub.url, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": "4102444800"}
            self._json({"casUrl": self.hub.url, "accessToken": "xet", "exp": 4102444800}, place)
        elif self.path.startswith("/v1/chunks/"):
            self._body()
            self._send(HTTPStatus.NOT_FOUND, b"", {})
        else:
            super().do_GET()

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith(("/v1/", "/v2/")):
            content = self._body()
            self.hub.sent += 0 if path.endswith("telemetry") else len(content)
            if path.startswith(("/v1/xorbs/", "/v1/shards")):
                self._json({"was_inserted": True, "result": 1})
            else:  # newer calls, without which the client uses these
                self._send(HTTPStatus.NOT_FOUND, b"", {})
            return
        if not (path.startswith("/api/") or path.endswith("/info/lfs/objects/batch")) or "/paths-info/" in path:
            super().do_POST()
            return
        body = self._body()
        self.hub.requests.append(f"POST {path}")
        if self.headers.get("Authorization") != f"Bearer {self.hub.writer}":
            error = HubError(HTTPStatus.UNAUTHORIZED, None, "Invalid username or password.")
            self._send(error.status, json.dumps({"error": str(error)}).encode(), error.headers)
        elif found := _DATASET.fullmatch(path):
            self._json(getattr(self, f"_{found[2]}")(found[1], found[3], body))
        elif path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            self.hub.folder(repo, "main").mkdir(parents=True, exist_ok=True)
            (self.hub.folder(repo, "main") / ".gitattributes").touch()
            self._json({"url": f"{self.hub.url}/datasets/{repo}"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        else:
            asked = json.loads(body)["objects"]
            self._json({"transfer": "basic", "objects": [self._object(each) for each in asked]})

    def _object(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["oid"] in self.hub.blobs:
            return asked
        return {**asked, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}}}}

    def _branch(self, repo: str, branch: str, body: bytes) -> dict[str, Any]:
        if not (folder := self.hub.folder(repo, branch)).exists():
            shutil.copytree(self.hub.folder(repo, "main"), folder)
        return {}

    def _preupload(self, repo: str, branch: str, body: bytes) -> dict[str, Any]:
        def mode(path: str) -> str:
            return "lfs" if path.endswith(("parquet", "tokenizer.json")) else "regular"

        paths = [each["path"] for each in json.loads(body)["files"]]
        return {"files": [{"path": path, "uploadMode": mode(path), "shouldIgnore": False} for path in paths]}

    def _commit(self, repo: str, branch: str, body: bytes) -> dict[str, Any]:
        folder = self.hub.folder(repo, branch)
        for line in map(json.loads, body.splitlines()):
            key, value = line["key"], line["value"]
            if key == "header":
                self.hub.messages.append(value["summary"])
                continue
            path = folder / value["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if key == "deletedFile":
                path.unlink()
            elif key == "lfsFile":  # of Xet, the hub has no file, only pieces
                path.write_bytes(self.hub.blobs.get(value["oid"], b""))
            else:
                content = base64.b64decode(value["content"])
                self.hub.sent += len(content)
                path.write_bytes(content)
        commit = self.hub.snapshot("datasets", repo, branch).commit
        return {"commitUrl": f"{self.hub.url}/datasets/{repo}/commit/{commit}", "commitOid": commit}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, content: Any, headers: dict[str, str] | None = None) -> None:
        self._send(HTTPStatus.OK, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})
