"""Chooses the collator of a task: by the modality that it was registered for, or by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from tokenloom.loaders.collation.collators.default import DefaultCollator
from tokenloom.loaders.collation.collators.text import TextCollator
from tokenloom.loaders.collation.collators.vision import VisionCollator
from tokenloom.loaders.collation.task_spec import TaskSpec

Factory = TypeVar("Factory", bound=Callable[..., Any])

BUILT_IN = ("text", "vision", "default")


@dataclass(frozen=True)
class RegisteredCollator:
    """What a registry knows of a collator: its name, the modality that it is for, and a line about it."""

    name: str
    modality: str | None
    description: str
    factory: Callable[..., Any]


class CollatorRegistry:
    """Collators by name and modality; each has `text` (TextCollator), `vision` (VisionCollator) and `default`."""

    def __init__(self) -> None:
        self._known: dict[str, RegisteredCollator] = {}
        self._add(
            "text", "text", "Pads tokens, or texts that it encodes; causal and masked language modeling", TextCollator
        )
        self._add("vision", "vision", "Stacks and normalizes images, RGB or greyscale", VisionCollator)
        self._add("default", None, "Stacks what is of one shape; for modalities without a collator", DefaultCollator)

    @classmethod
    def get_instance(cls) -> CollatorRegistry:
        """The registry that all of a process share. A new `CollatorRegistry()` holds just the built-in collators."""
        return _shared()

    def register(
        self, name: str, *, modality: str | None = None, description: str = ""
    ) -> Callable[[Factory], Factory]:
        """A decorator that makes a collator known: a class, or a function that returns a function from rows to a batch.

        What it is called with are the keyword arguments of `get_collator`, and `task_spec` and `tokenizer` where it has
        parameters of these names. The first collator of a modality is the one that tasks get; others of the same
        modality are found by name. A name that is registered again stands for the new collator.

        Args:
            modality: the tasks that it is for; None: found by name alone.
            description: a line for `list`.

        Raises:
            ValueError: the name is empty, or one of a built-in collator.
        """
        if not name or name in BUILT_IN:
            raise ValueError(f"a collator cannot be registered as {name!r}; {', '.join(BUILT_IN)} are built in")

        def registered(factory: Factory) -> Factory:
            self._add(name, modality, description, factory)
            return factory

        return registered

    def get_collator(
        self, task_spec: TaskSpec | None = None, collator_name: str | None = None, tokenizer: Any = None, **options: Any
    ) -> Callable[[Any], Any]:
        """A collator: the one of this name, else the first that was registered for the task's modality, else `default`.

        Args:
            tokenizer: handed to collators that take one.
            options: the collator's arguments; they win over the task's `collator_options`.

        Raises:
            TypeError: the collator does not take one of the options.
            ValueError: there is no collator of this name, or it refuses an argument.
        """
        found = self._named(collator_name) if collator_name is not None else self._of(task_spec)
        given = {"task_spec": task_spec, "tokenizer": tokenizer}
        taken = inspect.signature(found.factory).parameters.keys() & given.keys()
        settings = {**(task_spec.collator_options if task_spec else {}), **options}
        return found.factory(**settings, **{name: given[name] for name in taken})

    def list(self) -> tuple[RegisteredCollator, ...]:
        """All collators, in the order in which tasks find them."""
        return tuple(self._known.values())

    def _of(self, task_spec: TaskSpec | None) -> RegisteredCollator:
        modality = task_spec.modality if task_spec is not None else None
        return next((each for each in self._known.values() if each.modality == modality), self._known["default"])

    def _named(self, name: str) -> RegisteredCollator:
        if name not in self._known:
            near = difflib.get_close_matches(name, self._known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(self._known)}"
            raise ValueError(f"there is no collator {name!r}{meant}")
        return self._known[name]

    def _add(self, name: str, modality: str | None, description: str, factory: Callable[..., Any]) -> None:
        replaced = self._known.get(name)
        if replaced is not None and replaced.modality != modality:  # it comes after those of its new modality
            del self._known[name]
        self._known[name] = RegisteredCollator(name, modality, description, factory)


@cache
def _shared() -> CollatorRegistry:
    return CollatorRegistry()
