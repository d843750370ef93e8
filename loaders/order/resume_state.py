"""Reads a resume state for the loader that loads it: every field is checked before any of it is used.

A state is less than 1 KB of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tokenloom.errors import LoaderStateError
from tokenloom.loaders.order.batch_plan import LARGEST_COUNT, POSITIONS, Place, Skip, epoch_number, integer, short

STATE_VERSION, BLOCK_STATE_VERSION, BUDGET_STATE_VERSION = 1, 2, 3
"""Versions of states. Those of block-shuffled runs have their own, because version 1 had another order of blocks. So
have those of token budgets: in runs of versions 1 and 2, all ranks finish a window before the next begins. It is not a
field of its own, because torch.distributed.checkpoint asks an older checkpoint for each field."""

POSITION = ("epoch", "position", "batch", "skips")
"""The loader's position; everything else in a state must match the loader."""

VERSIONS = "versions"
"""The dataset versions that a loader reads, as `name@version`. They can differ, because `data` is compared. Older
states have none. A list, because torch.distributed.checkpoint asks an older checkpoint for each key of a mapping."""


def version_for(shuffle: Any) -> int:
    """Return the version of states of an order."""
    return BLOCK_STATE_VERSION if shuffle == "block" else STATE_VERSION


def fields_of(state: Any, names: Collection[str], version: int) -> Mapping[str, Any]:
    """Return a state that is a mapping of this version with all of these fields, all of them single values.

    `skips` are not checked.

    Raises:
        LoaderStateError: it is not.
    """
    if not isinstance(state, Mapping):
        raise LoaderStateError(f"not a loader state: it must be a mapping, got {short(state)}")
    found = state.get("version")
    if found == STATE_VERSION and version == BLOCK_STATE_VERSION:
        raise LoaderStateError(
            "the state is from a version of tokenloom whose block shuffle had another order: finish its epoch with "
            "that version, or start the next epoch here with `set_epoch`"
        )
    # by type: True equals 1
    if type(found) is not int or found != version:
        has = f"version {short(found)}" if "version" in state else "no version"
        raise LoaderStateError(f"not a loader state of version {version}: it has {has}")
    if missing := [name for name in names if name not in state and name != VERSIONS]:
        raise LoaderStateError(f"the state is damaged: it lacks {', '.join(missing)}")
    for name in names:
        if name not in ("skips", VERSIONS) and not isinstance(state[name], str | int | float | None):
            raise LoaderStateError(f"the state is damaged: {name} must be a single value, got {short(state[name])}")
    named = state.get(VERSIONS, [])
    if not isinstance(named, list | tuple) or not all(isinstance(text, str) for text in named):
        raise LoaderStateError(f"the state is damaged: {VERSIONS} must be a list of texts, got {short(named)}")
    return state


def count_in(state: Mapping[str, Any], name: str, least: int = 0, most: int = POSITIONS - 1) -> int:
    """Return an integer field of a state.

    Raises:
        LoaderStateError: it is not an integer in this range.
    """
    return _checked(lambda: integer(name, state[name], least, most))


def epoch_in(state: Mapping[str, Any], rows: int) -> int:
    """Return the epoch of a state.

    Raises:
        LoaderStateError: it is not an epoch of so many rows.
    """
    return _checked(lambda: epoch_number(state["epoch"], rows))


def check_same(state: Mapping[str, Any], own: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
    """Check that a state has the loader's own values.

    Raises:
        LoaderStateError: values differ; the message names them.
    """
    differing = [
        name for name in own if name not in ignored and not (_is_same(state[name], own[name]) or name == "version")
    ]
    if differing:
        values = [f"{name} is {_shown(state[name])} in the state, {_shown(own[name])} here" for name in differing]
        raise LoaderStateError(f"the state is from another run: {'; '.join(values)}{_versions(state, own, differing)}")


def read_state(
    state: Any,
    own: Callable[[Place], Mapping[str, Any]],
    rows: int,
    is_place: Callable[[Place], bool],
    free: Collection[str] = (),
) -> tuple[Place, tuple[Skip, ...]]:
    """Return the place and the skips of a state, if it fits the loader.

    Args:
        own: returns the loader's own state at a place.
        rows: rows per epoch.
        is_place: whether the loader's plan has such a place.
        free: counts that can differ from the loader's; `rows`, the rows per epoch, only in the first epoch.

    Raises:
        LoaderStateError: it is not a state, its data, order or plan differ, or its place does not exist; the message
            names the field.
    """
    shuffle, found = (state.get(name) if isinstance(state, Mapping) else None for name in ("shuffle", "version"))
    names, version = own(Place()), version_for(shuffle)
    if "token_budget" in names and found not in (STATE_VERSION, BLOCK_STATE_VERSION):
        version = BUDGET_STATE_VERSION
    fields_of(state, names, version)
    place = Place(*(count_in(state, name) for name in ("epoch", "position", "batch")))
    # the loader's state at the same place, so that what depends on the place can be compared
    expected = own(place)
    # with other rows per epoch, positions of later epochs would not be the same rows
    free = {name for name in free if name != "rows" or not place.epoch}
    # they can differ, and are used: a crafted count must not overflow later
    for name in {*free, "world_size"} & expected.keys():
        count_in(state, name, 1, POSITIONS - 1 if name == "rows" else LARGEST_COUNT)
    check_same(state, expected, (*POSITION, *free, "world_size", VERSIONS))
    epoch_in(state, rows)
    if place.position > rows or not is_place(place):
        raise LoaderStateError(
            f"the state is damaged: an epoch of {rows} rows has no position {place.position} with batch {place.batch}"
        )
    return place, _skips(state["skips"]) if "skips" in expected else ()


def _skips(value: Any) -> tuple[Skip, ...]:
    """Return the skips of a state, ranges of positions in order; a LoaderStateError if they are not."""
    skips = list[Skip]()
    for pair in value if isinstance(value, list | tuple) else [None]:
        begin, end = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if not (
            (type(begin) is int and type(end) is int and 0 <= begin < end <= POSITIONS)
            # in order, as plans sort them: equal plans have equal states
            and (not skips or skips[-1] <= (begin, end))
        ):
            raise LoaderStateError(
                "the state is damaged: skips must be pairs [begin, end] of integers with 0 <= begin < end, in order"
            )
        skips.append((begin, end))
    return tuple(skips)


def _is_same(value: Any, own: Any) -> bool:
    return type(value) is type(own) and value == own


def _shown(value: Any) -> str:
    return short(value).strip("'") or "''"


def _checked(read: Callable[[], int]) -> int:
    try:
        return read()
    except ValueError as error:
        raise LoaderStateError(f"the state is damaged: {error}") from None


def versions_in(state: Any) -> dict[str, str]:
    """Return the start of each dataset's version, by name, as a state names them; what is damaged is omitted."""
    named = state.get(VERSIONS) if isinstance(state, Mapping) else None
    texts = [text for text in named if isinstance(text, str)] if isinstance(named, list | tuple) else []
    return {name: version for name, at, version in (text.rpartition("@") for text in texts) if at}


def _versions(state: Mapping[str, Any], own: Mapping[str, Any], differing: list[str]) -> str:
    """Return how to open the versions that a state was saved with, if its data differ."""
    saved, here = versions_in(state), versions_in(own)
    changed = [f"{name}@{saved[name]}" for name in here if name in saved and saved[name] != here[name]]
    if "data" not in differing or not changed:
        return ""
    return f"; it was saved with {', '.join(changed[:3])}: open that with `state=` of open_dataset or open_mixture"
