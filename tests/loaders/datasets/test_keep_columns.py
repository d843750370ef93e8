"""keep_columns: each row of a batch has the values that json.loads gives its raw row, whatever reads the batch."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from support.crafted_objects import encoded, publish, with_column
from support.loaded_rows import settings, write_rows
from support.store_files import age, flip, object_path
from tokenloom import DataPipeline, open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.explain import explain
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, StoreError
from tokenloom.loaders import ArrayDataLoader, MixedDataset, TokenLoader, batch_digest
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.gc import collect
from tokenloom.resources.store.verify import verify

SIZE = ChunkSize(target=2048, maximum=8192)
COUNT = 150
KEPT = ("q", "source", "meta", "meta.score", "tags[0]")

Rows = list[dict[str, Any]]


def values_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The oracle: the kept values of a raw row."""
    tags = row["tags"] or [None]
    return {
        **{name: row[name] for name in ("q", "source", "meta")},
        "meta.score": row["meta"]["score"],
        "tags[0]": tags[0],
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    path = tmp_path_factory.mktemp("kept")
    rows = write_rows(path / "plain.jsonl", COUNT)
    more = [
        {
            **row,
            "source": "web" if number % 3 else None,
            "meta": {"score": number / 7, "lang": "fr"},
            "tags": ["a", "b"] if number % 2 else [],
        }
        for number, row in enumerate(rows)
    ]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in more))
    return path, more


def config_of(folder: Path, tokenizer_folder: Path, kept: tuple[str, ...] = KEPT, **sections: Any) -> PipelineConfig:
    dataset = {"name": str(folder / "rows.jsonl"), "keep_columns": kept, **sections.pop("dataset", {})}
    return PipelineConfig.from_mapping({"name": "kept", "dataset": dataset, **settings(tokenizer_folder), **sections})


def build(config: PipelineConfig, store: Path) -> dict[str, StageReport]:
    return {report.name: report for report in Build(config, ArtifactStore(store), chunk_size=SIZE).run_all()}


def by_question(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["q"]: values_of(row) for row in rows}


def check(batch: Mapping[str, Any], rows: Rows) -> list[str]:
    """Compare a batch with the oracle; returns the questions of its rows."""
    expected = by_question(rows)
    for number, question in enumerate(batch["q"]):
        assert {name: batch[name][number] for name in KEPT} == (
            dict.fromkeys(KEPT) if question is None else expected[question]
        )
    return [question for question in batch["q"] if question is not None]


@pytest.fixture(scope="module")
def store(folder: tuple[Path, Rows], tokenizer_folder: Path) -> Path:
    build(config_of(folder[0], tokenizer_folder), folder[0] / "store")
    return folder[0] / "store"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_carry_the_values_of_their_rows(
    folder: tuple[Path, Rows], store: Path, workers: int, world_size: int
) -> None:
    dataset = open_dataset("kept", store=store)
    seen: list[str] = []
    for rank in range(world_size):
        loader = TokenLoader(dataset, batch_size=8, seed=3, rank=rank, world_size=world_size, num_workers=workers)
        for batch in loader:
            assert len(batch["q"]) == len(batch["input_ids"])
            seen += check(batch, folder[1])
    assert sorted(seen) == sorted(row["q"] for row in folder[1])
    assert dataset[5]["meta"] == by_question(folder[1])[dataset[5]["q"]]["meta"]


def test_array_batches_carry_the_values(folder: tuple[Path, Rows], store: Path) -> None:
    plain = ArrayDataLoader(dataset_name=open_dataset("kept", store=store), batch_size=8)
    own = ArrayDataLoader(
        dataset_name=open_dataset("kept", store=store),
        batch_size=8,
        collate_fn=lambda rows: {name: [row[name] for row in rows] for name in KEPT},
    )
    for batch, collated in zip(plain, own, strict=True):
        check(batch, folder[1])
        assert {name: batch[name] for name in KEPT} == collated


def test_a_dataset_that_is_sent_to_another_process_maps_its_sidecars_again(store: Path) -> None:
    dataset = open_dataset("kept", store=store)
    sent = pickle.dumps(dataset)
    assert len(sent) < 3000
    for batch, expected in zip(TokenLoader(pickle.loads(sent)), TokenLoader(dataset), strict=True):
        assert batch_digest(batch) == batch_digest(expected)
        assert {name: batch[name] for name in KEPT} == {name: expected[name] for name in KEPT}


def test_a_resumed_loader_gives_the_same_values(store: Path) -> None:
    dataset = open_dataset("kept", store=store)
    loader = TokenLoader(dataset, batch_size=8, seed=3)
    batches = [batch for batch, _ in zip(loader, range(6), strict=False)]
    resumed = TokenLoader(dataset, batch_size=8, seed=3)
    other = TokenLoader(dataset, batch_size=8, seed=3)
    for batch in other:
        if batch_digest(batch) == batch_digest(batches[2]):
            break
    resumed.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert next(iter(resumed))["meta"] == batches[3]["meta"]


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_packed_rows_carry_one_value_per_document(
    folder: tuple[Path, Rows], tokenizer_folder: Path, packing: str, tmp_path: Path
) -> None:
    build(config_of(folder[0], tokenizer_folder, length={"packing": packing}), tmp_path)
    dataset, seen = open_dataset("kept", store=tmp_path), set[str]()
    for number in range(len(dataset)):
        row = dataset[number]
        documents = int((row["position_ids"] == 0).sum())
        assert {len(row[name]) for name in KEPT} == {documents}
        seen.update(check(row, folder[1]))
    assert seen == {row["q"] for row in folder[1]}


def test_splits_and_split_rows_carry_their_values(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path
) -> None:
    tokenizer = {**settings(tokenizer_folder)["tokenizer"], "max_length": 12}
    config = config_of(
        folder[0], tokenizer_folder, dataset={"val_split": 0.3}, tokenizer=tokenizer, length={"strategy": "split"}
    )
    build(config, tmp_path)
    seen = [
        question
        for split in ("train", "validation")
        for batch in TokenLoader(open_dataset("kept", split, tmp_path), batch_size=8)
        for question in check(batch, folder[1])
    ]
    assert len(seen) > len(set(seen)) > COUNT * 0.9


def test_in_a_mixture_a_dataset_without_the_column_gives_none(
    folder: tuple[Path, Rows], store: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    bare = config_of(folder[0], tokenizer_folder, kept=())
    build(bare, tmp_path / "bare")
    build(config_of(folder[0], tokenizer_folder, kept=("q", "source")), tmp_path / "some")
    parts = {
        "whole": open_dataset("kept", store=store),
        "some": open_dataset("kept", store=tmp_path / "some"),
        "bare": open_dataset("kept", store=tmp_path / "bare"),
    }
    expected, kinds = by_question(folder[1]), set[str]()
    for batch in TokenLoader(MixedDataset(parts, dict.fromkeys(parts, 1.0)), batch_size=8):
        for number, question in enumerate(batch["q"]):
            kind = "bare" if question is None else "some" if batch["meta"][number] is None else "whole"
            kinds.add(kind)
            names = {"whole": KEPT, "some": ("q", "source"), "bare": ()}[kind]
            assert {name: batch[name][number] for name in KEPT} == {
                name: expected[str(question)][name] if name in names else None for name in KEPT
            }
    assert kinds == {"whole", "some", "bare"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_streams_carry_the_values_of_their_rows(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path, packing: str, workers: int
) -> None:
    config = config_of(
        folder[0],
        tokenizer_folder,
        dataset={"streaming": True},
        dataloader={"num_workers": workers},
        length={"packing": packing},
    )
    seen: list[str] = []
    for batch in DataPipeline(config, tmp_path).get_dataloader("train", shuffle=True).unwrap():
        if packing == "none":
            seen += check(batch, folder[1])
        else:
            for number in range(len(batch["q"])):
                seen += check({name: batch[name][number] for name in KEPT}, folder[1])
    assert sorted(seen) == sorted(row["q"] for row in folder[1])


def test_another_column_recomputes_sidecars_alone(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path
) -> None:
    first = build(config_of(folder[0], tokenizer_folder, kept=("q",)), tmp_path)
    before = open_dataset("kept", store=tmp_path)
    batches = [batch_digest(batch) for batch in TokenLoader(before, seed=1)]
    more = config_of(folder[0], tokenizer_folder)
    predicted = {each.name: each.misses for each in explain(Build(more, ArtifactStore(tmp_path), chunk_size=SIZE))}
    chunks = first["raw"].chunks
    assert chunks > 3
    assert predicted == {**dict.fromkeys(first, 0), "sidecars": chunks}
    second = build(more, tmp_path)
    assert {name: report.chunks - report.chunks_reused for name, report in second.items()} == dict.fromkeys(first, 0)
    assert [report.digest for report in second.values()] == [report.digest for report in first.values()]
    after = open_dataset("kept", store=tmp_path)
    assert (before.keep_columns, after.keep_columns) == (("q",), KEPT)
    assert (after.digest, after.version) == (before.digest, before.version)
    assert [batch_digest(batch) for batch in TokenLoader(after, seed=1)] == batches
    loader = TokenLoader(before, seed=1)
    next(iter(loader))
    TokenLoader(after, seed=1).load_state_dict(loader.state_dict())
    assert [each.misses for each in explain(Build(more, ArtifactStore(tmp_path), chunk_size=SIZE))] == [0] * 8


def test_gc_keeps_sidecars_and_verify_finds_damaged_ones(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path
) -> None:
    config = config_of(folder[0], tokenizer_folder)
    build(config, tmp_path)
    age(tmp_path)
    opened = ArtifactStore(tmp_path)
    assert collect(opened, keep=1, delete=True).objects == []
    assert verify(opened).findings == []
    named = opened.manifest("kept").sidecars
    assert named is not None
    chunk = opened.manifest_at(named).chunks[1]
    path = object_path(tmp_path, chunk.output)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match=chunk.output):
        list(TokenLoader(open_dataset("kept", store=tmp_path), batch_size=8))
    (finding,) = verify(opened, "kept").findings
    assert (finding.kind, finding.stage, finding.digest) == ("output", "sidecars", chunk.output)
    assert {report.chunks - report.chunks_reused for report in build(config, tmp_path).values()} == {0}
    assert verify(opened).findings == []
    flip(object_path(tmp_path, named), 100)
    assert [(one.kind, one.stage) for one in verify(opened).findings] == [("manifest", "sidecars")]
    build(config, tmp_path)
    assert verify(opened).findings == []


@pytest.mark.parametrize("wrong", ["wider", "text", "nulls"])
def test_a_sidecar_with_other_row_numbers_than_a_build_writes_is_refused(
    store: Path, tmp_path: Path, wrong: str
) -> None:
    """Its digest is right, so that only its content says that it is damaged."""
    opened = ArtifactStore(shutil.copytree(store, tmp_path / "store"))
    manifest = opened.manifest("kept")
    named = opened.manifest_at(str(manifest.sidecars))
    table = opened.objects.get(named.chunks[0].output)
    numbers = {
        "wider": table["_row"].cast(pa.int64()),
        "text": table["_row"].cast(pa.string()),
        "nulls": pa.array([*table["_row"].to_pylist()[:-1], None], pa.int32()),
    }
    chunk = publish(opened, named, encoded(with_column(table, "_row", numbers[wrong])))
    notes = {**manifest.notes, "sidecars": opened.manifest_digest("kept", "sidecars")}
    opened.put_manifest(replace(manifest, notes=notes))
    with pytest.raises(StoreError, match=rf"{chunk.output}.*_row"):
        list(TokenLoader(open_dataset("kept", store=tmp_path / "store"), batch_size=8))
    (finding,) = verify(opened, "kept", remove=False).findings
    assert (finding.stage, finding.digest, finding.problem) == ("sidecars", chunk.output, "damaged")


def test_dropped_raw_rows_are_read_again_for_new_sidecars(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path
) -> None:
    build(config_of(folder[0], tokenizer_folder, kept=(), keep="sequences"), tmp_path)
    age(tmp_path)
    assert collect(ArtifactStore(tmp_path), delete=True).objects
    build(config_of(folder[0], tokenizer_folder, keep="sequences"), tmp_path)
    for batch in TokenLoader(open_dataset("kept", store=tmp_path), batch_size=8):
        check(batch, folder[1])


@pytest.mark.parametrize("layout", ["hf", "parquet"])
def test_exports_have_the_columns(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path, layout: str
) -> None:
    given = config_of(folder[0], tokenizer_folder)
    path = tmp_path / "kept.yaml"
    path.write_text(json.dumps({"name": "kept", **given.model_dump(mode="json", exclude_unset=True)}))
    assert main(["export", str(path), str(tmp_path / "out"), "--to", layout, "--store", str(tmp_path / "store")]) == 0
    found: Any = (
        datasets.load_from_disk(str(tmp_path / "out"))["train"]
        if layout == "hf"
        else datasets.load_dataset("parquet", data_files=str(tmp_path / "out" / "train*" / "*"), split="train")
    )
    read = [{name: row[name] for name in KEPT} for row in found.to_list()]
    for row in read:
        row["meta"] = json.loads(row["meta"]) if isinstance(row["meta"], str) else row["meta"]
    assert read == [values_of(row) for row in folder[1]]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (("sours",), "no column sours.*did you mean source"),
        (("meta.scor",), "no field scor.*did you mean score"),
        (("q", "q"), "q is listed twice"),
        (("labels",), "labels is a key of every batch"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(
    folder: tuple[Path, Rows], tokenizer_folder: Path, tmp_path: Path, kept: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        build(config_of(folder[0], tokenizer_folder, kept=kept), tmp_path)
