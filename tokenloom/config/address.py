"""Addresses that a YAML names: their credentials open them, and appear nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from tokenloom.errors import names_credentials, redacted_address

BUCKETS = ("s3", "s3a", "gs", "gcs", "oss", "r2")
"""Protocols whose credentials come from the environment, never from an address."""

SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
"""A valid name of a split."""


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


class SplitAddresses(Address):
    """The address of each split, as one text without credentials; `splits` has the addresses."""

    splits: dict[str, Address]

    def __new__(cls, splits: Mapping[str, str]) -> SplitAddresses:
        addresses = {
            split: address if isinstance(address, Address) else Address(address) for split, address in splits.items()
        }
        self = str.__new__(cls, ", ".join(f"{split}: {address}" for split, address in addresses.items()))
        self.full = ", ".join(f"{split}: {address.full}" for split, address in addresses.items())
        self.splits = addresses
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitAddresses, (self.splits,)


def full_address(address: str) -> str:
    """Return the address to open, with its credentials."""
    return address.full if isinstance(address, Address) else address


def addresses_of(name: str) -> dict[str, str]:
    """Return the address of each split that `dataset.name` names; {} if it is one address."""
    return {**name.splits} if isinstance(name, SplitAddresses) else {}


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


def _addresses(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(value, Mapping):
        return _address(value, validate)
    if not value:
        raise ValueError("names no split; write it like {train: a.jsonl, validation: b.jsonl}")
    for split in value:
        if not isinstance(split, str) or not SPLIT_NAME.fullmatch(split):
            raise ValueError(f"{split!r} is not a valid name of a split (letters, digits, _ and .)")
        if not isinstance(value[split], str) or not value[split]:
            raise ValueError(f"{split}: must be a file, a folder, a glob or a URL, got {value[split]!r}")
    return SplitAddresses({split: _address(address, validate) for split, address in value.items()})


AddressText = Annotated[str, WrapValidator(_address)]
"""A setting that takes a path or URL."""

_TEXT = {"type": "string", "minLength": 1}
SourceText = Annotated[
    str,
    WrapValidator(_addresses),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "object", "minProperties": 1, "additionalProperties": _TEXT}]}),
]
"""A setting that takes a path or URL, or one for each split."""
