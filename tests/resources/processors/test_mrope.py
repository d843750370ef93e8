"""Position ids with three dimensions equal those of the models of transformers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.glm4v.modeling_glm4v import Glm4vModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from tokenloom.resources.processors.features import mrope_positions

MODELS = (Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel, Glm4vModel)
IMAGE = 7


def made_row(drawn: random.Random, merge: int) -> tuple[list[int], list[list[int]]]:
    """Token ids and grids. Images have a token between them, as the models need."""
    ids, grids = [1] * drawn.randint(0, 5), []
    for _ in range(drawn.randint(0, 4)):
        grid = [1, drawn.randint(1, 6) * merge, drawn.randint(1, 6) * merge]
        ids += [IMAGE] * (int(np.prod(grid)) // merge**2) + [2] * drawn.randint(1, 5)
        grids.append(grid)
    if drawn.random() < 0.5 and grids and len(ids) > 5:
        while ids[-1] != IMAGE:
            ids.pop()
    return ids or [1], grids


def expected(model: Any, ids: list[int], grids: list[list[int]], merge: int) -> np.ndarray:
    class Without(model):
        def __init__(self) -> None: ...

        config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=merge, tokens_per_second=4))

    tokens = torch.tensor([ids])
    types = (tokens == IMAGE).int()
    positions, _ = model.get_rope_index(Without(), tokens, types, torch.tensor(grids).reshape(-1, 3))
    return positions[:, 0].numpy()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("merge", [1, 2, 3])
def test_rows_and_packed_rows_equal_the_model(model: Any, merge: int) -> None:
    drawn = random.Random(merge)
    rows = [made_row(drawn, merge) for _ in range(60)]
    wanted = [expected(model, ids, grids, merge) for ids, grids in rows]
    for (ids, grids), positions in zip(rows, wanted, strict=True):
        found = mrope_positions(ids, [len(ids)], grids, merge, IMAGE)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, positions)
    for start in range(0, len(rows), 7):
        packed = rows[start : start + 7]
        ids = [token for row, _ in packed for token in row]
        grids = [grid for _, row in packed for grid in row]
        lengths = [len(row) for row, _ in packed]
        joined = np.concatenate(wanted[start : start + 7], axis=1)
        np.testing.assert_array_equal(mrope_positions(ids, lengths, grids, merge, IMAGE), joined)
        padding = mrope_positions([*ids, 0, 0, 0], lengths, grids, merge, IMAGE)
        np.testing.assert_array_equal(padding, np.concatenate([joined, np.tile(np.arange(3), (3, 1))], axis=1))


def test_images_without_a_token_between_them() -> None:
    found = mrope_positions([1, IMAGE, IMAGE, IMAGE, IMAGE, 1], [6], [[1, 2, 2], [1, 2, 4], [1, 2, 2]], 2, IMAGE)
    assert found.tolist() == [[0, 1, 2, 2, 4, 5], [0, 1, 2, 2, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_text_alone() -> None:
    assert mrope_positions([1, 1, 1], [2, 1], [], 2, IMAGE).tolist() == [[0, 1, 0]] * 3
    assert mrope_positions([], [], [], 2, IMAGE).shape == (3, 0)


def test_a_wrong_number_of_image_tokens() -> None:
    with pytest.raises(ValueError, match="3 image tokens, but the grids of 1 images need 4"):
        mrope_positions([IMAGE] * 3, [3], [[1, 4, 4]], 2, IMAGE)
