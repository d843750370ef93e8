"""Random numbers that a step of loading draws, as a function of a key, whichever process draws them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tokenloom.loaders.order.permutation import key_of


@contextmanager
def seeded(*key: Any) -> Iterator[None]:
    """Within it `random`, `numpy.random` and `torch` (on the CPU) draw what `key` says; behind it they go on as before.

    Args:
        key: JSON values; other keys give other numbers.
    """
    drawn = key_of("random", *key)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(drawn)
        np.random.seed(drawn >> 96)
        torch.default_generator.manual_seed(drawn & (1 << 63) - 1)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
