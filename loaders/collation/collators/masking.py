"""Token masking for masked language modeling: which tokens the model predicts, and what it sees instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.resources.tables.ragged import Ints


@dataclass(frozen=True)
class TokenMasking:
    """Chooses tokens independently of each other and masks them like BERT (Devlin et al. 2019, appendix A.1).

    Args:
        mask_token_id: the mask token.
        vocab_size: random tokens are drawn from the ids below it.
        special_ids: ids that are never chosen and never drawn.
        probability: probability that a token is chosen.
        mask_replace_prob, random_replace_prob: probability that a chosen token is replaced by the mask token, or by a
            random token; the rest stay unchanged.

    Raises:
        ValueError: probabilities are out of range, or all tokens are special.
    """

    mask_token_id: int
    vocab_size: int
    special_ids: tuple[int, ...]
    probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    _special: Ints = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        chances = (self.probability, self.mask_replace_prob, self.random_replace_prob)
        if not all(0 <= chance <= 1 for chance in chances) or sum(chances[1:]) > 1:
            raise ValueError(
                "mlm_probability, mask_replace_prob and random_replace_prob must be between 0 and 1, and so must the "
                f"sum of the last two, got {chances[0]}, {chances[1]} and {chances[2]}"
            )
        known = sorted(number for number in {*self.special_ids, self.mask_token_id} if 0 <= number < self.vocab_size)
        if len(known) >= self.vocab_size:
            raise ValueError(f"all {self.vocab_size} tokens are special, so none can be drawn")
        object.__setattr__(self, "_special", np.array(known, np.int64))

    def hide(
        self, input_ids: npt.NDArray[Any], candidates: npt.NDArray[np.bool_], generator: np.random.Generator
    ) -> npt.NDArray[np.bool_]:
        """Mask tokens of `input_ids` in place.

        Args:
            input_ids: [rows, length].
            candidates: bool [rows, length], which tokens can be chosen; special ones never are.
            generator: the source of random numbers.

        Returns:
            which tokens were chosen, bool [rows, length].
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
        """Return the tokens with these ranks among all that are not special."""
        return ranks + np.searchsorted(self._special - np.arange(len(self._special)), ranks, side="right")
