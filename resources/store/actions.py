"""Actions: what a stage made of one input chunk, filed under the key of everything that the result depends on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.blobs.blobs import Blobs

ACTIONS = "actions"

_BLOB = re.compile(rf"{ACTIONS}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.json")


@dataclass(frozen=True)
class KeyParts:
    """What the actions of one stage of one dataset have in common.

    Args:
        stage, version: the stage's name and the number bumped when its code changes its output.
        probe: digest of what the stage makes of fixed rows; libraries that change it change every key.
        settings: exactly the settings that the stage reads, as JSON; those of the YAML by their dotted names.
        sides: digests of side inputs, by name.
        libraries: versions of the libraries that the stage calls. For people: no part of any key.
        shaping: settings that say which chunks there are, whose digests stand for them. For people as well.
    """

    stage: str
    version: int
    probe: str
    settings: dict[str, Any]
    sides: dict[str, str]
    libraries: dict[str, str] = field(default_factory=dict)
    shaping: dict[str, Any] = field(default_factory=dict)

    def key(self, chunk: str) -> str:
        """The key of the action on an input chunk, named by its digest: BLAKE3 over canonical JSON."""
        common = {"stage": self.stage, "version": self.version, "probe": self.probe}
        return digest_json({**common, "settings": self.settings, "sides": self.sides, "chunk": chunk})

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> KeyParts | None:
        """The parts that a manifest holds, or None where they are of another version."""
        return cls(**found) if {field.name for field in fields(cls)} == set(found) else None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one chunk.

    `output` and `rejects` are object digests (`rejects` is None where no row was rejected), `bytes` the output's size,
    and rows_in = rows_out + rejected + filtered; `tokens` counts those of the output, `table_rows` the rows of its
    table. `blocks` is `block_digests` of the output in hex where loaders read it, else "".
    """

    output: str
    bytes: int
    rejects: str | None
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int
    table_rows: int
    blocks: str = ""


@dataclass(frozen=True, kw_only=True)
class Action(Outcome):
    """The outcome of one action, with the stage's further counts, and the key of the certificate that it relies on."""

    counters: dict[str, int] = field(default_factory=dict)
    engine: str = ""

    def outcome(self) -> dict[str, Any]:
        """The fields of an `Outcome`."""
        return {field.name: getattr(self, field.name) for field in fields(Outcome)}


class ActionStore:
    """Reads and writes actions, one small JSON blob each."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs

    @staticmethod
    def blob(key: str) -> str:
        """The name of an action's blob."""
        return f"{ACTIONS}/{key[:2]}/{key}.json"

    def get(self, key: str) -> Action | None:
        """The action, or None where there is none or it cannot be read (it is then computed again)."""
        try:
            return read_action(self._blobs.read(self.blob(key)))
        except FileNotFoundError:
            return None

    def put(self, key: str, action: Action) -> None:
        found = asdict(action)
        self._blobs.write(self.blob(key), canonical_json({"action": found, "digest": digest_json(found)}))

    def delete(self, key: str) -> None:
        self._blobs.delete(self.blob(key))


def action_key(blob: str) -> str | None:
    """The key of the action that a blob's name stands for, or None where it stands for none."""
    return found[2] if (found := _BLOB.fullmatch(blob)) else None


def read_action(data: bytes) -> Action | None:
    """The action in a blob's bytes, or None where they are damaged."""
    try:
        found = json.loads(data)
        return Action(**found["action"]) if digest_json(found["action"]) == found["digest"] else None
    except (ValueError, TypeError, KeyError):
        return None
