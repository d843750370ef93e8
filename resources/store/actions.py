"""Actions: the result of one stage on one input chunk, stored under its cache key; and other small records, such as
probes and certificates.

A stage is computed again for a chunk only if the key changes. No path, time, host or number of workers is part of it.

A record has exactly one form in bytes. A damaged record, or one that was copied or renamed, is treated as missing.

The digest of a probe is part of every cache key. It is stored so that a build does not run the probe each time; so are
other texts that are expensive to compute.

A certificate is the union of several small immutable blobs, so that concurrent builds can add to it without losing
facts. Each addition writes one blob with everything known and deletes the blobs that it has read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from tokenloom.errors import StoreError
from tokenloom.resources.digest import canonical_json, digest_bytes, digest_json
from tokenloom.resources.store.blobs.blobs import DIGEST_CHARACTERS, Blobs, is_digest
from tokenloom.resources.tables.ragged import Ints, ranges


@dataclass(frozen=True)
class KeyParts:
    """The parts of the key that all chunks of a stage share.

    Args:
        stage, version: the stage's name, and the number that is increased when a change of its code changes its output.
        probe: digest of the stage's output for fixed rows. A library that changes this output changes every key.
        settings: exactly the settings that the stage reads, as JSON; settings of the YAML by their dotted names.
        sides: digests of side inputs, by name.
        libraries: versions of the libraries that the stage calls. Not part of the key: for reports only.
        shaping: settings that decide the input chunks. Not part of the key, which has the chunk's digest instead: for
            reports only.
    """

    stage: str
    version: int
    probe: str
    settings: dict[str, Any]
    sides: dict[str, str]
    libraries: dict[str, str] = field(default_factory=dict)
    shaping: dict[str, Any] = field(default_factory=dict)

    def key(self, chunk: str) -> str:
        """Return the key for an input chunk, given the chunk's digest: the BLAKE3 of the parts as canonical JSON."""
        # "chunk" sorts before the other names, so that only the start differs between the keys of a stage
        return digest_bytes(b'{"chunk":%b,%b' % (canonical_json(chunk), self._common))

    @cached_property
    def _common(self) -> bytes:
        """What follows the chunk in the canonical JSON of a key: names are sorted."""
        common = {"stage": self.stage, "version": self.version, "probe": self.probe}
        return canonical_json({**common, "settings": self.settings, "sides": self.sides})[1:]

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> KeyParts | None:
        """Return the parts stored in a manifest, or None if another version of tokenloom with other fields wrote it."""
        if {field.name for field in fields(cls)} != set(parts):
            return None
        mappings = (parts[name] for name in ("settings", "sides", "libraries", "shaping"))
        return cls(**parts) if all(isinstance(mapping, dict) for mapping in mappings) else None


_HEAD, _TAIL = len(b'{"content":'), len(b',"digest":""}') + DIGEST_CHARACTERS
"""Length of what is before and after the content of a record."""


def encode_record(name: str, content: Any) -> bytes:
    """Return the bytes of the record with that blob name and content (JSON)."""
    return _record(name, canonical_json(content))


def _record(name: str, content: bytes) -> bytes:
    digest = digest_bytes(b'{"content":%b,"name":%b}' % (content, canonical_json(name)))
    return b'{"content":%b,"digest":"%b"}' % (content, digest.encode())


def decode_record(name: str, data: bytes) -> Any:
    """Return the content of the record with that blob name.

    Raises:
        ValueError: the bytes are damaged, or are those of a record with another name.
    """
    # a record has one form: cut out the content, encode it again, and compare all bytes
    content = data[_HEAD:-_TAIL]
    if _record(name, content) != data:
        raise ValueError(f"{name} is damaged")
    return parse_json(content)


def parse_json(data: bytes) -> Any:
    """Parse JSON that can be crafted.

    Raises:
        ValueError: it is not valid, not UTF-8, or nested too deep.
    """
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


PROBES = "probes"


class ProbeStore:
    """Reads and writes probe digests, and other small texts: a JSON blob per name, version and what they depend on."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._noted: dict[str, str] = {}

    @staticmethod
    def blob(stage: str, version: int, libraries: Mapping[str, str]) -> str:
        """Return the name of a probe's blob."""
        return f"{PROBES}/{stage}-{digest_json([version, dict(libraries)])[:32]}.json"

    def get(self, stage: str, version: int, libraries: Mapping[str, str]) -> str | None:
        """Return the digest, or None if it is missing or damaged."""
        name = self.blob(stage, version, libraries)
        if name in self._noted:
            return self._noted[name]
        try:
            probe = decode_record(name, self._blobs.read(name))["probe"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(probe, str):
            return None
        self._noted[name] = probe
        return probe

    def put(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        name = self.blob(stage, version, libraries)
        content = {"probe": probe, "version": version, "libraries": dict(libraries)}
        self._blobs.write(name, encode_record(name, content))
        self._noted[name] = probe

    def recalled(self, name: str, version: int, depends: Mapping[str, str], compute: Callable[[], str]) -> str:
        """Return a text that was computed before, else compute and keep it.

        Args:
            depends: everything that the text depends on, by name.
        """
        text = self.get(name, version, depends)
        if text is None:
            text = compute()
            self.put(name, version, depends, text)
        return text

    def note(self, stage: str, version: int, libraries: Mapping[str, str], probe: str) -> None:
        """Add a digest that is known without reading it."""
        self._noted[self.blob(stage, version, libraries)] = probe


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
        stored = self._facts(key)
        intact = [] if None in stored.values() else [*filter(None, stored.values())]
        content = asdict(merge([*intact, certificate]))
        name = f"{CERTIFICATES}/{key}/{digest_json(content)[:32]}.json"
        # the union is written before its parts go: a reader in between finds all facts, some of them twice
        self._blobs.write(name, encode_record(name, content))
        self._blobs.delete_all([merged for merged in stored if merged != name])

    def void(self, key: str, reason: str) -> None:
        """Withdraw a certificate: results that rely on it are computed again."""
        name = _void(key)
        self._blobs.write(name, encode_record(name, {"reason": reason}))

    def is_void(self, key: str) -> bool:
        """Return whether a certificate was withdrawn; a damaged record withdraws it too."""
        return self._blobs.size(_void(key)) is not None

    def _facts(self, key: str) -> dict[str, Certificate | None]:
        """Return the certificate in each blob, None if it is damaged. If a blob disappears while reading, another
        process has merged it into a new one: read all of them again."""
        while True:
            names = [blob.name for blob in self._blobs.below(f"{CERTIFICATES}/{key}") if blob.name != _void(key)]
            contents = self._blobs.read_all(names)
            if len(contents) == len(names):
                return {name: parse_certificate(name, data) for name, data in contents.items()}


def _void(key: str) -> str:
    return f"{CERTIFICATES}/{key}/{_VOID}"


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
    ends = [end for pair in inclusive for end in pair]
    in_order = all(first <= last for first, last in pairwise(ends))
    return all(type(end) is int and 0 <= end < CODE_POINTS for end in ends) and in_order


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
        # by type: True would pass as 1
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
