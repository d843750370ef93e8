"""Model inputs of a batch, combined from the model inputs of its single images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.resources.exceptions import first_line
from tokenloom.resources.processors.levels import Array, Empty, Levels

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
        if (known := levels.get(name)) is None:
            result[name] = RULES[rule](arrays)
        elif rule == "images":
            result[name] = known.joined(list(chain(*arrays)), empty, run)
        else:
            result[name] = RULES[rule]([list(map(known.expand, row)) for row in arrays])
    return result
