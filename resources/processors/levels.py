"""Pixels of model inputs as bytes. Image processors normalize after they resize, and a resized image has bytes: each
value of an input is one of 256 for its channel. Bytes take a quarter of the memory, and looking values up is faster
than normalizing.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Empty = Callable[[tuple[int, ...], type[np.float32]], Floats]

_BLOCK = 1 << 16
"""Values that are looked up at a time, so that their indices stay in the processor's cache."""


@dataclass(frozen=True)
class Levels:
    """How a model input is kept as bytes.

    Args:
        axis: axis of the input that has the channels one after the other, each in an equal part of its length.
        repeats: times that each channel's part repeats the same values, as models do that take an image for a video of
            two frames. Bytes have them once.
        encoded: base64 of `values`.
    """

    axis: int
    repeats: int
    encoded: str

    @cached_property
    def values(self) -> Floats:
        """float32 [channels, 256], the value of each byte; one channel if all have the same values."""
        return np.frombuffer(b64decode(self.encoded), "<f4").reshape(-1, 256).astype(np.float32)

    def pack(self, array: Array) -> Bytes | None:
        """Return the bytes of an input whose pixels are not normalized, or None if bytes do not hold all of it."""
        if array.shape[self.axis] % (len(self.values) * self.repeats):
            return None
        with np.errstate(invalid="ignore"):
            parts = self._parts(array, self.repeats)
            packed = parts[:, :, :1].astype(np.uint8)
        return packed.reshape(self._resized(array.shape, 1, self.repeats)) if (packed == parts).all() else None

    def expand(self, array: Array, out: Floats | None = None) -> Floats:
        """Return the normalized input.

        Args:
            array: from `pack`. Other arrays than uint8 are returned as they are.
            out: where it is written, C-contiguous.
        """
        if out is None and array.dtype != np.uint8:
            return array
        out = np.empty(self.shape(array), np.float32) if out is None else out
        if array.dtype != np.uint8:
            out[...] = array
            return out
        parts, tables, target = self._parts(array, 1), self.values, self._parts(out, self.repeats)
        if parts.shape[-1] % 2 == 0:  # neighbours have one channel: looking two up at once takes half the time
            parts, tables, target = parts.view(np.uint16), self._pairs, target.view(np.uint64)
        step = max(1, _BLOCK // parts.shape[-1])
        for start in range(0, len(parts), step):
            for channel, table in enumerate(tables):
                block = slice(start, start + step), channel
                target[block] = table.take(parts[block].astype(np.intp), mode="clip")
        return out

    def joined(self, arrays: Sequence[Array], empty: Empty = np.empty, run: Callable[..., Any] = map) -> Floats:
        """Return normalized inputs, concatenated on the first axis.

        Args:
            arrays: from `pack`.
            empty: returns the array to fill, like `np.empty`.
            run: like `map`, to run in threads.
        """
        shapes = [self.shape(array) for array in arrays]
        stops = np.cumsum([shape[0] for shape in shapes])
        result = empty((int(stops[-1]), *shapes[0][1:]), np.float32)
        list(run(self.expand, arrays, np.split(result, stops[:-1])))
        return result

    def shape(self, array: Array) -> tuple[int, ...]:
        """Return the shape of the normalized input."""
        return self._resized(array.shape, self.repeats, 1) if array.dtype == np.uint8 else array.shape

    def _resized(self, shape: tuple[int, ...], times: int, parts: int) -> tuple[int, ...]:
        return *shape[: self.axis], shape[self.axis] * times // parts, *shape[self.axis :][1:]

    def _parts(self, array: Array, repeats: int) -> Array:
        """Return a view [places, channels, repeats, values]."""
        size = int(np.prod(array.shape[self.axis :], dtype=np.int64))
        return array.reshape(-1, len(self.values), repeats, size // len(self.values) // repeats)

    @cached_property
    def _pairs(self) -> npt.NDArray[np.uint64]:
        """[channels, 65536], two float32 values each, for two bytes as they are in memory."""
        two = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
        return np.ascontiguousarray(self.values[:, two]).view(np.uint64)[..., 0]


def find_levels(values: Floats, pairs: Sequence[tuple[Array, Array]]) -> Levels | None:
    """Return how a model input is kept as bytes, or None if it cannot be.

    Args:
        values: float32 [channels, 256], what each byte of a pixel is normalized to.
        pairs: the input without and with normalized pixels, for some images.
    """
    same = (values == values[0]).all()
    for known in (values, values[:1]) if same else (values,):
        encoded = b64encode(known.astype("<f4").tobytes()).decode()
        for axis in range(min(expected.ndim for _, expected in pairs)):
            for repeats in (2, 1):
                found = Levels(axis, repeats, encoded)
                if all(_holds(found, *pair) for pair in pairs):
                    return found
    return None


def _holds(levels: Levels, raw: Array, expected: Array) -> bool:
    packed = levels.pack(raw)
    return packed is not None and expected.tobytes() == levels.expand(packed).tobytes()
