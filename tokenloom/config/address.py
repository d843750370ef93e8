"""Addresses that a YAML names: their credentials open them, and appear nowhere else."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from tokenloom.errors import names_credentials, redacted_address

BUCKETS = ("s3", "s3a", "gs", "gcs", "oss", "r2")
"""Protocols whose credentials come from the environment, never from an address."""


class Address(str):
    """A path or URL as text without credentials; `full` has them.

    Everything that shows, stores or hashes the text does so without credentials.
    """

    full: str

    def __new__(cls, address: str) -> Address:
        full = full_address(address)
        self = super().__new__(cls, redacted_address(full))
        self.full = full
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Address, (self.full,)


def full_address(address: str) -> str:
    """Return the address to open, with its credentials."""
    return address.full if isinstance(address, Address) else address


def _address(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, Address):
        return value
    if not isinstance(text := validate(value), str):
        return text
    for part in text.split("::"):
        if part.partition("://")[0].lower() in BUCKETS and names_credentials(part):
            raise ValueError(
                "the address of a bucket must not contain credentials; write s3://bucket/path and set them in "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
    return Address(text)


AddressText = Annotated[str, WrapValidator(_address)]
"""A setting that takes a path or URL."""
