"""Blobs in a bucket of an object store (S3). One request writes a blob, so it is there whole or not at all.

Objects are read through a cache on this machine's disk; what is written goes there too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tokenloom.errors import DamagedObjectError, StoreAddressError, StoreError
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import Blob
from tokenloom.resources.store.blobs.cache import FileCache
from tokenloom.resources.store.blobs.s3 import S3
from tokenloom.resources.store.objects import object_digest

FETCHERS = 8
"""Blobs fetched at a time, where many are wanted."""

_ADDRESS = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?P<prefix>(/[^/?#\\\x00-\x1f]+)*)/*")


class Bucket:
    """Blobs below a prefix of an S3 bucket.

    Args:
        address: `s3://bucket/prefix`.

    Raises:
        StoreAddressError: it is none, or holds credentials or a query.
    """

    def __init__(self, address: str):
        found = _ADDRESS.fullmatch(address)
        if found is None or {".", ".."} & {*found["prefix"].split("/")}:
            raise StoreAddressError(
                "a store in a bucket is named s3://bucket/prefix, without credentials or a query; "
                "credentials are taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        self._prefix = f"{found['prefix'][1:]}/".lstrip("/")
        self.address = f"s3://{found['bucket']}{found['prefix']}"
        self.cache = FileCache.from_environment()
        self._s3 = S3(found["bucket"], self.address)

    def read(self, name: str) -> bytes:
        return self._s3.ask(name, "get_object", Key=self._key(name))["Body"]

    def size(self, name: str) -> int | None:
        return found.size if (found := self.stat(name)) else None

    def stat(self, name: str) -> Blob | None:
        try:
            found = self._s3.ask(name, "head_object", Key=self._key(name))
        except FileNotFoundError:
            return None
        return Blob(name, found["ContentLength"], found["LastModified"].timestamp())

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._s3.ask(name, "put_object", Key=self._key(name), Body=bytes(data))

    def create(self, name: str, data: bytes | memoryview) -> None:
        content = bytes(data)
        try:
            self._s3.ask(name, "put_object", Key=self._key(name), Body=content, IfNoneMatch="*")
        except NotImplementedError:
            self.write(name, content)
        except FileExistsError:
            if not self._holds(name, content):
                self.write(name, content)
        if digest := object_digest(name):
            with suppress(StoreError):  # the next stage fetches it then
                self.cache.add(digest, content)

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether a blob is there with these bytes, as far as the service tells without sending them."""
        try:
            found = self._s3.ask(name, "head_object", Key=self._key(name))
        except FileNotFoundError:
            return False
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return (found["ContentLength"], found["ETag"].strip('"')) == (len(content), md5)

    def below(self, prefix: str) -> Iterator[Blob]:
        more = {}
        while True:
            page = self._s3.ask(f"{prefix}/", "list_objects_v2", Prefix=self._key(f"{prefix}/"), **more)
            for found in page.get("Contents", ()):
                name = found["Key"].removeprefix(self._prefix)
                yield Blob(name, found["Size"], found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._s3.ask(name, "delete_object", Key=self._key(name))
        if digest := object_digest(name):
            self.cache.remove(digest)

    def touch(self, name: str) -> None:
        key = self._key(name)
        source = {"Bucket": self._s3.bucket, "Key": key}
        with suppress(FileNotFoundError):
            self._s3.ask(name, "copy_object", Key=key, CopySource=source, MetadataDirective="REPLACE")

    def local(self, name: str) -> Path:
        digest = object_digest(name)
        if digest is None:
            return self.cache.lay(self.address, name, self.read(name))
        if path := self.cache.find(digest):
            return path
        for _ in range(2):
            content = self.read(name)
            if digest_bytes(content) == digest:
                return self.cache.add(digest, content)
        raise DamagedObjectError(f"object {digest} in {self.address} is damaged; build the dataset")

    def fetch(self, names: Iterable[str]) -> None:
        def fetched(name: str) -> None:
            with suppress(FileNotFoundError):
                self.local(name)

        with ThreadPoolExecutor(FETCHERS, thread_name_prefix="tokenloom-fetch") as pool:
            list(pool.map(fetched, names))

    def sweep(self) -> None:
        """Nothing is ever half-written."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"
