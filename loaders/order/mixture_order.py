"""The order of a mixture: which source and which of its rows stand at a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenloom.loaders.order.blockwise import BlockwiseOrder, groups
from tokenloom.loaders.order.mixture import Mixture
from tokenloom.loaders.order.row_order import RowOrder
from tokenloom.resources.tables.ragged import Ints


class MixtureOrder(BlockwiseOrder):
    """Int64 [m, 2] for positions [m]: the source's number in the mixture, and its row.

    Args:
        mixture: whose turn it is at a position.
        orders: each source's, of as many rows as the mixture says.

    Raises:
        ValueError: orders and sources do not match.
    """

    def __init__(self, mixture: Mixture, orders: Sequence[RowOrder]):
        sizes = [source.rows for source in mixture.sources]
        if [len(order) for order in orders] != sizes:
            raise ValueError(f"orders of {[len(order) for order in orders]} rows for sources of {sizes}")
        super().__init__()
        self.mixture, self.orders, self.end = mixture, tuple(orders), mixture.end

    def take(self, positions: npt.ArrayLike) -> Ints:
        """Int64 [m, 2] for positions int64 [m]."""
        sources, places = self.mixture.places(positions)
        found = np.stack([sources, places], axis=1)
        for source, members in groups(sources):
            found[members, 1] = self.orders[source].take(places[members])
        return found
