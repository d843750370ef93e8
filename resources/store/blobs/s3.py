"""Requests to an S3 service, through s3fs. Transient failures are retried; other failures are raised as errors of one
sentence, without secrets.

Credentials, region and endpoint come from the environment (`$AWS_…`). s3fs works in processes that are forked after the
first request, as workers of data loaders are; obstore hangs there.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from weakref import WeakValueDictionary

from tokenloom.errors import StoreAddressError, StoreRefusedError, StoreUnavailableError, missing_package

ATTEMPTS = 9
FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
"""Seconds between attempts: exponential backoff, with random jitter of up to half of the wait."""

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""Seconds without data after which a connection counts as lost."""

CONNECTIONS = 64

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
                response: Any = sync(system.loop, _call, system, method, arguments)
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
        else:
            return error
        return StoreRefusedError(f"{self.address}: {reason}")


async def _call(system: Any, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    response = await system._call_s3(method, **arguments)
    if "Body" not in response:
        return response
    async with response["Body"] as body:
        content = await body.read()
    if len(content) != response["ContentLength"]:
        raise ConnectionError("the connection was cut")
    return {**response, "Body": content}


def _response(error: Exception) -> tuple[int, str] | None:
    """Return the status and error code of the service's response, or None if the service did not respond."""
    for cause in _causes(error):
        if isinstance(response := getattr(cause, "response", None), dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, str(response.get("Error", {}).get("Code", ""))
    return None


def _is_lost_connection(error: Exception) -> bool:
    from aiohttp import ClientError, InvalidURL
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    lost = (ClientError, exceptions.HTTPClientError, exceptions.ConnectionError, TimeoutError, ConnectionError)
    lost += (exceptions.IncompleteReadError, exceptions.FlexibleChecksumError, ResponseParserError)
    return any(isinstance(cause, lost) and not isinstance(cause, InvalidURL) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes."""
    while error is not None:
        yield error
        error = error.__cause__
