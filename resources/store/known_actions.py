"""Actions that are known without reading their records: those that a manifest states, and those found since.

A manifest can have millions of chunks: they stay columns, and an action is built when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from tokenloom.resources.store.actions import Action
from tokenloom.resources.store.manifest_chunks import DIGEST_BYTES, ManifestChunk, ManifestChunks
from tokenloom.resources.store.objects import IMAGES
from tokenloom.resources.tables.ragged import Ints, one_array, text_parts

_BLOCK = 1 << 10
"""Chunks of a manifest that are built at once: keys are asked for in about the order of the manifest."""


class KnownActions:
    """Known actions, by key.

    Args:
        chunks: the chunks of a manifest, all of their table.
        is_stored: whether the store has what an action under a key names; not asked again once it has.
    """

    def __init__(self, chunks: ManifestChunks | None = None, is_stored: Callable[[str, Action], bool] | None = None):
        self._chunks = chunks if chunks is not None else ManifestChunks.of(())
        self._is_stored = is_stored or (lambda key, action: True)
        self._found: dict[str, Action] = {}
        self._stored = bytearray(len(self._chunks))
        self._built: tuple[int, list[ManifestChunk]] = -1, []

    def __bool__(self) -> bool:
        return bool(self._found) or len(self._chunks) > 0

    def get(self, key: str) -> Action | None:
        """Return the action under a key, or None if it is not known, or not all that it names is stored.

        One whose output refers to images is not known: an image can be missing.
        """
        if key in self._found:
            return self._found[key]
        if (row := self._row(bytes.fromhex(key))) < 0:
            return None
        action = self._chunk(row).action
        if action is not None and not self._stored[row]:
            if action.counters.get(IMAGES) or not self._is_stored(key, action):
                return None
            self._stored[row] = True
        return action

    def add(self, key: str, action: Action) -> None:
        """Add an action that was found."""
        self._found[key] = action

    @cached_property
    def _keys(self) -> tuple[np.ndarray, np.ndarray, Ints]:
        """Return all keys, uint8 [chunks, 32]; their first 8 bytes as numbers, ascending; and the chunk of each."""
        _, content = text_parts(one_array(self._chunks.table["key"]))
        starts = self._chunks.starts("key")
        order = np.argsort(starts, kind="stable")
        return content.reshape(-1, DIGEST_BYTES), starts[order], order

    def _row(self, key: bytes) -> int:
        keys, starts, order = self._keys
        start = np.frombuffer(key, ">u8", 1)[0]
        at = int(np.searchsorted(starts, np.uint64(start)))
        while at < len(starts) and starts[at] == start:
            if keys[order[at]].tobytes() == key:
                return int(order[at])
            at += 1
        return -1

    def _chunk(self, row: int) -> ManifestChunk:
        block, chunks = self._built
        if row // _BLOCK != block:
            block = row // _BLOCK
            chunks = [*self._chunks[block * _BLOCK : (block + 1) * _BLOCK]]
            self._built = block, chunks
        return chunks[row % _BLOCK]
