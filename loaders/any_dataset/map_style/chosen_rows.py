"""Some rows of a map-style dataset, as a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset

from tokenloom.loaders.any_dataset.map_style.fetch import fetch
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints


class ChosenRows(Subset[Any]):
    """A torch `Subset` whose `indices`, int64 [rows], are an array, and whose dataset is asked with plain ints.

    Attributes:
        digest: of the choice, and of the dataset where that has one.
    """

    def __init__(self, dataset: Any, indices: Ints):
        self.dataset, self.indices = dataset, indices  # pyright: ignore[reportAttributeAccessIssue]
        of_dataset = getattr(dataset, "digest", "")
        self.digest = digest_json([of_dataset if isinstance(of_dataset, str) else "", digest_bytes(indices.tobytes())])

    def __getitem__(self, row: Any) -> Any:
        return self.dataset[int(self.indices[row])]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return fetch(self.dataset, np.asarray(self.indices)[rows].tolist())


def split_rows(rows: int, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows for training and rows for validation, int64, each ascending: the latter are `share` of all, at least one.

    Raises:
        ValueError: there are fewer than two rows.
    """
    if rows < 2:
        raise ValueError(f"{rows} rows cannot be split into rows for training and rows for validation")
    count = min(max(int(rows * share), 1), rows - 1)
    order = Permutation(rows, key_of("validation", seed, rows))(np.arange(rows))
    return np.sort(order[count:]), np.sort(order[:count])
