"""Random numbers that depend only on a key, in any process."""

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
    """Seed `random`, `numpy.random` and `torch` (CPU) from a key, and restore their states afterwards.

    Args:
        key: JSON values; different keys give different numbers.
    """
    seed = key_of("random", *key)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed >> 96)
        torch.default_generator.manual_seed(seed & (1 << 63) - 1)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
