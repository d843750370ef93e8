"""The registry: collators are found by name, else by the task's modality, else the default."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from tokenloom.errors import DataValidationError
from tokenloom.loaders import (
    CollatorRegistry,
    DefaultCollator,
    LanguageModelingDataCollator,
    TaskSpec,
    TextCollator,
    VisionCollator,
    VisionDataCollator,
)


class Named:
    """A collator that keeps its arguments."""

    def __init__(self, **arguments: Any):
        self.arguments = arguments

    def __call__(self, rows: Any) -> Any:
        return rows


class Tokenizing(Named):
    """A collator that takes a tokenizer."""

    def __init__(self, task_spec: Any = None, tokenizer: Any = None, width: int = 3):
        super().__init__(task_spec=task_spec, tokenizer=tokenizer, width=width)


AUDIO = TaskSpec("speech", modality="audio", task_type="classification")


@pytest.fixture
def registry() -> CollatorRegistry:
    return CollatorRegistry()


def test_all_of_a_process_share_one() -> None:
    found: list[CollatorRegistry] = []
    threads = [threading.Thread(target=lambda: found.append(CollatorRegistry.get_instance())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(each) for each in found} == {id(CollatorRegistry.get_instance())}
    assert CollatorRegistry() is not CollatorRegistry.get_instance()


def test_tasks_get_the_collator_of_their_modality(registry: CollatorRegistry) -> None:
    text = registry.get_collator(task_spec=TaskSpec.lm_tiny(), pad_token_id=0)
    assert isinstance(text, TextCollator) and isinstance(text, LanguageModelingDataCollator) and not text.mlm
    vision = registry.get_collator(task_spec=TaskSpec.vision_tiny(), tokenizer=object())
    assert isinstance(vision, VisionCollator) and isinstance(vision, VisionDataCollator)
    assert isinstance(registry.get_collator(task_spec=AUDIO, tokenizer=object()), DefaultCollator)
    assert isinstance(registry.get_collator(), DefaultCollator)
    assert isinstance(registry.get_collator(task_spec=AUDIO, collator_name="vision"), VisionCollator)


def test_the_first_of_a_modality_stays_the_one_that_tasks_get(registry: CollatorRegistry) -> None:
    registry.register("vision-language", modality="vision", description="both")(Named)
    assert isinstance(registry.get_collator(TaskSpec.vision_tiny()), VisionCollator)
    assert isinstance(registry.get_collator(collator_name="vision-language"), Named)
    registry.register("speech", modality="audio")(Named)
    registry.register("music", modality="audio")(Tokenizing)
    assert type(registry.get_collator(AUDIO)) is Named
    registry.register("speech", modality="audio")(Tokenizing)  # like a notebook cell that runs twice
    assert type(registry.get_collator(AUDIO)) is Tokenizing
    registry.register("speech", modality="video")(Named)
    registry.register("speech", modality="audio")(Named)  # now second in its modality
    assert type(registry.get_collator(AUDIO)) is Tokenizing
    registry.register("loose")(Named)
    assert isinstance(registry.get_collator(), DefaultCollator)
    listed = [(each.name, each.modality) for each in registry.list()]
    assert listed == [
        ("text", "text"),
        ("vision", "vision"),
        ("default", None),
        ("vision-language", "vision"),
        ("music", "audio"),
        ("speech", "audio"),
        ("loose", None),
    ]
    assert all(each.description for each in registry.list()[:4])


def test_a_collator_gets_what_it_takes(registry: CollatorRegistry) -> None:
    registry.register("some", modality="audio")(Tokenizing)
    task = TaskSpec("speech", modality="audio", task_type="classification", collator_options={"width": 5})
    made: Any = registry.get_collator(task, tokenizer="t")
    assert made.arguments == {"task_spec": task, "tokenizer": "t", "width": 5}
    made = registry.get_collator(task, width=7)
    assert made.arguments == {"task_spec": task, "tokenizer": None, "width": 7}
    registry.register("any")(Named)
    made = registry.get_collator(collator_name="any", tokenizer="t", width=1)
    assert made.arguments == {"width": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        registry.get_collator(task, widht=7)


def test_a_decorated_function_stays_itself(registry: CollatorRegistry) -> None:
    @registry.register("plain")
    def make(scale: float = 1.0) -> Any:
        return lambda rows: [row * scale for row in rows]

    assert make(2.0)([3]) == [6.0]
    assert registry.get_collator(collator_name="plain", scale=3.0)([3]) == [9.0]


def test_wrong_names_are_told(registry: CollatorRegistry) -> None:
    with pytest.raises(ValueError, match=r"no collator named 'visoin'; .*; did you mean vision"):
        registry.get_collator(collator_name="visoin")
    with pytest.raises(ValueError, match="choose one of text, vision, default"):
        registry.get_collator(collator_name="xyz")
    for name in ("text", "default", ""):
        with pytest.raises(ValueError, match="choose a name other than"):
            registry.register(name)


def test_the_default_stacks_and_refuses_what_does_not_stack() -> None:
    collate = DefaultCollator()
    batch = collate([{"x": np.ones(2), "y": 1, "z": "a"}, {"x": np.zeros(2), "y": 2, "z": "b"}])
    assert torch.equal(batch["x"], torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64))
    assert batch["y"].tolist() == [1, 2] and batch["z"] == ["a", "b"]
    assert collate([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    for rows in ([torch.ones(2), torch.ones(3)], [object()], [{"x": 1}, {"y": 1}], [None], [[1], [1, 2]]):
        with pytest.raises(DataValidationError, match="pad them with create_collate_fn"):
            collate(rows)
    with pytest.raises(DataValidationError, match="at least one"):
        collate([])


def test_tasks_are_plain_values() -> None:
    assert TaskSpec.lm_tiny() == TaskSpec("lm_tiny", modality="text", task_type="causal_lm")
    assert TaskSpec.vision_tiny().modality == "vision"
    assert TaskSpec("t", input_fields="text").input_fields == ("text",)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        TaskSpec.lm_tiny().name = "other"  # type: ignore[misc]
