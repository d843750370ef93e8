"""Checks a resume state against the loader that loads it. A state is less than 1 KB of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.batch_plan import Place

STATE_VERSION = 1

POSITION = ("epoch", "position", "batch", "skips")
"""The loader's position; everything else in a state must match the loader."""

FREE = ("batch_size", "world_size")
"""Settings that can differ when batches have a fixed number of rows."""


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], free: bool) -> None:
    """Check a state against the loader that loads it.

    Args:
        own: the loader's own state.
        free: whether the settings in `FREE` can differ.

    Raises:
        LoaderStateError: it is not a state, or its data, order or plan differ; the message names what differs.
    """
    if state.get("version") != STATE_VERSION:
        version = f"version {state['version']}" if "version" in state else "no version"
        raise LoaderStateError(f"not a loader state of version {STATE_VERSION}: it has {version}")
    if missing := [name for name in own if name not in state]:
        raise LoaderStateError(f"the state is damaged: it lacks {', '.join(missing)}")
    place = place_in(state)
    if place is None:
        raise LoaderStateError("the state is damaged: epoch, position and batch must be integers of at least 0")
    allowed = (*POSITION, *FREE) if free else (*POSITION, "world_size")
    if not place.epoch:
        allowed += ("rows",)  # a mixture that changes later can have another epoch length
    differing = [name for name in own if name not in allowed and state[name] != own[name]]
    if differing:
        values = [f"{name} is {_short(state[name])} in the state, {_short(own[name])} here" for name in differing]
        raise LoaderStateError(f"the state is from another run: {'; '.join(values)}")


def place_in(state: Mapping[str, Any]) -> Place | None:
    """Return the place in a state, or None if it is not valid."""
    epoch, position, batch = (state.get(name) for name in ("epoch", "position", "batch"))
    if not (isinstance(epoch, int) and isinstance(position, int) and isinstance(batch, int)):
        return None
    return Place(epoch, position, batch) if min(epoch, position, batch) >= 0 else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
