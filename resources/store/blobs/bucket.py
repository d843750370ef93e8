"""Blobs in an S3 bucket. A blob is written with one request, which makes it atomic.

Credentials, region and endpoint come from the environment (`$AWS_…`). s3fs works in processes that are forked after the
first request, as workers of data loaders are; obstore hangs there.

Objects are read and written through a cache on the local disk.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from weakref import WeakValueDictionary

from tokenloom.errors import (
    DamagedObjectError,
    StoreAddressError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    escaped,
    missing_package,
)
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.store.blobs.blobs import RENEW_SECONDS, Blob, content_digest
from tokenloom.resources.store.blobs.file_cache import FileCache
from tokenloom.resources.visible import first_line

ATTEMPTS = 9
FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
"""Seconds between attempts: exponential backoff, with random jitter of up to half of the wait."""

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""Seconds without data after which a connection counts as lost."""

CONNECTIONS = 64

LARGEST_ERROR, LARGEST_ANSWER, LARGEST_BLOB = 64 << 10, 32 << 20, 4 << 30
"""Most bytes that are read of an error, of another answer such as a listing, and of a blob."""

_TRANSIENT = ("SlowDown", "Throttl", "RequestTimeout", "RequestLimit", "TooManyRequests", "Conflict")
_TRANSIENT += ("OperationAborted", "IncompleteBody", "BadDigest", "ContentSHA256Mismatch")
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint")
_TOKEN = ("ExpiredToken", "InvalidToken", "TokenRefresh")

_systems: WeakValueDictionary[int, Any] = WeakValueDictionary()
_inherited: list[Any] = []
"""File systems of the parent process: if a forked process released one, it would break the parent's connections."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _inherited.extend(_systems.values()))


class S3:
    """One bucket. Thread-safe. Pickled copies and forked processes open their own connections.

    Args:
        bucket: its name.
        address: the store's address, for messages.

    Raises:
        StoreAddressError: s3fs is not installed.
    """

    def __init__(self, bucket: str, address: str):
        if find_spec("s3fs") is None:
            raise StoreAddressError(str(missing_package("s3fs", "a store in a bucket")))
        self.bucket, self.address = bucket, address
        self._connected: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None}

    def request(self, blob: str, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the S3 API and return its response, with the whole body, if any, as bytes under `Body`.

        Args:
            blob: name of the blob, for messages.
            arguments: arguments of the method, without the bucket.

        Raises:
            FileNotFoundError: the key does not exist.
            FileExistsError: the key exists, and the request requires that it does not.
            NotImplementedError: the service does not support conditions, or deleting several keys at once.
            StoreUnavailableError: the bucket does not exist, or the service refuses or keeps failing.
        """
        from fsspec.asyn import sync

        arguments, optional = {"Bucket": self.bucket, **arguments}, "IfNoneMatch" in arguments or "Delete" in arguments
        failures = 0
        while True:
            try:
                system = self._system()
                response: Any = sync(system.loop, _call, system, method, arguments, f"{blob}: {self.address}")
                return response
            except Exception as error:
                failures += 1
                final = self._final_error(error, blob, optional)
                if final is None and failures == ATTEMPTS:
                    final = self._gave_up(error, blob)
                if final is error:
                    raise
                if final is not None:
                    raise final from None  # messages of the libraries can contain the endpoint with its password
            time.sleep(min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_WAIT) * random.uniform(0.5, 1))

    def _system(self) -> Any:
        """Return this process's file system, which connects on the first request."""
        if self._connected is None or self._connected[0] != os.getpid():
            from s3fs import S3FileSystem

            settings = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
            settings |= {"retries": {"total_max_attempts": 1}, "max_pool_connections": CONNECTIONS}
            settings |= {"http_session_cls": _bounded_session()}
            system = S3FileSystem(config_kwargs=settings, skip_instance_cache=True, use_listings_cache=False)
            system.retries = 1  # `request` retries itself
            _systems[id(system)] = system
            self._connected = os.getpid(), system
        return self._connected[1]

    def _final_error(self, error: Exception, blob: str, optional: bool) -> Exception | None:
        """Return the exception to raise for a failed request, or None if the request should be retried."""
        response = _response(error)
        if response is None:
            return None if _is_lost_connection(error) else self._not_sent(error)
        status, code = response
        if code == "NoSuchBucket":
            return StoreRefusedError(f"bucket {self.bucket!r} does not exist; create it, or use another store")
        if status == 404:
            return FileNotFoundError(blob)
        if status == 412:
            return FileExistsError(blob)
        if status == 501 and optional:
            return NotImplementedError(blob)
        if status in (408, 429) or (status >= 500 and status != 501) or any(name in code for name in _TRANSIENT):
            return None
        if code in _REGION or status in (301, 307):
            remedy = "the bucket is in another region; set AWS_DEFAULT_REGION"
        elif status in (401, 403) or any(name in code for name in _TOKEN):
            remedy = (
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and that they allow to list the "
                "bucket, and to read, write and delete objects"
            )
        else:
            remedy = "check AWS_ENDPOINT_URL, and which requests the service allows"
        return StoreRefusedError(f"{blob}: {self.address} returned {status} {code}: {remedy}")

    def _gave_up(self, error: Exception, blob: str) -> StoreUnavailableError:
        response = _response(error)
        reason = f"returned {' '.join(map(str, response))}" if response else f"is unreachable ({type(error).__name__})"
        return StoreUnavailableError(
            f"{blob}: {self.address} {reason.rstrip()}, {ATTEMPTS} times in a row; "
            "check the network and AWS_ENDPOINT_URL, and try again"
        )

    def _not_sent(self, error: Exception) -> Exception:
        """Return the exception for a request that could not be sent. Errors that do not come from botocore or the
        system are bugs, and are returned unchanged."""
        from botocore import exceptions

        if any(isinstance(cause, exceptions.NoCredentialsError) for cause in _causes(error)):
            reason = "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        elif isinstance(error, ValueError) and "endpoint" in str(error).lower():
            reason = "AWS_ENDPOINT_URL must be a URL such as https://host:port"
        elif isinstance(error, exceptions.BotoCoreError | OSError):
            reason = f"cannot send requests ({type(error).__name__}); check the AWS_… variables"
        elif isinstance(error, ValueError | OverflowError | RecursionError):  # of botocore, for what the service sends
            reason = f"cannot read the service's answer ({first_line(error)[:200]}); check AWS_ENDPOINT_URL"
        else:
            return error
        return StoreRefusedError(f"{self.address}: {reason}")


async def _call(system: Any, method: str, arguments: dict[str, Any], place: str) -> dict[str, Any]:
    response = await system._call_s3(method, **arguments)
    if "Body" not in response:
        return response
    async with response["Body"] as body:
        size = _stated(response, "ContentLength", place)
        if size > LARGEST_BLOB:
            raise StoreRefusedError(f"{place} sends {size:,} bytes, more than a blob can have; check AWS_ENDPOINT_URL")
        content = await body.read()
    if len(content) != size:
        raise ConnectionError("the connection was cut")
    return {**response, "Body": content}


def _bounded_session() -> type[Any]:
    from aiobotocore.httpsession import AIOHTTPSession

    class BoundedSession(AIOHTTPSession):
        """Reads the start of an error, and no more of another answer than a service sends."""

        async def send(self, request: Any) -> Any:
            streamed, request.stream_output = request.stream_output, True
            response: Any = await super().send(request)
            failed = response.status_code >= 300
            if failed or not streamed:
                room, parts = LARGEST_ERROR if failed else LARGEST_ANSWER, list[bytes]()
                while room > 0 and (part := await response.raw.content.read(room)):
                    parts.append(part)
                    room -= len(part)
                if room <= 0:
                    response.raw.close()
                    if not failed:
                        raise OverflowError(f"it is larger than {LARGEST_ANSWER >> 20} MiB")
                response._content = b"".join(parts)
            return response

    return BoundedSession


def _stated(found: dict[str, Any], name: str, place: str) -> Any:
    """Return what a service must state; `place` is the blob and the store."""
    if (value := found.get(name)) is None:
        raise StoreRefusedError(f"{place} states no {name}, as S3 does; check AWS_ENDPOINT_URL")
    return value


def _response(error: Exception) -> tuple[int, str] | None:
    for cause in _causes(error):
        if isinstance(response := getattr(cause, "response", None), dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, escaped(str(response.get("Error", {}).get("Code", ""))[:80])
    return None


def _is_lost_connection(error: Exception) -> bool:
    from aiohttp import ClientError, InvalidURL
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    lost = (ClientError, exceptions.HTTPClientError, exceptions.ConnectionError, TimeoutError, ConnectionError)
    lost += (exceptions.IncompleteReadError, exceptions.FlexibleChecksumError, ResponseParserError)
    return any(isinstance(cause, lost) and not isinstance(cause, InvalidURL) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


_DIGEST = re.compile(r"[a-z]+/[0-9a-f]{2}/([0-9a-f]{8})[0-9a-f]{56}(?:\.[a-z]+)?")

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
        return self._blob(name, found, "ContentLength")

    def _blob(self, name: str, found: dict[str, Any], size: str) -> Blob:
        stated = [_stated(found, field, f"{name}: {self.address}") for field in (size, "LastModified", "ETag")]
        return Blob(name, stated[0], stated[1].timestamp(), stated[2].strip('"'))

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
            # digests are uniform: cut the rest into equal ranges of names, listed in parallel
            count = min(math.ceil(1 / seen), AT_ONCE)
            ends = [f"{int((seen + (1 - seen) * part / count) * 16**8):08x}" for part in range(1, count)]
            names = [first[-1].name, *(f"{folder}/{end[:2]}/{end}" for end in ends), f"{folder}0"]
            parts = at_once(lambda part: self._between(folder, *part), [*pairwise(names)])
            first += [blob for part in parts for blob in part]
        return {blob.name: blob for blob in first}

    def _between(self, folder: str, after: str, last: str) -> list[Blob]:
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
                # damaged, or so old that `gc` could remove it: written again, which renews it
                if not is_same(found, content) or found.modified <= self.fresh_since:
                    self.write(name, content)
        if digest := content_digest(name):
            with suppress(StoreError):  # the cache cannot be written: readers download the object
                self.cache.add(digest, content)

    def create_all(self, contents: Mapping[str, bytes | memoryview]) -> None:
        at_once(lambda item: self.create(*item), contents.items())

    def create_new(self, name: str, data: bytes | memoryview) -> bool:
        try:
            self._s3.request(name, "put_object", Key=self._key(name), Body=bytes(data), IfNoneMatch="*")
        except FileExistsError:  # also if the response to an earlier attempt was lost
            # equal content counts as written by this process
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
        """Return the first blobs below a folder, or below all if it is "", of names after one; and whether there are
        more."""
        more = {"StartAfter": self._key(after)} if after else {}
        prefix = f"{folder}/" if folder else ""
        page = self._s3.request(prefix, "list_objects_v2", Prefix=self._key(prefix), **more)
        found = [
            self._blob(_stated(each, "Key", f"{prefix}: {self.address}").removeprefix(self._prefix), each, "Size")
            for each in page.get("Contents", ())
        ]
        return found, _stated(page, "IsTruncated", f"{prefix}: {self.address}") and bool(found)

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
            except (NotImplementedError, KeyError):
                refused = part
            at_once(self.delete, refused)  # retries, or reports why it is refused

    def _forget(self, name: str) -> None:
        self.marked.pop(name, None)
        if digest := content_digest(name):
            self.cache.remove(digest)

    @property
    def fresh_since(self) -> float:
        return time.time() - RENEW_SECONDS

    def touch(self, name: str) -> None:
        key = self._key(name)
        # S3 has no touch: a copy onto itself sets the time
        source = {"Bucket": self._s3.bucket, "Key": key}
        with suppress(FileNotFoundError):
            self._s3.request(name, "copy_object", Key=key, CopySource=source, MetadataDirective="REPLACE")

    def local(self, name: str) -> Path:
        digest = content_digest(name)
        if digest is None:
            return self.cache.put_named(self.address, name, self.read(name))
        path = self.cache.obtain(digest, lambda: self._intact(name, digest))
        assert path is not None
        return path

    def _intact(self, name: str, digest: str) -> bytes:
        # twice: what is damaged in transit is right the second time
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
                if digest := content_digest(name):
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
