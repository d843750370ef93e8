"""The cache key: everything that a stage's result for one input chunk depends on.

A stage is computed again for a chunk only if the key changes. No path, time, host or number of workers is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from tokenloom.resources.digest import canonical_json, digest_bytes


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
