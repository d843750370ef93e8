"""Requests to an S3 service, through s3fs: made again while that may help; what fails is told in one sentence, without
secrets.

Credentials, region and endpoint are those that the environment names ($AWS_…).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from tokenloom.errors import StoreAddressError, StoreUnavailableError

ATTEMPTS = 9
FIRST_WAIT = 0.1
LONGEST_WAIT = 10.0
"""Seconds between attempts: each wait is up to twice as long as the one before; half of it is left to chance."""

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""A service that sends nothing for so long has been cut off."""

CONNECTIONS = 64

_AGAIN = ("SlowDown", "Throttl", "RequestTimeout", "RequestLimit", "TooManyRequests", "Conflict", "OperationAborted")
_AGAIN += ("IncompleteBody", "BadDigest", "ContentSHA256Mismatch")
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint")
_TOKEN = ("ExpiredToken", "InvalidToken", "TokenRefresh")


class S3:
    """One bucket. It is pickled and forked without its connections; any thread may ask.

    Args:
        bucket: its name.
        address: what messages call the place.

    Raises:
        StoreAddressError: s3fs is not installed.
    """

    def __init__(self, bucket: str, address: str):
        if find_spec("s3fs") is None:
            raise StoreAddressError("s3:// stores need s3fs: pip install 'tokenloom[s3]' brings it")
        self.bucket, self.address = bucket, address
        self._connected: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None}

    def ask(self, blob: str, method: str, **arguments: Any) -> dict[str, Any]:
        """What the service answers to one of its methods, with the whole body, if any, as bytes under `Body`.

        Args:
            blob: what messages name.
            arguments: the method's, but for the bucket.

        Raises:
            FileNotFoundError: there is no such key.
            FileExistsError: there is one, against a condition.
            NotImplementedError: the service knows no conditions.
            StoreUnavailableError: there is no such bucket, or it refuses, or does not answer for long.
        """
        from fsspec.asyn import sync

        asked: dict[str, Any] = {"Bucket": self.bucket, **arguments}
        failures = 0
        while True:
            try:
                system = self._system()
                answer: Any = sync(system.loop, _answer, system, method, asked)
                return answer
            except Exception as error:
                failures += 1
                told = self._told(error, blob, "IfNoneMatch" in asked)
                if told is None and failures == ATTEMPTS:
                    told = self._gave_up(error, blob)
                if told is error:
                    raise
                if told is not None:
                    raise told from None  # what the libraries say may name the endpoint with its password
            time.sleep(min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_WAIT) * random.uniform(0.5, 1))

    def _system(self) -> Any:
        """The file system of this process; it connects when it is first asked."""
        if self._connected is None or self._connected[0] != os.getpid():
            from s3fs import S3FileSystem

            settings = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
            settings |= {"retries": {"total_max_attempts": 1}, "max_pool_connections": CONNECTIONS}
            system = S3FileSystem(config_kwargs=settings, skip_instance_cache=True, use_listings_cache=False)
            system.retries = 1  # `ask` asks again
            self._connected = os.getpid(), system
        return self._connected[1]

    def _told(self, error: Exception, blob: str, conditional: bool) -> Exception | None:
        """What an error means, or None where asking again may help."""
        said = _refusal(error)
        if said is None:
            return None if _is_cut_off(error) else self._no_request(error)
        status, code = said
        if code == "NoSuchBucket":
            return StoreUnavailableError(f"there is no bucket {self.bucket!r}; make it, or name another store")
        if status == 404:
            return FileNotFoundError(blob)
        if status == 412:
            return FileExistsError(blob)
        if status == 501 and conditional:
            return NotImplementedError(blob)
        if status in (408, 429) or (status >= 500 and status != 501) or any(name in code for name in _AGAIN):
            return None
        if code in _REGION or status in (301, 307):
            remedy = "the bucket is in another region; set AWS_DEFAULT_REGION"
        elif status in (401, 403) or any(name in code for name in _TOKEN):
            remedy = (
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, "
                "and that they may list the bucket, and read, write and delete in it"
            )
        else:
            remedy = "check AWS_ENDPOINT_URL, and what the service allows"
        return StoreUnavailableError(f"{blob}: {self.address} answers {status} {code}: {remedy}")

    def _gave_up(self, error: Exception, blob: str) -> StoreUnavailableError:
        said = _refusal(error)
        reason = f"answers {said[0]} {said[1]}".rstrip() if said else f"cannot be reached ({type(error).__name__})"
        return StoreUnavailableError(
            f"{blob}: {self.address} {reason}, {ATTEMPTS} times in a row; "
            "check the network and AWS_ENDPOINT_URL, and try again"
        )

    def _no_request(self, error: Exception) -> Exception:
        """What kept a request from being made; an error that is none of the library's is a fault of ours."""
        from botocore import exceptions

        if any(isinstance(cause, exceptions.NoCredentialsError) for cause in _causes(error)):
            reason = "no credentials are there; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        elif isinstance(error, ValueError) and "endpoint" in str(error).lower():
            reason = "AWS_ENDPOINT_URL is no URL such as https://host:port"
        elif isinstance(error, exceptions.BotoCoreError | OSError):
            reason = f"it cannot be asked ({type(error).__name__}); check the AWS_… variables"
        else:
            return error
        return StoreUnavailableError(f"{self.address}: {reason}")


async def _answer(system: Any, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    answer = await system._call_s3(method, **arguments)
    if "Body" not in answer:
        return answer
    async with answer["Body"] as body:
        content = await body.read()
    if len(content) != answer["ContentLength"]:
        raise ConnectionError("the connection was cut")
    return {**answer, "Body": content}


def _refusal(error: Exception) -> tuple[int, str] | None:
    """The status and the code that the service answered, or None where it did not."""
    for cause in _causes(error):
        if isinstance(response := getattr(cause, "response", None), dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status, str(response.get("Error", {}).get("Code", ""))
    return None


def _is_cut_off(error: Exception) -> bool:
    from aiohttp import ClientError, InvalidURL
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    lost = (ClientError, exceptions.HTTPClientError, exceptions.ConnectionError, TimeoutError, ConnectionError)
    lost += (exceptions.IncompleteReadError, exceptions.FlexibleChecksumError, ResponseParserError)
    return any(isinstance(cause, lost) and not isinstance(cause, InvalidURL) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__
