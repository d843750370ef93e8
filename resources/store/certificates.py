"""Certificates: on which code points two tokenizer engines were found to agree.

A certificate is the union of several small immutable blobs, so that concurrent builds can add to it without losing
facts. Each addition writes one blob with everything known and deletes the blobs that it has read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.blobs.blobs import Blobs
from tokenloom.resources.store.records import decode_record, encode_record
from tokenloom.resources.tables.ragged import Ints, ranges

CERTIFICATES = "certificates"
CODE_POINTS = 0x110000
_VOID = "void.json"


@dataclass(frozen=True)
class Certificate:
    """What is known about one pair of engines.

    Args:
        agreed, disputed: ascending ranges of code points, each (first, last).
        refused: why the second engine is not used at all, or "".
    """

    agreed: tuple[tuple[int, int], ...] = ()
    disputed: tuple[tuple[int, int], ...] = ()
    refused: str = ""


def to_ranges(points: Ints) -> tuple[tuple[int, int], ...]:
    """Convert ascending distinct numbers to inclusive ranges."""
    if not len(points):
        return ()
    cut = np.flatnonzero(np.diff(points) > 1)
    first, last = points[np.append(0, cut + 1)], points[np.append(cut, len(points) - 1)]
    return tuple(zip(first.tolist(), last.tolist(), strict=True))


def from_ranges(inclusive: tuple[tuple[int, int], ...]) -> Ints:
    """Return the numbers in inclusive ranges, ascending."""
    pairs = np.array(inclusive, np.int64).reshape(-1, 2)
    return ranges(pairs[:, 0], pairs[:, 1] - pairs[:, 0] + 1)


def merge(certificates: list[Certificate]) -> Certificate:
    """Return the union of certificates. A code point disputed in one of them is disputed."""
    none = np.zeros(0, np.int64)
    disputed = np.unique(np.concatenate([none, *(from_ranges(one.disputed) for one in certificates)]))
    agreed = np.unique(np.concatenate([none, *(from_ranges(one.agreed) for one in certificates)]))
    refused = min((one.refused for one in certificates if one.refused), default="")
    return Certificate(to_ranges(np.setdiff1d(agreed, disputed)), to_ranges(disputed), refused)


class CertificateStore:
    """Reads and adds to certificates."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    def read(self, key: str) -> Certificate:
        """Return everything known under `key`. If a blob is damaged, nothing is: it can be the one that disputes what
        the others agree on."""
        facts = self._facts(key)
        return Certificate() if None in facts.values() else merge([*filter(None, facts.values())])

    def add(self, key: str, certificate: Certificate) -> None:
        """Add to what is known under `key`. If a blob is damaged, what the others state is not kept."""
        known = self._facts(key)
        kept = [] if None in known.values() else [*filter(None, known.values())]
        content = asdict(merge([*kept, certificate]))
        name = f"{CERTIFICATES}/{key}/{digest_json(content)[:32]}.json"
        self._blobs.write(name, encode_record(name, content))
        self._blobs.delete_all([merged for merged in known if merged != name])

    def void(self, key: str, reason: str) -> None:
        """Withdraw a certificate: results that rely on it are computed again."""
        name = self._void(key)
        self._blobs.write(name, encode_record(name, {"reason": reason}))

    def is_void(self, key: str) -> bool:
        """Return whether a certificate was withdrawn; a damaged record withdraws it too."""
        return self._blobs.size(self._void(key)) is not None

    @staticmethod
    def _void(key: str) -> str:
        return f"{CERTIFICATES}/{key}/{_VOID}"

    def _facts(self, key: str) -> dict[str, Certificate | None]:
        """Return the certificate in each blob, None if it is damaged. If a blob disappears while reading, another
        process has merged it into a new one: read all of them again."""
        while True:
            names = [blob.name for blob in self._blobs.below(f"{CERTIFICATES}/{key}") if blob.name != self._void(key)]
            contents = self._blobs.read_all(names)
            if len(contents) == len(names):
                return {name: parse_certificate(name, data) for name, data in contents.items()}


def void_key(blob: str) -> str | None:
    """Return the key that the blob with that name withdraws, or None if it is another blob."""
    folder, _, name = blob.rpartition("/")
    return folder.removeprefix(f"{CERTIFICATES}/") if name == _VOID and folder.startswith(CERTIFICATES) else None


def parse_certificate(name: str, data: bytes) -> Certificate | None:
    """Return a blob's content, or None if it is damaged."""
    try:
        facts = decode_record(name, data)
        ranges_of = {name: tuple((a, b) for a, b in facts[name]) for name in ("agreed", "disputed")}
        valid = all(map(_ascend, ranges_of.values())) and isinstance(facts["refused"], str)
        return Certificate(**ranges_of, refused=facts["refused"]) if valid else None
    except (ValueError, KeyError, TypeError):
        return None


def _ascend(inclusive: tuple[tuple[Any, Any], ...]) -> bool:
    """Return whether ranges of code points are valid and ascending."""
    ends = [end for pair in inclusive for end in pair]
    in_order = all(first <= last for first, last in pairwise(ends))
    return all(type(end) is int and 0 <= end < CODE_POINTS for end in ends) and in_order
