"""Pixels as bytes: what they stand for is what normalizing gives, and what bytes cannot hold is not made bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.resources.processors.features import Floats, find_levels

MEAN = np.array([0.48, 0.45, 0.41], np.float32)
STD = np.array([0.27, 0.26, 0.25], np.float32)
VALUES: Floats = ((np.arange(256, dtype=np.float32) / np.float32(255))[None] - MEAN[:, None]) / STD[:, None]


def drawn(shape: tuple[int, ...], seed: int = 0) -> Floats:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.float32)


def planes(pixels: Floats) -> Floats:
    """[tiles, 3, height, width]"""
    return pixels


def rows(pixels: Floats) -> Floats:
    """[tiles, 3 * height * width], each channel twice."""
    tiles = len(pixels)
    return np.repeat(pixels.reshape(tiles, 3, 1, -1), 2, axis=2).reshape(tiles, -1)


def normalized(pixels: Floats) -> Floats:
    return ((pixels.astype(np.float32) / np.float32(255)) - MEAN[:, None, None]) / STD[:, None, None]


@given(st.data())
@pytest.mark.parametrize("layout", [planes, rows])
def test_bytes_stand_for_normalized_pixels(layout: Callable[[Floats], Floats], data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 99))
    shape = (data.draw(st.integers(1, 4)), 3, data.draw(st.integers(1, 9)), data.draw(st.integers(2, 9)))
    images = [drawn(shape, seed + number) for number in range(3)]
    levels = find_levels(VALUES, [(layout(image), layout(normalized(image))) for image in images])
    assert levels is not None
    packed = [array for image in images if (array := levels.pack(layout(image))) is not None]
    assert [array.dtype for array in packed] == [np.uint8] * 3
    assert sum(array.nbytes for array in packed) == sum(image.size for image in images)
    expected = np.concatenate([layout(normalized(image)) for image in images])
    np.testing.assert_array_equal(levels.joined(packed), expected, strict=True)
    # An input that is not kept as bytes can stand between others.
    np.testing.assert_array_equal(levels.joined([packed[0], *expected[None, shape[0] :]]), expected, strict=True)


@pytest.mark.parametrize("value", [-1, 256, 0.5, np.nan, np.inf])
def test_other_values_are_not_made_bytes(value: float) -> None:
    pixels = drawn((2, 3, 4, 4))
    levels = find_levels(VALUES, [(pixels, normalized(pixels))])
    assert levels is not None and levels.pack(pixels) is not None
    pixels[0, 2, 1] = value
    assert levels.pack(pixels) is None


def test_parts_that_differ_are_not_kept_once() -> None:
    pixels = drawn((2, 3, 4, 4))
    levels = find_levels(VALUES, [(rows(pixels), rows(normalized(pixels)))])
    assert levels is not None and levels.repeats == 2
    other = rows(pixels)
    other[1, -1] += 1 if other[1, -1] < 255 else -1
    assert levels.pack(other) is None


def test_values_that_depend_on_more_than_the_channel_have_no_levels() -> None:
    pixels = drawn((2, 3, 4, 4))
    padded = normalized(pixels)
    padded[..., -1] = 0
    assert find_levels(VALUES, [(pixels, padded)]) is None
    assert find_levels(VALUES, [(pixels, normalized(pixels)[:, ::-1])]) is None
