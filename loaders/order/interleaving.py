"""The row order of a mixture: which source, and which of its rows, is at a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.blockwise import BlockwiseOrder, groups
from tokenloom.loaders.order.mixture import Mixture
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints


class MixtureOrder(BlockwiseOrder):
    """The rows of a mixture's sources, interleaved: each source by its own `RowOrder`.

    Args:
        mixture: chooses the source at each position.
        orders: one order per source, with as many rows as the source.

    Raises:
        ValueError: orders and sources do not match.
    """

    def __init__(self, mixture: Mixture, orders: Sequence[RowOrder]):
        sizes = [source.rows for source in mixture.sources]
        if [len(order) for order in orders] != sizes:
            raise ValueError(f"orders have {[len(order) for order in orders]} rows, but the sources have {sizes}")
        super().__init__()
        self.mixture, self.orders, self.end = mixture, tuple(orders), mixture.end

    def take(self, positions: npt.ArrayLike) -> Ints:
        """Return the source's index in the mixture and its row for each position: int64 [m, 2] for [m]."""
        sources, places = self.mixture.places(positions)
        rows = np.stack([sources, places], axis=1)
        for source, members in groups(sources):
            rows[members, 1] = self.orders[source].take(places[members])
        return rows
