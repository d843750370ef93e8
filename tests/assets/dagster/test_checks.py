"""The checks of stages: which there are, what they cost within a run, and what each finds.

Oracles are the files of the store, the rows as written, and the rows that loaders give.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from tokenizers import Tokenizer

from support.builds import digests, frozen_tokenizer
from support.datasets_on_disk import STAGES, TOKENIZER, rows, write_dataset
from support.processes import run
from support.stage_checks import (
    Built,
    build_and_check,
    build_with_rejects,
    checks_of,
    computed,
    numbers,
    run_all,
    run_alone,
)
from support.store_files import chunks, flip, latest, object_path, read_object, versions
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.dagster.checks import MAX_LISTED, Checked, Verdict, listed, rejected
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, Manifest

CHAT = {"format_type": "chat"}
REJECTING = ("raw", "columns", "prompts", "tokens", "sequences")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_with_rejects(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def built(whole: Built, tmp_path: Path) -> Built:
    """The same, in a separate copy of the store."""
    shutil.copytree(whole[1], tmp_path / "store")
    return whole[0], tmp_path / "store", whole[2]


# Which checks there are.


def places(**sections: Any) -> set[tuple[str, str]]:
    settings = {"name": "toy", "dataset": {"name": "rows.jsonl"}, "tokenizer": TOKENIZER}
    return set(checks_of(PipelineConfig.from_mapping(settings | sections)))


def test_the_yaml_decides_which_checks_there_are() -> None:
    template = {"template": "{a}", "label_column": "a"}
    base = {(stage, "contract") for stage in STAGES}
    base |= {("sequences", name) for name in ("rejects", "answers", "drift", "stored")}
    overlap, chat = ("sequences", "overlap"), {("prompts", "template"), ("prompts", "turns")}
    one = {"name": "rows.jsonl", "splits": ["train"]}
    assert places(prompt_template=template, dataset=one) == base
    assert places(prompt_template=template) == base | {overlap}
    assert places(prompt_template=template, dataset={**one, "val_split": 0.1}) == base | {overlap}
    assert places(prompt_template=CHAT) == places() == base | {overlap} | chat
    assert places(prompt_template={"format_type": "text"}) == base | {overlap}


def test_only_contracts_block() -> None:
    config = PipelineConfig.from_mapping({"dataset": {"name": "rows.jsonl"}, "tokenizer": TOKENIZER, "name": "toy"})
    checks = checks_of(config)
    assert {place for place, check in checks.items() if check.blocking} == {(stage, "contract") for stage in STAGES}
    assert all(check.description for check in checks.values())


def test_listing_the_checks_imports_no_stage(whole: Built) -> None:
    script = """
import sys
from tokenloom.assets.dagster.checks import stage_checks
from tokenloom.config import PipelineConfig
stage_checks(PipelineConfig.from_file(sys.argv[1]))
heavy = {"pandera", "transformers", "tokenizers", "torch", "datasets"}
stages = {f"tokenloom.assets.{stage}.stage" for stage in sys.argv[2:]}
print(sorted((heavy | stages) & sys.modules.keys()))
"""
    found = run([sys.executable, "-c", script, whole[0], *STAGES], check=True)
    assert found.stdout.strip() == "[]"


def test_a_verdict_becomes_a_result_of_its_asset() -> None:
    key = dg.AssetKey(["toy", "raw"])
    for warns, severity in ((False, dg.AssetCheckSeverity.ERROR), (True, dg.AssetCheckSeverity.WARN)):
        result = Verdict(False, "why", {"rows": 3}, warns).result(key, "contract")
        assert (result.asset_key, result.check_name, result.passed) == (key, "contract", False)
        assert (result.severity, result.description, result.metadata["rows"].value) == (severity, "why", 3)


@pytest.mark.parametrize("count", range(9))
def test_a_description_lists_places_and_counts_those_that_it_leaves_out(count: int) -> None:
    places = [f"place {number}" for number in range(count)]
    text = listed(places)
    shown = [line for line in text.splitlines() if not line.startswith("…")]
    more = count - len(shown)
    assert shown == places[:MAX_LISTED]
    assert text == "\n".join([*shown, f"… and {more} more"] if more else shown)


# Within a run.


def test_checks_of_a_run_read_no_stored_rows(built: Built) -> None:
    config, store, expected = built
    reports, verdicts = run_all(config, store)
    assert (digests(reports), computed(reports)) == (expected, {})
    assert [place for place, verdict in verdicts.items() if not verdict.passed] == []
    for stage in ("raw", "columns", "prompts", "tokens", "sequences"):
        for chunk in chunks(store, latest(store, "small")[stage]):
            path = object_path(store, chunk["output"])
            path.write_bytes(bytes(path.stat().st_size))
    again, unread = run_all(config, store)
    assert computed(again) == {}
    assert {place: numbers(verdict) for place, verdict in unread.items()} == {
        place: numbers(verdict) for place, verdict in verdicts.items()
    }
    for stage in STAGES:
        assert numbers(verdicts[stage, "contract"]) == {
            "chunks": reports[stage].chunks,
            "rows": reports[stage].rows_out,
            "failed_chunks": 0,
        }


def test_a_missing_object_is_found_within_a_run(built: Built) -> None:
    config, store, _ = built
    made = Build(PipelineConfig.from_file(config), ArtifactStore(store))
    reports = {report.name: report for report in made.run_all()}
    lost = [chunks(store, latest(store, "small")["columns"])[1]["output"]]
    lost += [chunk["rejects"] for chunk in chunks(store, latest(store, "small")["raw"]) if chunk["rejects"]]
    lost += [chunks(store, latest(store, "small")["sequences"])[0]["lengths"]]
    for digest in lost:
        object_path(store, digest).unlink()
    verdict = checks_of(made.config)["sequences", "stored"].run(Checked(made, reports["sequences"]))
    assert not verdict.passed and not verdict.warns
    assert numbers(verdict)["faulty"] == len(lost) == 3
    assert all(digest in verdict.description for digest in lost)
    assert "small/columns: output of small.jsonl:" in verdict.description


def lose_a_row(manifest: Manifest) -> Manifest:
    first, *others = manifest.chunks
    return replace(manifest, chunks=(replace(first, rows_in=first.rows_in - 1, rows_out=first.rows_out - 1), *others))


def test_a_run_accounts_for_the_rows_of_the_stage_before(built: Built) -> None:
    config, store, _ = built
    made = Build(PipelineConfig.from_file(config), ArtifactStore(store))
    reports = {report.name: report for report in made.run_all()}
    made.store.put_manifest(lose_a_row(made.store.manifest("small", "columns")))
    stale = Build(made.config, made.store)
    for stage, passed in (("raw", True), ("columns", False), ("prompts", False), ("tokens", True)):
        verdict = checks_of(made.config)[stage, "contract"].run(Checked(stale, reports[stage]))
        assert verdict.passed == passed, stage
    assert "columns passed on 397 rows, but 398 came in" in (
        checks_of(made.config)["prompts", "contract"].run(Checked(stale, reports["prompts"])).description
    )


# Rejected rows.


def test_rejects_are_counted_by_code_and_measured_against_the_limit(built: Built) -> None:
    config, store, _ = built
    settings = PipelineConfig.from_file(config)
    opened = ArtifactStore(store)
    manifest = opened.manifest("small", "raw")
    for limit, passed, warns in (
        (0.1, True, None),
        (1 / 200, False, True),
        (1 / 401, False, False),
        (0.0, False, False),
    ):
        validation = settings.validation.model_copy(update={"max_reject_fraction": limit})
        verdict = rejected(settings.model_copy(update={"validation": validation}), manifest, opened)
        assert verdict.passed == passed, limit
        assert warns in (None, verdict.warns), limit
        (code,) = {
            row["code"]
            for chunk in manifest.chunks
            if chunk.rejects
            for row in read_object(store, chunk.rejects).to_pylist()
        }
        assert numbers(verdict) == {"rejected": 1, "rows_in": 400, "reject_fraction": 1 / 400, "rejected/raw": 1}
        assert "raw: 1 of 400 rows (0.25%) rejected" in verdict.description and "small.jsonl:10" in verdict.description
        (row,) = verdict.metadata["rejects/raw"].records
        assert row.data["code"] == code and "{broken" in row.data["example"]
    verdict = run_alone(config, store, "sequences", "rejects")
    assert numbers(verdict) == {
        "rejected": 2, "rows_in": 400, "reject_fraction": 2 / 400, "rejected/raw": 1, "rejected/columns": 1
    }  # fmt: skip


def test_damaged_rejects_are_computed_again(built: Built) -> None:
    config, store, _ = built
    before = run_alone(config, store, "sequences", "rejects")
    path = next(
        object_path(store, chunk["rejects"])
        for chunk in chunks(store, latest(store, "small")["raw"])
        if chunk["rejects"]
    )
    flip(path, path.stat().st_size // 2)
    after = run_alone(config, store, "sequences", "rejects")
    assert (after.passed, after.description) == (before.passed, before.description)
    assert ArtifactStore(store).objects.is_intact(path.stem)


# What the data can make a model learn wrong.


def test_answers_without_their_stop_are_a_warning(tmp_path: Path) -> None:
    short = {**TOKENIZER, "max_length": 40}
    config = write_dataset(tmp_path, 100, tokenizer=short, length={"strategy": "truncate_right"})
    verdict = build_and_check(config, tmp_path / "store", "sequences", "answers")
    data = open_dataset("small", store=tmp_path / "store")
    eos = Tokenizer.from_file(f"{data.tokenizer_path}/tokenizer.json").token_to_id("<|endoftext|>")
    cut = sum(data[row]["input_ids"][-1] != eos for row in range(len(data)))
    assert not verdict.passed and verdict.warns
    assert numbers(verdict)["answers_without_stop"] == cut > 0
    assert "validation.max_unstopped_fraction" in verdict.description
    config = write_dataset(tmp_path, 100, tokenizer=short, length={"strategy": "drop"})
    assert build_and_check(config, tmp_path / "store", "sequences", "answers").passed


OLD_TURNS = (
    "{% for m in messages %}{% set old = '(old) ' if m.role == 'assistant' and not loop.last else '' %}"
    "{{ '<|im_start|>' + m.role + '\\n' + old + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Writes an answer in another way once another turn follows."""


@pytest.mark.parametrize(("template", "wrong"), [(OLD_TURNS, 20), (OLD_TURNS.replace("(old) ", ""), 0)])
def test_turns_that_are_not_as_at_inference_are_a_warning(tmp_path: Path, template: str, wrong: int) -> None:
    talk = [{"role": role, "content": f"{role} says {n}"} for n in range(2) for role in ("user", "assistant")]
    tokens = {"eos": "<|im_end|>", "pad": "<|pad|>", "additional": ["<|im_start|>"]}
    tokenizer = {**TOKENIZER, "special_tokens": tokens, "chat_template": template}
    config = write_dataset(tmp_path, tokenizer=tokenizer, prompt_template=CHAT)
    (tmp_path / "small.jsonl").write_text("".join(f"{json.dumps({'messages': talk, 'n': n})}\n" for n in range(20)))
    verdict = build_and_check(config, tmp_path / "store", "prompts", "turns")
    assert verdict.passed == (wrong == 0) and verdict.warns
    shares = {"turns_trained": 40, "turns_not_exact": wrong, "turns_not_exact_fraction": wrong / 40}
    assert numbers(verdict) == shares
    assert ("prompt_template.turns: exact" in verdict.description) == bool(wrong)


def measured(store: Path, version: str | None = None) -> tuple[float, float]:
    """The mean length and the trained fraction of the rows that a loader gives; nothing is truncated."""
    data = open_dataset("small", store=store, version=version)
    found = [data[row] for row in range(len(data))]
    lengths = np.array([len(row["input_ids"]) for row in found])
    trained = sum(int((np.asarray(row["labels"]) != -100).sum()) for row in found)
    return float(lengths.mean()), trained / float(lengths.sum())


def test_drift_compares_with_the_version_before(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tokenizer = {**frozen_tokenizer(tmp_path), "max_length": 2048}
    before_rows = rows(200, words=10)
    longer = [{**row, "output": f"{row['output']} {row['output']} {row['output']}"} for row in before_rows]

    def write(data: list[dict[str, str]], **drift: float) -> Path:
        config = write_dataset(tmp_path, tokenizer=tokenizer, validation={"drift": drift})
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in data)
        (tmp_path / "small.jsonl").write_text(text, encoding="utf-8")
        return config

    first = build_and_check(write(before_rows), store, "sequences", "drift")
    assert first.passed and "no earlier version" in first.description
    (named,) = versions(store, "small")
    verdict = build_and_check(write(longer), store, "sequences", "drift")
    before, now = measured(store, named["digest"]), measured(store)
    length, trained = abs(now[0] - before[0]) / before[0], abs(now[1] - before[1])
    assert length > 0.2 and trained > 0.1
    expected = {"mean_length": now[0], "trained_fraction": now[1], "length_change": length, "trained_change": trained}
    assert numbers(verdict) == pytest.approx(expected)
    assert not verdict.passed and verdict.warns
    assert named["digest"][:12] in verdict.description
    assert "validation.drift.length 20.0%" in verdict.description
    assert "validation.drift.trained 10.0%" in verdict.description
    reports, verdicts = run_all(write(longer), store)  # the same content again is not a version to compare with
    assert computed(reports) == {} and numbers(verdicts["sequences", "drift"]) == numbers(verdict)
    for settings, warned in (
        ({"length": length + 1e-6, "trained": trained + 1e-6}, []),
        ({"length": length - 1e-6, "trained": 1.0}, ["length"]),
        ({"length": 9.0, "trained": trained - 1e-6}, ["trained"]),
    ):
        again = run_alone(write(longer, **settings), store, "sequences", "drift")
        assert again.passed == (not warned), settings
        assert [name for name in ("length", "trained") if f"validation.drift.{name}" in again.description] == warned
    back = build_and_check(write(before_rows), store, "sequences", "drift")
    assert numbers(back)["length_change"] == pytest.approx(abs(before[0] - now[0]) / now[0])


SHAPES: dict[str, dict[str, Any]] = {
    "rows": {},
    "packed": {"length": {"packing": "best_fit"}},
    "joined": {"length": {"packing": "concat"}, "tokenizer": {**TOKENIZER, "max_length": 40}},
    "pieces": {"length": {"strategy": "split", "stride": 4}, "tokenizer": {**TOKENIZER, "max_length": 24}},
}


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of which some occur twice but for a column that no template reads, which splits them."""
    folder = tmp_path_factory.mktemp("leaking")
    write_dataset(folder)
    different = [*rows(250, words=12), *rows(60, words=12)]
    lines = (json.dumps({**row, "id": number}) for number, row in enumerate(different))
    (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def written(folder: Path, name: str, **sections: Any) -> Path:
    return write_dataset(folder, 1, **{"name": name, "dataset": {"name": "rows.jsonl", "val_split": 0.25}} | sections)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_shared_by_splits_are_found_in_any_shape(leaking: Path, tmp_path: Path, shape: str) -> None:
    store = tmp_path / "store"
    reports, verdicts = run_all(written(leaking, "whole"), store)
    splits: dict[str, list[tuple[int, ...]]] = {}
    for split in ("train", "validation"):
        data = open_dataset("whole", split, store)
        splits[split] = [tuple(map(int, data[row]["input_ids"])) for row in range(len(data))]
    expected = sum(ids in set(splits["train"]) for ids in splits["validation"])
    assert 0 < expected < len(splits["validation"])
    verdict = verdicts["sequences", "overlap"]
    if shape != "rows":
        verdict = build_and_check(written(leaking, shape, **SHAPES[shape]), store, "sequences", "overlap")
    assert not verdict.passed and verdict.warns
    assert verdict.metadata["shared_rows"] == expected
    assert verdict.metadata["shared_fraction/validation"] == expected / len(splits["validation"])
    assert f"{expected} of {len(splits['validation'])} rows of validation" in verdict.description
    lines = (leaking / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    examples = [record.data for record in verdict.metadata["examples"].records]
    assert len(examples) == 5
    for example in examples:
        pair = [json.loads(lines[int(str(example[side]).rpartition(":")[2]) - 1]) for side in ("row", "also in train")]
        assert pair[0].pop("id") != pair[1].pop("id")
        assert pair[0] == pair[1]
    assert example_splits(store, "whole") == {"train", "validation"}
    assert set(reports) == set(STAGES)


def example_splits(store: Path, name: str) -> set[str]:
    return {chunk["split"] for chunk in chunks(store, latest(store, name)["sequences"])}


def test_overlap_of_unchanged_sequences_is_looked_up(leaking: Path, tmp_path: Path) -> None:
    config, store = written(leaking, "whole"), tmp_path / "store"
    first = build_and_check(config, store, "sequences", "overlap")
    for chunk in chunks(store, latest(store, "whole")["sequences"]):
        path = object_path(store, chunk["output"])
        path.write_bytes(bytes(path.stat().st_size))
    assert run_alone(config, store, "sequences", "overlap") == first


def test_splits_without_common_rows_pass(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, dataset={"name": "small.jsonl", "val_split": 0.2})
    verdict = build_and_check(config, tmp_path / "store", "sequences", "overlap")
    assert verdict.passed and verdict.metadata["shared_rows"] == 0
    config = write_dataset(tmp_path)
    verdict = build_and_check(config, tmp_path / "store", "sequences", "overlap")
    assert verdict.passed and "train" in verdict.description and not verdict.metadata
