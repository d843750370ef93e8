"""What Dagster's automation requests, evaluated tick by tick: nothing is lost, nothing is built for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from support.automated_project import Automated
from support.dagster_project import SECTIONS, new_project
from support.datasets_on_disk import STAGES
from support.soak import machine
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.dagster.names import asset_key
from tokenloom.loaders import open_mixture

TOY = {asset_key("toy", stage) for stage in STAGES}
SOURCE, RAW, MIXTURE = asset_key("toy", "source"), asset_key("toy", "raw"), asset_key("mix", "mixture")
SHORTER = {**SECTIONS["tokenizer"], "max_length": 32}
OTHER = {asset_key("other", stage) for stage in STAGES}


@pytest.fixture
def automated(tmp_path: Path) -> Automated:
    project = new_project(tmp_path)
    (project.pipelines / "mix.yaml").write_text("mixture: [{dataset: toy}]\n", encoding="utf-8")
    return Automated(project)


@pytest.fixture
def pair(tmp_path: Path, tokenizer_folder: Path) -> Automated:
    """The mixture `mix` of `toy` and `other`, built, each with a file of its own."""
    made = Automated(new_project(tmp_path))
    for name in ("toy", "other"):
        rows(made, 5, name)
        settings = {"dataset": {"name": f"{name}.jsonl"}, "tokenizer": {"name_or_path": str(tokenizer_folder)}}
        made.project.write(name, **settings)
    (made.project.pipelines / "mix.yaml").write_text("mixture: [{dataset: toy}, {dataset: other}]\n", encoding="utf-8")
    made.settle()
    assert mixed(made) == {"toy": 5, "other": 5}
    return made


def rows(automated: Automated, count: int, name: str = "toy", said: str = "") -> None:
    """Write the only file of a dataset of `pair`."""
    made = [{"instruction": f"{said or name} {n}", "input": "", "output": f"{n * n}"} for n in range(count)]
    lines = "".join(f"{json.dumps(row)}\n" for row in made)
    (automated.project.pipelines / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def stored(automated: Automated, name: str = "toy") -> int:
    return len(open_dataset(name, store=automated.project.root))


def mixed(automated: Automated) -> dict[str, int]:
    found = open_mixture("mix", store=automated.project.root).datasets
    return {name: len(dataset) for name, dataset in found.items()}


def append_row(automated: Automated) -> None:
    with (automated.project.pipelines / "rows" / "a.jsonl").open("a") as file:
        file.write('{"instruction": "Square 99", "input": "", "output": "9801"}\n')


def edit(automated: Automated, name: str = "toy", **sections: Any) -> Callable[[], object]:
    """Change sections of a YAML; returns what changes them back."""
    path = automated.project.pipelines / f"{name}.yaml"
    before = path.read_text(encoding="utf-8")
    path.write_text(yaml.safe_dump({**yaml.safe_load(before), **sections}, sort_keys=False), encoding="utf-8")
    return lambda: path.write_text(before, encoding="utf-8")


def test_what_is_missing_is_built_once(automated: Automated) -> None:
    assert automated.settle() == [{SOURCE}, TOY, {MIXTURE}]
    assert automated.settle() == []


def test_a_source_that_was_observed_before_is_built_too(automated: Automated) -> None:
    automated.run({SOURCE})
    requested = automated.settle()
    assert set().union(*requested) >= TOY
    assert sum(TOY & each != set() for each in requested) == 1


def test_a_changed_source_is_built_and_an_unchanged_one_is_not(automated: Automated) -> None:
    automated.settle()
    automated.run({SOURCE})
    assert automated.settle() == []
    append_row(automated)
    automated.run({SOURCE})
    assert automated.settle() == [TOY, {MIXTURE}]
    automated.run({SOURCE})
    assert automated.settle() == []


def test_what_was_built_before_automation_is_looked_at_once(automated: Automated) -> None:
    automated.run(TOY)
    automated.run({MIXTURE})
    assert automated.settle() == [{SOURCE, *TOY}, {MIXTURE}]


def test_a_yaml_that_breaks_with_a_request_is_built_when_it_is_mended(automated: Automated) -> None:
    """The run of that request found the fault."""
    automated.settle()
    edit(automated, tokenizer=SHORTER)
    requested = automated.tick()
    assert requested == TOY
    mend = edit(automated, prompt_template={"nonsense": "x"})
    automated.run(requested)
    automated.tick()
    mend()
    assert automated.settle() == []
    automated.quiet()
    assert open_dataset("toy", store=automated.project.root).max_length == 32


def test_a_mixture_that_was_away_has_the_datasets_of_now(pair: Automated) -> None:
    path = pair.project.pipelines / "mix.yaml"
    declared = path.read_text(encoding="utf-8")
    path.unlink()
    rows(pair, 7)
    pair.quiet()
    path.write_text(declared, encoding="utf-8")
    pair.quiet()
    assert mixed(pair) == {"toy": 7, "other": 5}


def test_a_mixture_that_breaks_with_a_request_is_mixed_when_it_is_mended(pair: Automated) -> None:
    edit(pair, "mix", mixture=[{"dataset": "toy"}])
    requested = pair.tick()
    assert requested == {MIXTURE}
    mend = edit(pair, "mix", mixture=[{"dataset": "toy", "weigh": 2}])
    pair.run(requested)
    pair.tick()
    mend()
    pair.quiet()
    assert mixed(pair) == {"toy": 5}


def test_rows_that_change_no_sequence_leave_the_mixture(automated: Automated) -> None:
    automated.settle()
    file = automated.project.pipelines / "rows" / "a.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"instruction":', b'"instruction" :'))
    automated.run({SOURCE})
    assert automated.settle() == [TOY]


def test_the_daemon_can_evaluate_all_conditions(automated: Automated) -> None:
    """It has no code of tokenloom, so they consist of Dagster's own."""
    specs = automated.definitions().resolve_all_asset_specs()
    assert {spec.key for spec in specs} >= {SOURCE, *TOY, MIXTURE}
    for spec in specs:
        assert spec.automation_condition is not None and spec.automation_condition.is_serializable, spec.key


# Changes between a request and the next tick.


def test_a_source_that_changes_right_after_a_request_is_built_again(pair: Automated) -> None:
    rows(pair, 20)
    pair.run({SOURCE})
    pair.run(pair.tick())
    assert stored(pair) == 20
    rows(pair, 30)
    pair.run({SOURCE})
    assert pair.settle() == [TOY, {MIXTURE}]
    assert mixed(pair)["toy"] == 30


@machine("daemon")
def test_a_dataset_built_by_hand_right_after_a_request_is_mixed(pair: Automated) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    pair.run(pair.tick())
    requested = pair.tick()
    assert requested == {MIXTURE}
    rows(pair, 8, "other")
    pair.run(requested)
    pair.run(OTHER)
    pair.settle()
    assert mixed(pair) == {"toy": 9, "other": 8}


def test_a_yaml_that_breaks_right_after_a_request_loses_nothing(pair: Automated) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    pair.run(pair.tick())
    pair.run(pair.tick())
    repair = edit(pair, dataset={"nam": "x"})
    pair.tick()
    rows(pair, 8, "other")
    pair.run({asset_key("other", "source")})
    pair.settle()
    repair()
    pair.quiet()
    assert mixed(pair) == {"toy": 9, "other": 8}


@machine("daemon")
def test_two_datasets_that_are_built_around_a_request_are_both_mixed(pair: Automated) -> None:
    for name in ("toy", "other"):
        rows(pair, 7, name)
        pair.run({asset_key(name, "source")})
    pair.run(pair.tick())
    pair.run(pair.tick())
    rows(pair, 6)
    pair.run(TOY)
    assert pair.settle() == [TOY, {MIXTURE}]  # nobody had observed the six rows
    assert mixed(pair) == {"toy": 6, "other": 7}


# Changes back and forth between two ticks, with a build in between.


@machine("daemon")
def test_content_that_returns_after_a_build_by_hand_is_built(pair: Automated) -> None:
    for observe in (True, False):
        rows(pair, 9)
        if observe:
            pair.run({SOURCE})
        pair.run(TOY)
        rows(pair, 5)
        pair.run({SOURCE})
        pair.settle()
        assert mixed(pair)["toy"] == stored(pair) == 5, f"observed: {observe}"


@machine("daemon")
def test_content_that_returns_before_the_requested_run_is_built(pair: Automated) -> None:
    """The run finds the earlier rows, and the later ones are there when the source is observed again."""
    rows(pair, 9)
    pair.run({SOURCE})
    requested = pair.tick()
    rows(pair, 5)
    pair.run(requested)
    rows(pair, 9)
    pair.quiet()
    assert mixed(pair)["toy"] == stored(pair) == 9


@machine("daemon")
def test_settings_that_return_after_a_build_by_hand_are_built(pair: Automated) -> None:
    before = pair.project.store.manifest("toy").digest
    for keys in (TOY, {asset_key("toy", "sequences")}):
        back = edit(pair, tokenizer={**settings_of(pair)["tokenizer"], "max_length": 10})
        pair.run(keys)
        assert pair.project.store.manifest("toy").digest != before
        back()
        pair.settle()
        assert pair.project.store.manifest("toy").digest == before


@machine("daemon")
def test_a_dataset_that_returns_after_its_mixture_was_built_by_hand_is_mixed(pair: Automated) -> None:
    rows(pair, 9)
    pair.run(TOY)
    pair.run({MIXTURE})
    rows(pair, 5)
    pair.run(TOY)
    assert mixed(pair)["toy"] == 9
    pair.settle()
    assert mixed(pair)["toy"] == 5


def settings_of(automated: Automated, name: str = "toy") -> dict[str, Any]:
    return yaml.safe_load((automated.project.pipelines / f"{name}.yaml").read_text(encoding="utf-8"))


# Changes of YAMLs.


def test_an_edited_yaml_is_built_and_its_mixture_follows(automated: Automated) -> None:
    automated.settle()
    edit(automated, tokenizer={**SECTIONS["tokenizer"], "max_length": 16})
    assert automated.settle() == [TOY, {MIXTURE}]
    edit(automated, dataloader={"batch_size": 2})
    assert automated.settle() == []


@machine("daemon")
def test_a_run_by_the_settings_of_before_an_edit_does_not_count(pair: Automated) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    edit(pair, tokenizer={**settings_of(pair)["tokenizer"], "max_length": 12})
    requested, before = pair.tick(), pair.definitions()
    edit(pair, tokenizer={**settings_of(pair)["tokenizer"], "max_length": 10})
    pair.tick()  # it requests the run by the new settings
    pair.run(requested, before)
    assert pair.settle() == [TOY, {MIXTURE}]
    assert max(len(row["input_ids"]) for row in open_dataset("toy", store=pair.project.root)) == 10


def test_members_that_are_added_and_removed_are_mixed(pair: Automated) -> None:
    mix = pair.project.pipelines / "mix.yaml"
    before = mix.read_text()
    for text, members in (("mixture: [{dataset: other}]\n", {"other"}), (before, {"toy", "other"})):
        mix.write_text(text)
        assert pair.settle() == [{MIXTURE}]
        assert set(mixed(pair)) == members


def test_a_mixture_of_datasets_that_were_built_before_is_built(pair: Automated) -> None:
    (pair.project.pipelines / "late.yaml").write_text("mixture: [{dataset: other}]\n", encoding="utf-8")
    assert pair.settle() == [{asset_key("late", "mixture")}]


@machine("daemon")
def test_a_yaml_that_was_away_is_built_from_what_changed_meanwhile(pair: Automated) -> None:
    path = pair.project.pipelines / "toy.yaml"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    pair.tick()
    rows(pair, 9)
    path.write_text(text, encoding="utf-8")
    pair.quiet()
    assert mixed(pair)["toy"] == 9


@machine("daemon")
def test_a_dataset_under_a_new_name_is_built_and_mixed(pair: Automated) -> None:
    folder = pair.project.pipelines
    (folder / "toy.yaml").rename(folder / "renamed.yaml")
    (folder / "mix.yaml").write_text("mixture: [{dataset: renamed}, {dataset: other}]\n", encoding="utf-8")
    pair.quiet()
    assert mixed(pair) == {"renamed": 5, "other": 5}


@machine("daemon")
def test_a_dataset_is_built_again_when_one_that_it_repeats_changes(tmp_path: Path) -> None:
    made = Automated(new_project(tmp_path))
    for name, count, against in (("toy", 4, []), ("other", 9, ["toy"])):
        rows(made, count, name, "the same")
        made.project.write(name, dataset={"name": f"{name}.jsonl"}, dedup={"near": None, "against": against})
    made.settle()
    assert stored(made, "other") == 5
    rows(made, 6, "toy", "the same")
    made.quiet()
    assert stored(made, "other") == 3


# Builds that fail, run, or are canceled.


@machine("daemon")
def test_a_failed_build_waits_for_a_change(pair: Automated) -> None:
    edit(pair, validation={"max_reject_fraction": 0.0})
    good = (pair.project.pipelines / "toy.jsonl").read_text()
    (pair.project.pipelines / "toy.jsonl").write_text(good + "{broken\n")
    pair.run({SOURCE})
    requested = pair.tick()
    assert requested == TOY and not pair.run(requested)
    for _ in range(2):
        pair.run({SOURCE})
        assert pair.settle() == []
    edit(pair, prompt_template={**SECTIONS["prompt_template"], "template": "{instruction} {output}"})
    assert not pair.run(pair.tick())
    assert pair.settle() == []
    edit(pair, validation={"max_reject_fraction": 0.5})
    assert pair.settle() == [TOY, {MIXTURE}]
    assert mixed(pair)["toy"] == 5


@machine("daemon")
@pytest.mark.parametrize("during", [False, True], ids=["before the run", "during the run"])
def test_a_source_that_vanishes_is_built_when_it_is_back(
    pair: Automated, monkeypatch: pytest.MonkeyPatch, during: bool
) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    requested, file = pair.tick(), pair.project.pipelines / "toy.jsonl"
    text, run_stages = file.read_text(), Build.run_stages
    with monkeypatch.context() as patch:
        if during:
            patch.setattr(Build, "run_stages", lambda build, names: file.unlink() or run_stages(build, names))
        else:
            file.unlink()
        assert not pair.run(requested)
    found = pair.settle()
    assert len(found) <= 1  # it is tried once more
    assert not pair.run({SOURCE})
    assert pair.settle() == []
    file.write_text(text)
    pair.run({SOURCE})
    assert pair.settle() == [TOY, {MIXTURE}]
    assert mixed(pair)["toy"] == 9


def started(automated: Automated, keys: set[dg.AssetKey]) -> dg.DagsterRun:
    """A run of some assets that has started and done nothing yet."""
    job, status = automated.definitions().resolve_implicit_global_asset_job_def(), dg.DagsterRunStatus.STARTED
    return automated.instance.create_run_for_job(job, asset_selection=frozenset(keys), status=status)


@machine("daemon")
def test_a_running_build_is_not_requested_again_until_it_ends(pair: Automated) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    requested = pair.tick()
    assert requested == TOY
    rows(pair, 12)
    pair.run({SOURCE})
    for left in (requested, {asset_key("toy", "sequences")}):
        run = started(pair, left)
        assert pair.tick() == pair.tick() == set(), left
        pair.instance.report_run_failed(run)
    assert pair.settle() == [TOY, {MIXTURE}]
    assert mixed(pair)["toy"] == 12


@machine("daemon")
def test_a_canceled_build_is_not_requested_again(pair: Automated) -> None:
    rows(pair, 9)
    pair.run({SOURCE})
    pair.instance.report_run_canceled(started(pair, pair.tick()))
    assert pair.settle() == []
    rows(pair, 10)
    pair.run({SOURCE})
    assert pair.settle() == [TOY, {MIXTURE}]


# Assets of the project that write the rows.


def test_an_upstream_asset_that_returns_to_earlier_rows_is_built(tmp_path: Path) -> None:
    made = Automated(new_project(tmp_path))
    made.project.write(dataset={"name": "toy.jsonl"}, dagster={"deps": ["crawl"]})
    count = [5]

    @dg.asset
    def crawl() -> dg.MaterializeResult[Any]:
        rows(made, count[0])
        return dg.MaterializeResult(data_version=dg.DataVersion(str(count[0])))

    made.more = dg.Definitions(assets=[crawl])
    made.run({dg.AssetKey("crawl")})
    assert made.settle() == [TOY]
    for count[0] in (9, 5):
        made.run({dg.AssetKey("crawl")})
        if count[0] == 9:
            made.run(TOY)
    assert stored(made) == 9
    assert made.settle() == [TOY]
    assert stored(made) == 5
