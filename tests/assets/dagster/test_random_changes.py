"""Automation under random changes of sources and YAMLs in random ticks: after quiet, the store is that of a cold build.

Between two ticks the sources and YAMLs change, break, vanish and come back, runs of automation find other rows than
those that were observed, or have the definitions of before an edit, and people build and observe by hand.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from support.automated_project import Automated
from support.dagster_project import Project
from support.soak import machine, sweep
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.target import MixtureTarget
from tokenloom.assets.stage.names import stages_of
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.dataset import load_config
from tokenloom.resources.store import ArtifactStore

DATASETS = ("a", "b", "c")
"""`c` loses the rows that `a` has, too. All are mixed."""


@dataclass
class World:
    """A project that changes at random.

    Args:
        declared: the sound YAMLs, by name; those in `broken` are written with a fault, those in `away` not at all.
        done: what has changed so far, for messages.
        last: the dataset that changed last. Often it is the next one, too, since changes are lost where they meet.
    """

    automated: Automated
    draw: random.Random
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    vanished: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    last: str = DATASETS[0]

    def write(self) -> None:
        folder = self.automated.project.pipelines
        for name, settings in self.declared.items():
            path = folder / f"{name}.yaml"
            text = "dataset: {nam: x}\n" if name in self.broken else yaml.safe_dump(settings, sort_keys=False)
            path.unlink() if name in self.away and path.exists() else None
            if name not in self.away and (not path.exists() or path.read_text() != text):
                path.write_text(text)
        for name, text in self.lines.items():
            path = folder / f"{name}.jsonl"
            path.unlink() if name in self.vanished and path.exists() else None
            if name not in self.vanished and (not path.exists() or path.read_text() != text):
                path.write_text(text)

    def name(self) -> str:
        """The dataset to change next."""
        self.last = self.last if self.draw.random() < 0.5 else self.draw.choice(DATASETS)
        return self.last

    # Changes. Values are few, so that they often return to earlier ones.

    def change_rows(self) -> None:
        """Add, remove and edit rows."""
        name, count = self.name(), self.draw.choice((2, 3))
        rows = [{"prompt": f"Row {n}", "completion": self.draw.choice(ANSWERS)} for n in range(count)]
        own = {"prompt": "Only in", "completion": name}
        self.lines[name] = "".join(f"{json.dumps(row)}\n" for row in (own, *rows))

    def spoil_rows(self) -> None:
        """Rows that no build accepts."""
        self.lines[self.name()] = "{spoiled\n" * 3

    def vanish(self) -> None:
        self.vanished ^= {self.name()}

    def change_length(self) -> None:
        self.declared[self.name()]["tokenizer"]["max_length"] = self.draw.choice((10, 12, 16))

    def change_template(self) -> None:
        template = self.draw.choice(("{prompt}{completion}", "Q: {prompt} A: {completion}"))
        self.declared[self.name()]["prompt_template"]["template"] = template

    def change_members(self) -> None:
        members = self.draw.sample(DATASETS, self.draw.choice((1, 2, 3)))
        self.declared["mix"]["mixture"] = [{"dataset": name, "weight": self.draw.choice((1, 2))} for name in members]

    def break_yaml(self) -> None:
        self.broken ^= {self.draw.choice((self.name(), "mix"))}

    def remove_yaml(self) -> None:
        self.away ^= {self.draw.choice((self.name(), "mix"))}

    def build_by_hand(self) -> None:
        """All of a dataset, some stages of it, or the mixture."""
        name = self.draw.choice((self.name(), self.name(), "mix"))
        stages = ["mixture"]
        if name != "mix":
            stages = [*stages_of(PipelineConfig.from_mapping(self.declared[name]))]
            stages = stages if self.draw.random() < 0.6 else stages[: self.draw.randint(1, len(stages))]
        self.automated.run([dg.AssetKey([name, stage]) for stage in stages])

    def observe_by_hand(self) -> None:
        self.automated.run([dg.AssetKey([self.name(), "source"])])

    def change(self) -> None:
        changes: list[tuple[Callable[[], None], int]] = [
            (self.change_rows, 8),
            (self.spoil_rows, 1),
            (self.vanish, 2),
            (self.change_length, 4),
            (self.change_template, 1),
            (self.change_members, 2),
            (self.break_yaml, 2),
            (self.remove_yaml, 1),
            (self.build_by_hand, 6),
            (self.observe_by_hand, 2),
        ]
        (chosen,) = self.draw.choices([change for change, _ in changes], [weight for _, weight in changes])
        chosen()
        self.done.append(f"{chosen.__name__} {self.last}")
        self.write()
        if self.draw.random() < 0.4:
            self.automated.run([dg.AssetKey([self.last, "source"])])

    def some_changes(self) -> int:
        count = self.draw.choice((0, 0, 1, 2, 3))
        for _ in range(count):
            self.change()
        return count

    def window(self) -> int:
        """One tick, and what changes before and after the run that it requests. Returns the number of changes."""
        if self.draw.random() < 0.4:
            self.repair()
        requested = self.automated.tick(minutes=self.draw.choice((0, 0, 10)))
        self.done.append(f"tick {sorted({'/'.join(key.path) for key in requested if key.path[-1] in ENDS})}")
        before = self.automated.definitions() if self.draw.random() < 0.3 else None
        count = self.some_changes() if self.draw.random() < 0.3 else 0
        self.automated.run(requested, before)
        return count + self.some_changes()

    def repair(self) -> None:
        self.broken, self.away, self.vanished = set(), set(), set()
        for name, text in self.lines.items():
            self.lines[name] = text.replace("{spoiled", json.dumps({"prompt": "Mended in", "completion": name}))
        self.write()


ANSWERS = ("What is it all for, and who asks?", "Nothing that a short answer of ten words or so could say.")
ENDS = ("source", "sequences", "mixture")


def new_world(folder: Path, tokenizer: Path, seed: int) -> World:
    project = Project(folder)
    project.pipelines.mkdir(parents=True)
    made = World(Automated(project), random.Random(seed))
    for name in DATASETS:
        made.declared[name] = {
            "name": name,
            "dataset": {"name": f"{name}.jsonl"},
            "tokenizer": {"name_or_path": str(tokenizer), "max_length": 12},
            "prompt_template": {"template": "{prompt}{completion}", "label_column": "completion"},
        }
        if name != "b":
            made.declared[name]["dedup"] = {"near": None, "against": ["a"] if name == "c" else []}
        made.lines[name] = f"{json.dumps({'prompt': 'Only in', 'completion': name})}\n"
    made.declared["mix"] = {"mixture": [{"dataset": name} for name in DATASETS]}
    made.write()
    return made


def digests(store: ArtifactStore) -> dict[str, str]:
    return {**{name: store.manifest(name).digest for name in DATASETS}, "mix": store.manifest("mix", "mixture").digest}


def cold_build(project: Project, root: Path) -> dict[str, str]:
    """Build everything into a fresh store, without Dagster."""
    store = ArtifactStore(root)
    for name in (*DATASETS, "mix"):
        config = load_config(project.pipelines / f"{name}.yaml")
        if isinstance(config, MixtureConfig):
            MixtureTarget(config, store).publish()
        else:
            for _ in Build(config, store).run_all():
                pass
    return digests(store)


@pytest.mark.parametrize(
    ("seed", "changes"),
    [
        pytest.param(3, 25, marks=machine("daemon")),
        *(pytest.param(seed, 125, marks=sweep) for seed in range(1, 9)),
    ],
)
def test_after_quiet_the_store_is_that_of_a_cold_build(
    tmp_path: Path, tokenizer_folder: Path, seed: int, changes: int
) -> None:
    world, made, rounds = new_world(tmp_path, tokenizer_folder, seed), 0, 0
    while made < changes:
        rounds += 1
        for _ in range(world.draw.randint(1, 4)):
            made += world.window()
        world.repair()
        world.done.append("quiet")
        world.automated.quiet()
        project = world.automated.project
        found, expected = digests(project.store), cold_build(project, tmp_path / f"cold{rounds}")
        wrong = [name for name in expected if found[name] != expected[name]]
        assert not wrong, f"{wrong} after {world.done}"
        assert world.automated.settle() == []
