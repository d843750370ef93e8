"""Actions: the result of one stage on one input chunk, stored under its cache key."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from tokenloom.errors import StoreError
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.blobs.object_names import is_digest
from tokenloom.resources.store.records import decode_record, encode_record

ACTIONS = "actions"

MAX_ROWS = (1 << 31) - 1
"""Maximum number of rows of an object: positions of rows are int32."""

MAX_COUNT = (1 << 61) - 1
"""Maximum of every other count: a sum of three fits int64."""

ObjectKind = Literal["output", "rejects", "lengths"]
OBJECT_KINDS: tuple[ObjectKind, ...] = get_args(ObjectKind)
"""What the objects of a chunk are; also the fields that have their digests."""

_HEX = re.compile(r"[0-9a-f]*")
_BLOB = re.compile(rf"{ACTIONS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.json")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The output of one chunk and its counts; rows_in = rows_out + rejected + filtered.

    Args:
        output: digest of the output object.
        bytes: size of the output object.
        rejects: digest of the object with the rejected rows, or None if no row was rejected.
        lengths: digest of the object with the number of tokens of each row if loaders read the output, else None.
        tokens: tokens in the output.
        table_rows: rows of the output table.
        blocks: hex `block_digests` of the output if loaders read it, else "".
    """

    output: str
    bytes: int
    rejects: str | None
    lengths: str | None = None
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int
    table_rows: int
    blocks: str = ""

    @property
    def objects(self) -> dict[ObjectKind, str]:
        """Digests of the objects of the chunk, by kind."""
        return {kind: digest for kind in OBJECT_KINDS if (digest := getattr(self, kind)) is not None}

    @property
    def beside(self) -> list[str]:
        """Digests of the objects stored with the output."""
        return [digest for kind, digest in self.objects.items() if kind != "output"]


@dataclass(frozen=True, kw_only=True)
class Action(Outcome):
    """The outcome of one action.

    Args:
        counters: further counts of the stage.
        engine: key of the certificate that the result relies on, or "".
    """

    counters: dict[str, int] = field(default_factory=dict)
    engine: str = ""

    def check(self) -> None:
        """Check every field: stored records can be crafted.

        Raises:
            ValueError: a field is not valid.
        """
        digests = [self.output, *self.beside]
        if not all(map(is_digest, digests)):
            raise ValueError(f"names {str(digests)[:200]}, which are not digests of objects")
        counts = (self.rows_out, self.rejected, self.filtered)
        numbers = (self.bytes, self.rows_in, *counts, self.tokens, self.table_rows)
        if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) > MAX_COUNT:
            raise ValueError(f"has counts that are not valid: {str(numbers)[:200]}")
        if self.table_rows > MAX_ROWS:
            raise ValueError(f"has {self.table_rows:,} rows, more than a chunk can have")
        if self.rows_in != sum(counts):
            raise ValueError(f"has {self.rows_in:,} rows, but accounts for {sum(counts):,}")
        if not isinstance(self.blocks, str) or len(self.blocks) % 2 or not _HEX.fullmatch(self.blocks):
            raise ValueError("has block digests that are not valid")
        if self.engine != "" and not is_digest(self.engine):
            raise ValueError("has an engine that is not a key of a certificate")
        if not isinstance(self.counters, dict) or not all(type(count) is int for count in self.counters.values()):
            raise ValueError("has counters that are not integers")


class ActionStore:
    """Reads and writes actions, one small JSON blob each."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(key: str) -> str:
        """Return the name of an action's blob.

        Raises:
            StoreError: `key` is not a valid key.
        """
        if not is_digest(key):
            raise StoreError(f"{key[:80]!r} is not a valid key of an action")
        return f"{ACTIONS}/{key[:2]}/{key}.json"

    def get(self, key: str) -> Action | None:
        """Return the action, or None if it is missing or damaged, so that it is computed again."""
        name = self.blob(key)
        try:
            return read_action(name, self._blobs.read(name))
        except FileNotFoundError:
            return None

    def put(self, key: str, action: Action) -> None:
        name = self.blob(key)
        self._blobs.write(name, encode_record(name, asdict(action)))

    def delete(self, key: str) -> None:
        self._blobs.delete(self.blob(key))


def action_key(blob: str) -> str | None:
    """Return the key of the action with that blob name, or None if the blob is not an action."""
    return found[2] if (found := _BLOB.fullmatch(blob)) else None


def read_action(name: str, data: bytes) -> Action | None:
    """Parse the bytes of the action with that blob name; None if they are damaged, or those of another action."""
    try:
        action = Action(**decode_record(name, data))
        action.check()
    except (ValueError, TypeError):
        return None
    return action
