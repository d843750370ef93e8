"""Actions: what a stage made of one input chunk, filed under the key of everything that the result depends on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.blobs import Blobs

ACTIONS = "actions"


@dataclass(frozen=True)
class KeyParts:
    """What the actions of one stage of one dataset have in common.

    Args:
        stage, version: the stage's name and the number bumped when its code changes its output.
        libraries: versions of the libraries whose behaviour the output depends on.
        settings: exactly the settings that the stage reads, as JSON.
        sides: digests of side inputs, by name.
    """

    stage: str
    version: int
    libraries: dict[str, str]
    settings: dict[str, Any]
    sides: dict[str, str]

    def key(self, chunk: str) -> str:
        """The key of the action on an input chunk, named by its digest: BLAKE3 over canonical JSON."""
        return digest_json({**asdict(self), "chunk": chunk})


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
            action = Action(**json.loads(self._blobs.read(self.blob(key))))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return action if isinstance(action.output, str) and isinstance(action.rejects, str | None) else None

    def put(self, key: str, action: Action) -> None:
        self._blobs.write(self.blob(key), canonical_json(asdict(action)))
