"""The noise of masked language modeling: which tokens a model has to guess, and what it sees in their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints


@dataclass(frozen=True)
class TokenMasking:
    """Chooses tokens independently of each other and hides them, as BERT does (Devlin et al. 2019, appendix A.1).

    Args:
        mask_token_id: hides a token.
        vocab_size: random tokens are drawn below it.
        special_ids: never chosen, never drawn.
        probability: of a token to be chosen.
        mask_replace_prob, random_replace_prob: of a chosen one to become the mask token, or a random one; the rest
            stay as they are.

    Raises:
        ValueError: these are no probabilities, or no token but special ones is left to draw.
    """

    mask_token_id: int
    vocab_size: int
    special_ids: tuple[int, ...]
    probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    _special: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = (self.probability, self.mask_replace_prob, self.random_replace_prob)
        if not all(0 <= share <= 1 for share in shares) or sum(shares[1:]) > 1:
            raise ValueError(
                f"mlm_probability {shares[0]}, mask_replace_prob {shares[1]} and random_replace_prob {shares[2]} must "
                "lie between 0 and 1, and the last two together too"
            )
        known = sorted(number for number in {*self.special_ids, self.mask_token_id} if 0 <= number < self.vocab_size)
        if len(known) >= self.vocab_size:
            raise ValueError(f"all of {self.vocab_size} tokens are special: there is none to draw")
        object.__setattr__(self, "_special", np.array(known, np.int64))

    def hide(
        self, input_ids: npt.NDArray[Any], candidates: npt.NDArray[np.bool_], generator: np.random.Generator
    ) -> npt.NDArray[np.bool_]:
        """Change `input_ids` in place.

        Args:
            input_ids: [rows, length].
            candidates: bool [rows, length], which tokens may be chosen; special ones never are.

        Returns:
            bool [rows, length]: which were chosen.
        """
        chosen = generator.random(input_ids.shape) < self.probability
        chosen &= candidates & ~np.isin(input_ids, self._special)
        places = np.flatnonzero(chosen)
        fate = generator.random(len(places))
        ids = input_ids.reshape(-1)
        ids[places[fate < self.mask_replace_prob]] = self.mask_token_id
        randomized = places[
            (fate >= self.mask_replace_prob) & (fate < self.mask_replace_prob + self.random_replace_prob)
        ]
        ids[randomized] = self._ordinary(generator.integers(self.vocab_size - len(self._special), size=len(randomized)))
        return chosen

    def _ordinary(self, ranks: Ints) -> Ints:
        """The tokens of these ranks among all that are not special."""
        return ranks + np.searchsorted(self._special - np.arange(len(self._special)), ranks, side="right")
