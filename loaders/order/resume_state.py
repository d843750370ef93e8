"""What a loader's state holds, and why one is refused. It is JSON of less than 1 KB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.plan import Place

STATE_VERSION = 1

POSITION = ("epoch", "position", "batch", "skips")
"""What tells where a loader stands; everything else in a state must be as in the loader."""

FREE = ("batch_size", "world_size")
"""What may have changed since, where rows are dealt out one after the other."""


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], free: bool) -> None:
    """Hold a state against the loader that it is given to.

    Args:
        own: the loader's state.
        free: whether `FREE` may differ.

    Raises:
        LoaderStateError: it is no state, or of other data, another order or another plan; names what differs.
    """
    if state.get("version") != STATE_VERSION:
        found = f"version {state['version']}" if "version" in state else "no version"
        raise LoaderStateError(f"this is no loader's state of version {STATE_VERSION}: it has {found}")
    if missing := [name for name in own if name not in state]:
        raise LoaderStateError(f"the state is damaged: it lacks {', '.join(missing)}")
    place = place_in(state)
    if place is None:
        raise LoaderStateError("the state is damaged: epoch, position and batch are no whole numbers from 0 on")
    allowed = (*POSITION, *FREE) if free else (*POSITION, "world_size")
    if not place.epoch:
        allowed += ("rows",)  # a mixture that changes later on may have epochs of another length
    differ = [name for name in own if name not in allowed and state[name] != own[name]]
    if differ:
        told = "; ".join(f"{name} is {_short(state[name])} in the state, {_short(own[name])} here" for name in differ)
        raise LoaderStateError(f"the state is of another run: {told}")


def place_in(state: Mapping[str, Any]) -> Place | None:
    """Where a state says that a loader stood, or None where it does not."""
    epoch, position, batch = (state.get(name) for name in ("epoch", "position", "batch"))
    if not (isinstance(epoch, int) and isinstance(position, int) and isinstance(batch, int)):
        return None
    return Place(epoch, position, batch) if min(epoch, position, batch) >= 0 else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
