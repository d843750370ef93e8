"""Blobs in an S3 bucket. A blob is written with one request, which makes it atomic.

Objects are read and written through a cache on the local disk.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from tokenloom.errors import DamagedObjectError, StoreAddressError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blob
from tokenloom.resources.store.blobs.file_cache import FileCache
from tokenloom.resources.store.blobs.object_names import object_digest
from tokenloom.resources.store.blobs.s3 import S3

_DIGEST = re.compile(r"[a-z]+/[0-9a-f]{2}/([0-9a-f]{8})[0-9a-f]{56}\.[a-z]+")

FETCHERS = 8
"""Number of parallel downloads of `fetch`."""

AT_ONCE = 16
"""Number of other requests that are sent in parallel."""

PAGE = 1000
"""Most keys that a service deletes with one request."""

T = TypeVar("T")
U = TypeVar("U")

_ADDRESS = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?P<prefix>(/[^/?#\\\x00-\x1f]+)*)/*")


class Bucket:
    """Blobs below a prefix of an S3 bucket.

    Args:
        address: `s3://bucket/prefix`.

    Attributes:
        marked: blobs that the mark of the running build keeps from `gc`, as they were listed.

    Raises:
        StoreAddressError: the address has another form, or contains credentials or a query.
    """

    def __init__(self, address: str):
        parts = _ADDRESS.fullmatch(address)
        if parts is None or {".", ".."} & {*parts["prefix"].split("/")}:
            raise StoreAddressError(
                "the address of a store in a bucket must be s3://bucket/prefix, without credentials or a query; "
                "set credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        self._prefix = f"{parts['prefix'][1:]}/".lstrip("/")
        self.address = f"s3://{parts['bucket']}{parts['prefix']}"
        self.cache = FileCache.from_environment()
        self._s3 = S3(parts["bucket"], self.address)
        self.marked: dict[str, Blob] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, also on another machine, which has a cache of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "cache"} | {"marked": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.cache = FileCache.from_environment()

    def read(self, name: str) -> bytes:
        return self._s3.request(name, "get_object", Key=self._key(name))["Body"]

    def read_all(self, names: Collection[str]) -> dict[str, bytes]:
        def read_one(name: str) -> bytes | None:
            try:
                return self.read(name)
            except FileNotFoundError:
                return None

        contents = zip(names, at_once(read_one, names), strict=True)
        return {name: content for name, content in contents if content is not None}

    def size(self, name: str) -> int | None:
        return found.size if (found := self.stat(name)) else None

    def stat(self, name: str) -> Blob | None:
        try:
            found = self._s3.request(name, "head_object", Key=self._key(name))
        except FileNotFoundError:
            return None
        return Blob(name, found["ContentLength"], found["LastModified"].timestamp(), found["ETag"].strip('"'))

    def found(self, names: Collection[str]) -> dict[str, Blob]:
        wanted, listed = {*names}, None
        if len(wanted) > 1 and all(map(_place_of, wanted)):
            listed = self.all_below(min(wanted).partition("/")[0], len(wanted))
        if listed is None:
            listed = {blob.name: blob for blob in at_once(self.stat, wanted) if blob}
        return {name: listed[name] for name in wanted if name in listed}

    def all_below(self, folder: str, requests: int) -> dict[str, Blob] | None:
        """Return all objects or all actions, by name; None if listing them takes more requests than a number.

        Their names are digests, so the place of the last name of the first page shows how many pages there are.
        """
        first, more = self._page(folder)
        if more:
            seen = _place_of(first[-1].name)
            if seen is None or 1 / seen > requests:
                return None
            count = min(math.ceil(1 / seen), AT_ONCE)
            ends = [f"{int((seen + (1 - seen) * part / count) * 16**8):08x}" for part in range(1, count)]
            names = [first[-1].name, *(f"{folder}/{end[:2]}/{end}" for end in ends), f"{folder}0"]
            parts = at_once(lambda part: self._between(folder, *part), [*pairwise(names)])
            first += [blob for part in parts for blob in part]
        return {blob.name: blob for blob in first}

    def _between(self, folder: str, after: str, last: str) -> list[Blob]:
        """Return the blobs below a folder whose names are after `after`, up to `last`."""
        found, more = list[Blob](), True
        while more and (not found or found[-1].name <= last):
            page, more = self._page(folder, found[-1].name if found else after)
            found += page
        return [blob for blob in found if blob.name <= last]

    def kept(self, name: str) -> Blob | None:
        return self.marked.get(name)

    def write(self, name: str, data: bytes | memoryview) -> None:
        self.marked.pop(name, None)
        self._s3.request(name, "put_object", Key=self._key(name), Body=bytes(data))

    def create(self, name: str, data: bytes | memoryview) -> None:
        content = bytes(data)
        if not is_same(self.marked.get(name), content):
            try:
                self._s3.request(name, "put_object", Key=self._key(name), Body=content, IfNoneMatch="*")
            except NotImplementedError:
                self.write(name, content)
            except FileExistsError:
                found = self.stat(name)
                if not is_same(found, content) or found.modified <= self.fresh_since:
                    self.write(name, content)
        if digest := object_digest(name):
            with suppress(StoreError):  # the cache cannot be written: readers download the object
                self.cache.add(digest, content)

    def create_all(self, contents: Mapping[str, bytes | memoryview]) -> None:
        at_once(lambda item: self.create(*item), contents.items())

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        try:
            self._s3.request(name, "put_object", Key=self._key(name), Body=bytes(data), IfNoneMatch="*")
        except FileExistsError:  # also if the response to an earlier attempt was lost
            return is_same(self.stat(name), bytes(data))
        except NotImplementedError:
            if self.size(name) is not None:
                return False
            self.write(name, data)
        return True

    def below(self, prefix: str) -> Iterator[Blob]:
        found, more = list[Blob](), True
        while more:
            found, more = self._page(prefix, found[-1].name if found else "")
            yield from found

    def _page(self, folder: str, after: str = "") -> tuple[list[Blob], bool]:
        """Return the first blobs below a folder, or below all if it is "", and whether there are more.

        Args:
            after: only blobs with names after this one.
        """
        more = {"StartAfter": self._key(after)} if after else {}
        prefix = f"{folder}/" if folder else ""
        page = self._s3.request(prefix, "list_objects_v2", Prefix=self._key(prefix), **more)
        found = [
            Blob(
                each["Key"].removeprefix(self._prefix),
                each["Size"],
                each["LastModified"].timestamp(),
                each["ETag"].strip('"'),
            )
            for each in page.get("Contents", ())
        ]
        return found, bool(found) and bool(page.get("IsTruncated"))

    def delete(self, name: str) -> None:
        self._forget(name)
        with suppress(FileNotFoundError):
            self._s3.request(name, "delete_object", Key=self._key(name))

    def delete_all(self, names: Collection[str]) -> None:
        waiting = [*names]
        for start in range(0, len(waiting), PAGE):
            part = waiting[start : start + PAGE]
            for name in part:
                self._forget(name)
            keys = [{"Key": self._key(name)} for name in part]
            try:
                answer = self._s3.request(part[0], "delete_objects", Delete={"Objects": keys, "Quiet": True})
                refused = [each["Key"].removeprefix(self._prefix) for each in answer.get("Errors", ())]
            except NotImplementedError:
                refused = part
            at_once(self.delete, refused)  # retries, or reports why it is refused

    def _forget(self, name: str) -> None:
        self.marked.pop(name, None)
        if digest := object_digest(name):
            self.cache.remove(digest)

    @property
    def fresh_since(self) -> float:
        return time.time() - RENEW_SECONDS

    def touch(self, name: str) -> None:
        key = self._key(name)
        source = {"Bucket": self._s3.bucket, "Key": key}
        with suppress(FileNotFoundError):
            self._s3.request(name, "copy_object", Key=key, CopySource=source, MetadataDirective="REPLACE")

    def local(self, name: str) -> Path:
        digest = object_digest(name)
        if digest is None:
            return self.cache.put_named(self.address, name, self.read(name))
        path = self.cache.obtain(digest, lambda: self._intact(name, digest))
        assert path is not None
        return path

    def _intact(self, name: str, digest: str) -> bytes:
        """Return the bytes of an object after comparing them with its digest."""
        for _ in range(2):
            content = self.read(name)
            if digest_bytes(content) == digest:
                return content
        raise DamagedObjectError(
            f"object {digest} in {self.address} is damaged; `tokenloom verify` removes it and the next build "
            "recomputes it"
        )

    def fetch(self, names: Iterable[str]) -> None:
        def fetch_one(name: str) -> None:
            with suppress(FileNotFoundError):
                if digest := object_digest(name):
                    self.cache.obtain(digest, lambda: self._intact(name, digest), wait=False)

        with ThreadPoolExecutor(FETCHERS, thread_name_prefix="tokenloom-fetch") as pool:
            list(pool.map(fetch_one, names))

    def sweep(self) -> None:
        """Do nothing: writes to a bucket leave nothing half-written."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"


def at_once(function: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Call a function that sends a request for each item, in parallel; returns the results in order."""
    waiting = [*items]
    if len(waiting) < 2:
        return [*map(function, waiting)]
    with ThreadPoolExecutor(min(AT_ONCE, len(waiting)), thread_name_prefix="tokenloom-request") as pool:
        return [*pool.map(function, waiting)]


def is_same(found: Blob | None, content: bytes) -> TypeGuard[Blob]:
    """Return whether a blob has this content, judged by its size and MD5 without downloading it."""
    if found is None or found.size != len(content):
        return False
    return found.tag == hashlib.md5(content, usedforsecurity=False).hexdigest()


def _place_of(name: str) -> float | None:
    """Return where the name of an object or action is among all of them, above 0 and up to 1; None for another name."""
    return (int(found[1], 16) + 1) / 16**8 if (found := _DIGEST.fullmatch(name)) else None
