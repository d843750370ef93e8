"""A local S3 service: moto's server behind a proxy that injects faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from support.fault_proxy import FaultProxy

SECRET = "sEcReTsEcReT"
BUCKET = "stores"

_ADDRESSES = count()  # all of moto's servers in a process serve the same buckets


@dataclass
class ObjectService:
    """The service that the environment names, with one bucket.

    Args:
        proxy: the proxy that requests of clients configured by the environment go through.
        client: a client that bypasses the proxy.
    """

    proxy: FaultProxy
    client: Any
    _bodies: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def address(self) -> str:
        """Return a new address in the bucket."""
        return f"s3://{BUCKET}/stores/{next(_ADDRESSES)}"

    def contents(self, address: str) -> dict[str, bytes]:
        """Return the content of all blobs below an address, by name."""
        prefix = address.removeprefix(f"s3://{BUCKET}/") + "/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        listed = [(found["Key"], found["ETag"]) for page in pages for found in page.get("Contents", ())]
        for key, tag in listed:
            if (key, tag) not in self._bodies:
                self._bodies[key, tag] = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return {key.removeprefix(prefix): self._bodies[key, tag] for key, tag in listed}

    def put(self, address: str, name: str, data: bytes) -> None:
        """Write a blob directly, without going through a store."""
        self.client.put_object(Bucket=BUCKET, Key=f"{address.removeprefix(f's3://{BUCKET}/')}/{name}", Body=data)

    def age(self, address: str, seconds: float) -> None:
        """Make all blobs below an address older."""
        prefix = address.removeprefix(f"s3://{BUCKET}/") + "/"
        for name, key in [*s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys.items()]:
            if name.startswith(prefix):
                key.last_modified -= timedelta(seconds=seconds)

    def copy(self, folder: Path, address: str) -> None:
        """Copy all files below a folder to an address."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            self.put(address, path.relative_to(folder).as_posix(), path.read_bytes())


@contextmanager
def object_service(cache: Path) -> Iterator[ObjectService]:
    """Run the service until the `with` block ends. Stores use `cache` as their cache and wait only briefly between
    retries."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with FaultProxy(host, port) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        patch.setenv("TOKENLOOM_CACHE", str(cache))
        patch.delenv("TOKENLOOM_CACHE_SIZE", raising=False)
        patch.setattr("tokenloom.resources.store.blobs.bucket.FIRST_WAIT", 0.001)
        client: Any = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket=BUCKET)
        yield ObjectService(proxy, client)
    server.stop()
