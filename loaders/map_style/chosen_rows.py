"""A subset of a map-style dataset's rows, and the split into training and validation rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset

from tokenloom.loaders.map_style.fetch import fetch
from tokenloom.loaders.order.permutation import Permutation, key_of
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.tables.ragged import Ints


class ChosenRows(Subset[Any]):
    """A torch `Subset` whose `indices` are an int64 array [rows]; the dataset is indexed with plain ints.

    Attributes:
        digest: digest of the indices, and of the dataset if it has one.
    """

    def __init__(self, dataset: Any, indices: Ints):
        self.dataset, self.indices = dataset, indices  # pyright: ignore[reportAttributeAccessIssue]
        of_dataset = getattr(dataset, "digest", "")
        self.digest = digest_json([of_dataset if isinstance(of_dataset, str) else "", digest_bytes(indices.tobytes())])

    def __getitem__(self, row: Any) -> Any:
        return self.dataset[int(self.indices[row])]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return fetch(self.dataset, np.asarray(self.indices)[rows].tolist())


def split_rows(rows: int, fraction: float, seed: int) -> tuple[Ints, Ints]:
    """Return the training rows and the validation rows, int64, each in ascending order.

    Args:
        rows: number of rows, at least 2.
        fraction: the fraction of rows for validation; rounded down, but at least one row.
        seed: determines which rows are chosen.

    Raises:
        ValueError: there are fewer than two rows.
    """
    if rows < 2:
        raise ValueError(f"a split into training and validation rows needs at least 2 rows, got {rows}")
    count = min(max(int(rows * fraction), 1), rows - 1)
    order = Permutation(rows, key_of("validation", seed, rows))(np.arange(rows))
    return np.sort(order[count:]), np.sort(order[:count])
