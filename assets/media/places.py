"""Where images are: files below the folder of the source, addresses that the YAML lists, and the store."""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tokenloom.config import PipelineConfig
from tokenloom.config.yaml_file import open_regular
from tokenloom.errors import SourceUnavailableError, StoreUnavailableError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.sources.resolve import DiskDataset, local_path, locate
from tokenloom.resources.sources.source_file import TEMPORARY, SourceFiles
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.actions import decode_record, encode_record
from tokenloom.resources.store.known_files import FILES, FileDigests, file_stamp

MAX_BYTES = 256 << 20
"""Largest size of an image's file in bytes."""

TIMEOUT_SECONDS, ATTEMPTS = 30, 3
DOWNLOAD_SECONDS = 300
"""Longest time that the download of one image takes."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]+)?")
"""A host, without a user before it or anything that programs read in different ways."""

_FILE = "file://"
_UNQUOTED = "%/:=&?~+!$,;'()*@"


class UnusableImage(ValueError):
    """An image that is not read; `code` is the reject code of its rows."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Places:
    """Finds the files and addresses of images.

    Args:
        folder: the folder that paths are relative to, or None for the folder of each source file.
        folders: the folder of each source file, by the file's name in manifests.
        hosts: the hosts from which images are downloaded.
    """

    folder: str | None
    folders: Mapping[str, str]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, config: PipelineConfig) -> Places:
        """Return the places that a YAML declares.

        Raises:
            ConfigError: `dataset.media.folder` does not exist.
        """
        media, source, folder = config.dataset.media, locate(config), None
        if media.folder is not None:
            found = local_path(config, media.folder)
            if found is None or not found.is_dir():
                raise config.fault("dataset.media.folder", f"no such folder: {media.folder}")
            folder = str(found)
        folders: dict[str, str] = {}
        if isinstance(source, SourceFiles):
            folders = {file.name: str(Path(file.path).parent) for file in source.files if not file.remote}
        elif isinstance(source, DiskDataset):
            folder = folder or str(source.path)
        return cls(folder, folders, tuple(host.lower() for host in media.allow_urls))

    def find(self, path: str, source: str) -> str:
        """Return the local path or the URL of an image.

        Args:
            path: as the row has it; a file address is a path, absolute or, as peers write it, relative.
            source: the name of the row's source file.

        Raises:
            UnusableImage: it is outside of the folder, or of a host that the YAML does not list.
        """
        if path.startswith(_FILE):
            path = unquote(path.replace(f"{_FILE}localhost/", f"{_FILE}/", 1).removeprefix(_FILE))
        elif "://" in path:
            try:
                parts = urlsplit(path)
                known = parts.scheme in ("http", "https") and bool(_HOST.fullmatch(parts.netloc)) and parts.port != 0
            except ValueError:
                parts, known = urlsplit(""), False
            if not known:
                raise UnusableImage("image_refused", "not a valid http or https address")
            if parts.hostname not in self.hosts:
                raise UnusableImage("image_refused", f"host {parts.hostname} is not in dataset.media.allow_urls")
            return path
        base = self.folder or self.folders.get(source)
        if base is None:
            raise UnusableImage("image_missing", "a path, but the source has no folder; set dataset.media.folder")
        try:
            base = os.path.realpath(base)
            found = os.path.realpath(os.path.join(base, path))  # noqa: PTH118
        except (OSError, ValueError) as error:
            raise UnusableImage("image_missing", f"not a valid path: {error}") from None
        # links are resolved before: one must not lead out of the folder
        if os.path.commonpath([base, found]) != base:
            raise UnusableImage("image_outside", "outside of the folder of images; set dataset.media.folder")
        return found


def read_image(address: str) -> bytes:
    """Return the bytes of an image.

    Args:
        address: a local path or a URL, as `Places.find` returns it.

    Raises:
        UnusableImage: it does not exist, is not a regular file, or is too large.
        SourceUnavailableError: the server cannot be reached, or is too busy.
    """
    if "://" in address:
        return _download(address)
    try:
        with open(address, "rb", opener=open_regular) as file:
            _check_size(os.fstat(file.fileno()).st_size)
            # one byte more than allowed, as the file can grow after its size was checked
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnusableImage("image_missing", f"cannot be read: {error.strerror}") from None


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise UnusableImage("image_too_large", f"{size:,} bytes; the largest file can have {MAX_BYTES:,}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow nothing: it could lead to a host that the YAML does not list."""


def _download(url: str) -> bytes:
    opener, reason = urllib.request.build_opener(_NoRedirects), ""
    for attempt in range(ATTEMPTS):
        try:
            with opener.open(_quoted(url), timeout=TIMEOUT_SECONDS) as answer:
                return _content(answer)
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in TEMPORARY:
                moved = "; it redirects, which is not followed" if 300 <= error.code < 400 else ""
                raise UnusableImage("image_missing", f"the server answers {error.code}{moved}") from None
            reason = f"the server answers {error.code}"
        except UnusableImage:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = type(error).__name__
        time.sleep(attempt)
    raise SourceUnavailableError(f"an image of {urlsplit(url).hostname} cannot be downloaded: {reason}")


def _quoted(url: str) -> str:
    """Return a URL with its path and query in ASCII, without its fragment."""
    parts = urlsplit(url)
    path, query = (quote(part, safe=_UNQUOTED) for part in (parts.path, parts.query))
    return parts._replace(path=path, query=query, fragment="").geturl()


def _content(answer: Any) -> bytes:
    """Read an answer, of which a server can send any amount at any speed."""
    parts, size, end = list[bytes](), 0, time.monotonic() + DOWNLOAD_SECONDS
    while part := answer.read1(1 << 20):
        parts.append(part)
        size += len(part)
        _check_size(size)
        if time.monotonic() > end:
            raise TimeoutError
    declared = answer.headers.get("Content-Length", "")
    if declared.isdecimal() and size < int(declared):
        raise http.client.IncompleteRead(b"", int(declared) - size)
    return b"".join(parts)


class KnownImages:
    """What was found out before: the images that each chunk names, and the digests of files and addresses.

    An unchanged file is not read again. What an address had when it was first downloaded is kept, in the store.

    Args:
        owner: identifies the dataset, as JSON.
    """

    def __init__(self, store: ArtifactStore, owner: Any):
        self._store = store
        self._files = FileDigests(store.blobs, ["images", owner])
        self._name = f"{FILES}/{digest_json(['images of chunks', owner])}.json"
        self._stored: dict[str, dict[str, Any]] = {"urls": {}, "chunks": {}}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, StoreUnavailableError):
            content = decode_record(self._name, store.blobs.read(self._name))
            urls = {str(url): str(digest) for url, digest in content["urls"].items()}
            chunks = {key: [tuple(map(str, pair)) for pair in named] for key, named in content["chunks"].items()}
            self._stored = {"urls": urls, "chunks": {key: named for key, named in chunks.items() if _are_pairs(named)}}
        self._used: dict[str, str] = {}
        self._chunks: dict[str, list[tuple[str, str]]] = {}

    def named(self, chunk: str, find: Callable[[], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
        """Return the different images of a chunk, each as its path and source, or its digest and "".

        Args:
            chunk: identifies the chunk and its sources.
            find: returns them, if they are not known.
        """
        listed = self._stored["chunks"].get(chunk)
        self._chunks[chunk] = listed if listed is not None else [*find()]
        return self._chunks[chunk]

    def digest(self, address: str) -> str:
        """Return the digest of an image's bytes; reads it if it is not known.

        Raises:
            UnusableImage, SourceUnavailableError: as `read_image`.
        """
        if address not in self._used:
            self._used[address] = self._found(address)
        return self._used[address]

    def _found(self, address: str) -> str:
        if "://" in address:
            if known := self._stored["urls"].get(address):
                return known
            content = read_image(address)
            digest = digest_bytes(content)
            self._store.media.put_all({digest: content})
            return digest
        if (known := self._files.find(address)) is not None:
            return known
        # taken before reading, so that a file that is written meanwhile is read again next time
        before = file_stamp(address)
        digest = digest_bytes(read_image(address))
        self._files.note(address, before, digest)
        return digest

    def save(self) -> None:
        """Store what was asked for."""
        self._files.save(address for address in self._used if "://" not in address)
        urls = {address: digest for address, digest in self._used.items() if "://" in address}
        entry = {"urls": urls, "chunks": self._chunks}
        if entry != self._stored:
            with suppress(StoreUnavailableError):  # an entry only saves time
                self._store.blobs.write(self._name, encode_record(self._name, entry))


def _are_pairs(named: list[Any]) -> bool:
    return all(len(pair) == 2 for pair in named)
