"""Blobs in an S3 bucket. A blob is written with one request, which makes it atomic.

Objects are read and written through a cache on the local disk.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tokenloom.errors import DamagedObjectError, StoreAddressError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blob
from tokenloom.resources.store.blobs.file_cache import FileCache
from tokenloom.resources.store.blobs.object_names import object_digest
from tokenloom.resources.store.blobs.s3 import S3

FETCHERS = 8
"""Number of parallel downloads of `fetch`."""

_ADDRESS = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?P<prefix>(/[^/?#\\\x00-\x1f]+)*)/*")


class Bucket:
    """Blobs below a prefix of an S3 bucket.

    Args:
        address: `s3://bucket/prefix`.

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

    def read(self, name: str) -> bytes:
        return self._s3.request(name, "get_object", Key=self._key(name))["Body"]

    def size(self, name: str) -> int | None:
        return found.size if (found := self.stat(name)) else None

    def stat(self, name: str) -> Blob | None:
        try:
            found = self._s3.request(name, "head_object", Key=self._key(name))
        except FileNotFoundError:
            return None
        return Blob(name, found["ContentLength"], found["LastModified"].timestamp())

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._s3.request(name, "put_object", Key=self._key(name), Body=bytes(data))

    def create(self, name: str, data: bytes | memoryview) -> None:
        content = bytes(data)
        try:
            self._s3.request(name, "put_object", Key=self._key(name), Body=content, IfNoneMatch="*")
        except NotImplementedError:
            self.write(name, content)
        except FileExistsError:
            if not self._has(name, content):
                self.write(name, content)
        if digest := object_digest(name):
            with suppress(StoreError):  # the cache cannot be written: readers download the object
                self.cache.add(digest, content)

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        try:
            self._s3.request(name, "put_object", Key=self._key(name), Body=bytes(data), IfNoneMatch="*")
        except FileExistsError:  # also if the response to an earlier attempt was lost
            return self._has(name, bytes(data))
        except NotImplementedError:
            if self.size(name) is not None:
                return False
            self.write(name, data)
        return True

    def _has(self, name: str, content: bytes) -> bool:
        """Return whether a blob exists with this content, judged by its size and MD5 without downloading it."""
        try:
            found = self._s3.request(name, "head_object", Key=self._key(name))
        except FileNotFoundError:
            return False
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return (found["ContentLength"], found["ETag"].strip('"')) == (len(content), md5)

    def below(self, prefix: str) -> Iterator[Blob]:
        more, folder = {}, f"{prefix}/" if prefix else ""
        while True:
            page = self._s3.request(folder, "list_objects_v2", Prefix=self._key(folder), **more)
            for found in page.get("Contents", ()):
                name = found["Key"].removeprefix(self._prefix)
                yield Blob(name, found["Size"], found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._s3.request(name, "delete_object", Key=self._key(name))
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
