"""Trains the JAX example in a separate process: JAX has threads, and a process that has loaded it must not fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from support.processes import DEADLINE


def trained(script: Path, store: Path, folder: Path, steps: int, every: int, breaks: list[int]) -> Any:
    """Return the `input_ids` and `labels` that the model was given, and the final parameters: of an undisturbed run,
    and of each run that stops before a step together with the one that resumes it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # terminated at the end of the block
        return pool.apply_async(_trained, (script, store, folder, steps, every, breaks)).get(DEADLINE)


def _trained(script: Path, store: Path, folder: Path, steps: int, every: int, breaks: list[int]) -> Any:
    import importlib.util

    from tokenloom import open_dataset

    spec = importlib.util.spec_from_file_location("train_with_jax", script)
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    dataset, train_step = open_dataset("data", store=store), example.train_step

    def run(name: str, end: int | None) -> tuple[list[Any], dict[str, np.ndarray]]:
        seen: list[Any] = []
        example.train_step = _noting(train_step, seen, end)
        try:
            found = example.train(example.tiny_model(dataset), dataset, folder / name, steps, save_steps=every)
        except StopAsyncIteration:
            found = {}
        return seen, {key: np.asarray(value) for key, value in found.items()}

    return run("undisturbed", None), [(run(str(end), end), run(str(end), None)) for end in breaks]


def _noting(train_step: Callable[..., Any], seen: list[Any], end: int | None) -> Callable[..., Any]:
    def step(parameters: Any, input_ids: Any, labels: Any) -> Any:
        if len(seen) == end:
            raise StopAsyncIteration
        seen.append((np.asarray(input_ids).tolist(), np.asarray(labels).tolist()))
        return train_step(parameters, input_ids, labels)

    return step
