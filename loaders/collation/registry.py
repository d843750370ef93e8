"""Chooses the collator of a task, by modality or by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from tokenloom.errors import did_you_mean
from tokenloom.loaders.collation.text import DefaultCollator, TaskSpec, TextCollator
from tokenloom.loaders.collation.vision import VisionCollator

Factory = TypeVar("Factory", bound=Callable[..., Any])

BUILT_IN = ("text", "vision", "default")


@dataclass(frozen=True)
class RegisteredCollator:
    """A collator's entry in the registry: its name, modality, description and factory."""

    name: str
    modality: str | None
    description: str
    factory: Callable[..., Any]


class CollatorRegistry:
    """Collators by name and modality.

    Every registry has `text` (TextCollator), `vision` (VisionCollator) and `default` (DefaultCollator).
    """

    def __init__(self) -> None:
        self._known: dict[str, RegisteredCollator] = {}
        self._add(
            "text", "text", "Pads tokens or tokenized texts, for causal and masked language modeling", TextCollator
        )
        self._add("vision", "vision", "Stacks and normalizes images, RGB or greyscale", VisionCollator)
        self._add("default", None, "Stacks values of one shape, for modalities without a collator", DefaultCollator)

    @staticmethod
    @cache
    def get_instance() -> CollatorRegistry:
        """Return the registry shared by the whole process. A new `CollatorRegistry()` has only built-in collators."""
        return CollatorRegistry()

    def register(
        self, name: str, *, modality: str | None = None, description: str = ""
    ) -> Callable[[Factory], Factory]:
        """Return a decorator that registers a collator: a class, or a function that returns a collate function.

        It is called with the keyword arguments of `get_collator`, and with `task_spec` and `tokenizer` if it has
        parameters of these names. Tasks get the first collator registered for their modality; others of the same
        modality are found by name. Registering a name again replaces its collator.

        Args:
            name: name of the collator.
            modality: modality of the tasks that it is for; None: it is found only by name.
            description: one line for `list`.

        Raises:
            ValueError: the name is empty, or that of a built-in collator.
        """
        if not name or name in BUILT_IN:
            raise ValueError(
                f"a collator cannot be registered as {name!r}: choose a name other than {', '.join(BUILT_IN)}"
            )

        def registered(factory: Factory) -> Factory:
            self._add(name, modality, description, factory)
            return factory

        return registered

    def get_collator(
        self, task_spec: TaskSpec | None = None, collator_name: str | None = None, tokenizer: Any = None, **options: Any
    ) -> Callable[[Any], Any]:
        """Return the collator with this name, else the first for the task's modality, else `default`.

        Args:
            task_spec: the task.
            collator_name: name of a registered collator.
            tokenizer: passed to collators that take one.
            options: arguments of the collator; they take precedence over the task's `collator_options`.

        Raises:
            TypeError: the collator does not take one of the options.
            ValueError: no collator has this name, or it refuses an argument.
        """
        modality = task_spec.modality if task_spec is not None else None
        chosen = next((each for each in self._known.values() if each.modality == modality), self._known["default"])
        if collator_name is not None:
            if collator_name not in self._known:
                hint = did_you_mean(collator_name, self._known)
                raise ValueError(f"no collator named {collator_name!r}; choose one of {', '.join(self._known)}{hint}")
            chosen = self._known[collator_name]
        context = {"task_spec": task_spec, "tokenizer": tokenizer}
        accepted = inspect.signature(chosen.factory).parameters.keys() & context.keys()
        settings = {**(task_spec.collator_options if task_spec else {}), **options}
        return chosen.factory(**settings, **{name: context[name] for name in accepted})

    def list(self) -> tuple[RegisteredCollator, ...]:
        """Return all collators, in the order in which they are searched by modality."""
        return tuple(self._known.values())

    def _add(self, name: str, modality: str | None, description: str, factory: Callable[..., Any]) -> None:
        replaced = self._known.get(name)
        if replaced is not None and replaced.modality != modality:  # moves after the others of its new modality
            del self._known[name]
        self._known[name] = RegisteredCollator(name, modality, description, factory)
