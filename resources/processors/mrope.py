"""Position ids with three dimensions (M-RoPE) for sequences of packed rows with images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
    steps[places[(first + counts - 1)[shown]]] = np.maximum(grids[:, 1], grids[:, 2])[shown]
    base = np.cumsum(steps) - steps
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    starts = starts[starts < len(tokens)]
    base -= np.repeat(base[starts], np.diff(starts, append=len(tokens)))

    positions = np.tile(base, (3, 1))
    inside = np.arange(len(places)) - np.repeat(first, counts)
    height, width = np.repeat(grids[:, 1], counts), np.repeat(grids[:, 2], counts)
    positions[0, places] += inside // (height * width)
    positions[1, places] += inside // width % height
    positions[2, places] += inside % width
    return positions
