"""Certificates: what was found when two engines were compared, as facts that only grow.

A certificate is a group of small immutable blobs whose union counts, so that builds that add to it at the same time
lose nothing. Whoever adds replaces the blobs that it has read by one that holds them all.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from tokenloom.resources.digest import canonical_json, digest_bytes
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.tables.ragged import Ints, ranges

CERTIFICATES = "certificates"


@dataclass(frozen=True)
class Certificate:
    """What is known about one pair of engines.

    Args:
        agreed, disputed: ranges of code points, each its first and last, ascending.
        refused: why the second engine is not used at all, or "".
    """

    agreed: tuple[tuple[int, int], ...] = ()
    disputed: tuple[tuple[int, int], ...] = ()
    refused: str = ""


def to_ranges(points: Ints) -> tuple[tuple[int, int], ...]:
    """Ascending distinct numbers as ranges."""
    if not len(points):
        return ()
    cut = np.flatnonzero(np.diff(points) > 1)
    first, last = points[np.append(0, cut + 1)], points[np.append(cut, len(points) - 1)]
    return tuple(zip(first.tolist(), last.tolist(), strict=True))


def from_ranges(found: tuple[tuple[int, int], ...]) -> Ints:
    """The numbers in ranges, ascending."""
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return ranges(pairs[:, 0], pairs[:, 1] - pairs[:, 0] + 1)


def merge(found: list[Certificate]) -> Certificate:
    """The union of what is known; what one disputes no other can agree to."""
    disputed = np.unique(np.concatenate([from_ranges(one.disputed) for one in found] or [np.zeros(0, np.int64)]))
    agreed = np.unique(np.concatenate([from_ranges(one.agreed) for one in found] or [np.zeros(0, np.int64)]))
    refused = min((one.refused for one in found if one.refused), default="")
    return Certificate(to_ranges(np.setdiff1d(agreed, disputed)), to_ranges(disputed), refused)


class CertificateStore:
    """Reads and adds to certificates."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def read(self, key: str) -> Certificate:
        """All that is known under `key`."""
        return merge(list(self._facts(key).values()))

    def add(self, key: str, found: Certificate) -> None:
        """Add to what is known under `key`."""
        known = self._facts(key)
        data = canonical_json(asdict(merge([*known.values(), found])))
        name = f"{CERTIFICATES}/{key}/{digest_bytes(data)[:32]}.json"
        self._blobs.write(name, data)
        for held in known:
            if held != name:
                self._blobs.delete(held)

    def void(self, key: str, reason: str) -> None:
        """Withdraw everything that was made on the strength of `key`."""
        self._blobs.write(self._void(key), canonical_json({"reason": reason}))

    def is_void(self, key: str) -> bool:
        return self._blobs.size(self._void(key)) is not None

    @staticmethod
    def _void(key: str) -> str:
        return f"{CERTIFICATES}/{key}/void.json"

    def _facts(self, key: str) -> dict[str, Certificate]:
        """Each blob's content; blobs that vanish meanwhile are held by one that has appeared, so look again."""
        while True:
            found: dict[str, Certificate] = {}
            try:
                for blob in self._blobs.below(f"{CERTIFICATES}/{key}"):
                    if blob.name != self._void(key) and (facts := _parsed(self._blobs.read(blob.name))):
                        found[blob.name] = facts
                return found
            except FileNotFoundError:
                continue


def _parsed(data: bytes) -> Certificate | None:
    """A blob's content, or None where it is damaged: what it held is then found anew."""
    try:
        facts = json.loads(data)
        ranges_of = {name: tuple((int(a), int(b)) for a, b in facts[name]) for name in ("agreed", "disputed")}
        return Certificate(**ranges_of, refused=str(facts["refused"]))
    except (ValueError, KeyError, TypeError):
        return None
