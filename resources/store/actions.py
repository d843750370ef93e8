"""Actions: what a stage made of one input chunk, filed under the key of everything that the result depends on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_json
from tokenloom.resources.store.publication import publish


def action_key(
    stage: str, version: int, libraries: dict[str, str], settings: dict[str, Any], sides: dict[str, str], chunk: str
) -> str:
    """The key of one action: BLAKE3 over canonical JSON.

    Args:
        stage, version: the stage's name and the number bumped when its code changes its output.
        libraries: versions of the libraries whose behaviour the output depends on.
        settings: exactly the settings that the stage reads.
        sides: digests of side inputs, by name.
        chunk: digest of the input chunk.
    """
    return digest_json(
        {
            "stage": stage,
            "version": version,
            "libraries": libraries,
            "settings": settings,
            "sides": sides,
            "chunk": chunk,
        }
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one chunk.

    `output` and `rejects` are object digests (`rejects` is None where no row was rejected), `bytes` the output's size,
    and rows_in = rows_out + rejected + filtered; `tokens` counts those of the output.
    """

    output: str
    bytes: int
    rejects: str | None
    rows_in: int
    rows_out: int
    rejected: int
    filtered: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Action(Outcome):
    """The outcome of one action, with the stage's further counts, and the key of the certificate that it relies on."""

    counters: dict[str, int] = field(default_factory=dict)
    engine: str = ""

    def outcome(self) -> dict[str, Any]:
        """The fields of an `Outcome`."""
        return {field.name: getattr(self, field.name) for field in fields(Outcome)}


class ActionStore:
    """Reads and writes the actions below one folder, one small JSON file each."""

    def __init__(self, root: Path, scratch: Path):
        self._root, self._scratch = root, scratch

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / f"{key}.json"

    def get(self, key: str) -> Action | None:
        """The action, or None where there is none or it cannot be read (it is then computed again)."""
        try:
            action = Action(**json.loads(self._path(key).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        return action if isinstance(action.output, str) and isinstance(action.rejects, str | None) else None

    def put(self, key: str, action: Action) -> None:
        publish(self._path(key), canonical_json(asdict(action)), self._scratch)
