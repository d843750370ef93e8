"""Model inputs of a batch, combined from the model inputs of its single images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = Sequence[Sequence[Array]]
"""One input of each image of each row."""

TEXT_INPUTS = frozenset(
    ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels", "text_replacement_offsets")
)
"""Outputs of processors that belong to the text."""


def as_array(value: Any) -> Array:
    """Return an output of a processor as an array.

    Raises:
        ValueError: it is a list of arrays of different shapes.
    """
    if isinstance(value, list | tuple):
        return np.array([as_array(part) for part in value])
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def image_inputs(output: Any, unused: Sequence[str]) -> dict[str, Array]:
    """Return the outputs of a processor that do not belong to the text, as arrays."""
    return {
        name: as_array(value) for name, value in output.items() if name not in TEXT_INPUTS and name not in set(unused)
    }


def _images(rows: Rows) -> Array:
    return np.concatenate([image for row in rows for image in row])


def _padded(rows: Rows) -> Array:
    """Pad all axes but the first with zeros to the largest image, and join the images on the first axis."""
    flat = [image for row in rows for image in row]
    shape = np.max([image.shape[1:] for image in flat], axis=0)
    result = np.zeros((sum(map(len, flat)), *shape), flat[0].dtype)
    start = 0
    for image in flat:
        result[(slice(start, start + len(image)), *map(slice, image.shape[1:]))] = image
        start += len(image)
    return result


def _stacked(rows: Rows) -> Array:
    """Join the images of a row on their second axis, pad rows with zeros to the longest, and stack the rows."""
    flat = [image for row in rows for image in row]
    if any(len(image) != 1 for image in flat):
        raise ValueError("the first axis of an image is not 1")
    longest = max(sum(image.shape[1] for image in row) for row in rows)
    shape = np.max([image.shape[2:] for image in flat], axis=0).astype(int)
    result = np.zeros((len(rows), longest, *shape), flat[0].dtype)
    for number, row in enumerate(rows):
        start = 0
        for image in row:
            stop = start + image.shape[1]
            result[(number, slice(start, stop), *map(slice, image.shape[2:]))] = image[0]
            start = stop
    return result


def _counts(rows: Rows) -> Array:
    """Count the images of each row that has any."""
    kind = next(image.dtype for row in rows for image in row)
    return np.array([len(row) for row in rows if row], kind)


RULES: dict[str, Callable[[Rows], Array]] = {
    "images": _images,
    "padded": _padded,
    "stacked": _stacked,
    "counts": _counts,
}
"""Ways to combine one model input of single images, in the order in which they are tried:

- `images`: joined on the first axis.
- `padded`: the other axes are padded with zeros to the largest image, then joined on the first axis.
- `stacked`: one entry per row, padded with zeros: images of a row are joined on the second axis.
- `counts`: the number of images of each row that has any.
"""


def rules_that_hold(rows: list[list[dict[str, Array]]], expected: dict[str, Array], names: Sequence[str]) -> list[str]:
    """Return which of the named rules give a batch's `expected` input; all are for one input, the only key."""
    (key,) = expected
    parts = [[image[key] for image in row] for row in rows]
    holding = []
    for name in names:
        try:
            made = RULES[name](parts)
        except (ValueError, IndexError):
            continue
        if same(made, expected[key]):
            holding.append(name)
    return holding


def same(made: Array, expected: Array) -> bool:
    """Return whether two arrays have the same type, shape and bits."""
    return made.dtype == expected.dtype and made.shape == expected.shape and made.tobytes() == expected.tobytes()


def combine(rows: list[list[dict[str, Array]]], rules: dict[str, str]) -> dict[str, Array]:
    """Combine the model inputs of single images by the rule of each input; empty if the batch has no image."""
    if not any(rows):
        return {}
    return {name: RULES[rule]([[image[name] for image in row] for row in rows]) for name, rule in rules.items()}
