"""Model inputs of a batch, combined from those of its single images.

Image processors normalize after they resize, and a resized image has bytes: each value of an input is one of 256 for
its channel. Inputs are kept as these bytes, which take a quarter of the memory, and looking values up is faster than
normalizing. Sequences of packed rows with images have position ids with three dimensions (M-RoPE).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.resources.visible import first_line


def mrope_positions(
    ids: npt.ArrayLike, lengths: npt.ArrayLike, image_grid_thw: npt.ArrayLike, merge_size: int, image_token_id: int
) -> npt.NDArray[np.int64]:
    """Compute the position ids of one sequence of packed rows, as Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V take them.

    Positions start at 0 in each row. A text token adds 1 to all three dimensions. An image spans its grid from the
    position where it starts, and the text after it goes on after the larger of the grid's height and width.

    Args:
        ids: token ids, [tokens].
        lengths: number of tokens of each packed row, [rows]; tokens after them are a row of padding.
        image_grid_thw: time, height and width of each image in patches, [images, 3], in the order of the images.
        merge_size: patches per token along height and width.
        image_token_id: id of the tokens that an image is expanded to.

    Returns:
        int64 [3, tokens]: time, height and width.

    Raises:
        ValueError: the number of image tokens is not what the grids need.

    Source: `Qwen2VLModel.get_rope_index` of transformers.
    """
    tokens = np.asarray(ids)
    grids = np.asarray(image_grid_thw, np.int64).reshape(-1, 3) // [1, merge_size, merge_size]
    is_image = tokens == image_token_id
    counts = grids.prod(axis=1)
    places = np.flatnonzero(is_image)
    if counts.sum() != len(places):
        raise ValueError(f"{len(places)} image tokens, but the grids of {len(grids)} images need {counts.sum()}")
    first = np.cumsum(counts) - counts  # the first token of each image among all image tokens

    steps = np.ones(len(tokens), np.int64)  # by how much the position of the next token is larger
    steps[is_image] = 0
    shown = counts > 0
    # after its last token, text goes on behind the longer side of an image
    steps[places[(first + counts - 1)[shown]]] = np.maximum(grids[:, 1], grids[:, 2])[shown]
    # the position of each token, if all rows were one
    base = np.cumsum(steps) - steps
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    starts = starts[starts < len(tokens)]
    # and restarted at each row
    base -= np.repeat(base[starts], np.diff(starts, append=len(tokens)))

    positions = np.tile(base, (3, 1))
    # number of each image token in its image, which is laid out row by row
    inside = np.arange(len(places)) - np.repeat(first, counts)
    height, width = np.repeat(grids[:, 1], counts), np.repeat(grids[:, 2], counts)
    positions[0, places] += inside // (height * width)
    positions[1, places] += inside // width % height
    positions[2, places] += inside % width
    return positions


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
    for tables in (values, values[:1]) if same else (values,):
        encoded = b64encode(tables.astype("<f4").tobytes()).decode()
        for axis in range(min(expected.ndim for _, expected in pairs)):
            for repeats in (2, 1):
                levels = Levels(axis, repeats, encoded)
                if all(_holds(levels, *pair) for pair in pairs):
                    return levels
    return None


def _holds(levels: Levels, raw: Array, expected: Array) -> bool:
    packed = levels.pack(raw)
    return packed is not None and expected.tobytes() == levels.expand(packed).tobytes()


Rows = Sequence[Sequence[Array]]
"""One input of each image of each row."""

TEXT_INPUTS = frozenset(
    ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels", "text_replacement_offsets")
)
"""Outputs of processors that belong to the text."""


def image_inputs(output: Any, unused: Iterable[str]) -> dict[str, Array]:
    """Return the outputs of a processor that do not belong to the text, as arrays.

    Raises:
        ValueError: one is a list of arrays of different shapes, or of a type that NumPy does not have.
    """
    result = dict[str, Array]()
    for name in [name for name in output if name not in TEXT_INPUTS.union(unused)]:
        try:
            result[name] = _as_array(output[name])
        except TypeError as error:
            raise ValueError(f"NumPy cannot hold its {name}: {first_line(error)}") from error
        except ValueError as error:
            raise ValueError(f"{name} of several images differ in shape") from error
    return result


def _as_array(value: Any) -> Array:
    if isinstance(value, list | tuple):
        return np.array([_as_array(part) for part in value])
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _stacked(rows: Rows, filled: int = 0) -> Array:
    flat = list(chain(*rows))
    longest = max(sum(image.shape[1] for image in row) for row in rows)
    largest = np.max([image.shape[2:] for image in flat], axis=0).astype(int)
    result = np.full((len(rows), longest, *largest), filled, flat[0].dtype)
    for row, entry in zip(rows, result, strict=True):
        start = 0
        for image in row:
            stop = start + image.shape[1]
            entry[(slice(start, stop), *map(slice, image.shape[2:]))] = image.squeeze(0)
            start = stop
    return result


def _padded(rows: Rows, filled: int) -> Array:
    return _stacked([[image[None] for image in chain(*rows)]], filled)[0]


RULES: dict[str, Callable[[Rows], Array]] = {
    "images": lambda rows: np.concatenate(list(chain(*rows))),
    "padded": lambda rows: _padded(rows, 0),
    "padded with ones": lambda rows: _padded(rows, 1),
    "stacked": _stacked,
    "counts": lambda rows: np.array([len(row) for row in rows if row], next(chain(*rows)).dtype),
}
"""Ways to combine one model input of single images, in the order in which they are tried:

- `images`: joined on the first axis.
- `padded`: the other axes are padded with zeros to the largest image, then joined on the first axis.
- `padded with ones`: the same with ones, as masks are that do not count there.
- `stacked`: one entry per row, padded with zeros: images of a row, [1, ...], are joined on the second axis.
- `counts`: the number of images of each row that has any.
"""


def gives(rule: str, rows: Rows, expected: Array) -> bool:
    """Return whether a rule combines the images of rows to the expected array: the same type, shape and bits."""
    try:
        made = RULES[rule](rows)
    except (ValueError, IndexError, StopIteration):
        return False
    return made.dtype == expected.dtype and made.shape == expected.shape and made.tobytes() == expected.tobytes()


def combine(
    rows: Sequence[Sequence[dict[str, Array]]],
    rules: Mapping[str, str],
    levels: Mapping[str, Levels],
    empty: Empty = np.empty,
    run: Callable[..., Any] = map,
) -> dict[str, Array]:
    """Combine the model inputs of single images to those of a batch.

    Args:
        rows: inputs of the images of each row. In a batch of packed sequences, a row is still one conversation.
        rules: from the certificate, the rule of each input.
        levels: from the certificate, what the bytes of inputs stand for.
        empty: returns the array that a large input is written to, like `np.empty`.
        run: like `map`, to run in threads.

    Returns:
        The inputs, bit for bit as the processor's own call returns them; empty if no row has an image: models then take
        no image inputs at all.
    """
    if not any(rows):
        return {}
    result = dict[str, Array]()
    for name, rule in rules.items():
        arrays = [[image[name] for image in row] for row in rows]
        if (tables := levels.get(name)) is None:
            result[name] = RULES[rule](arrays)
        elif rule == "images":  # the usual one: looked up into the memory of the batch, without a copy in between
            result[name] = tables.joined(list(chain(*arrays)), empty, run)
        else:
            result[name] = RULES[rule]([list(map(tables.expand, row)) for row in arrays])
    return result
