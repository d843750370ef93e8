"""A reader written from docs/internals/format.md alone finds the same rows and digests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support import format_reader as reader
from support.canonical_tables import CHATML
from support.datasets_on_disk import STAGES
from support.loaded_rows import settings, write_rows
from support.paths import ROOT
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.loaders import TokenLoader
from tokenloom.resources.store import ArtifactStore

PAGE = (ROOT / "docs" / "internals" / "format.md").read_text(encoding="utf-8")
FORMS = {"weighted": "chat", "pairs": "preference", "kto": "kto"}
NAMES = ("plain", "packed", "split", *FORMS)


def chat_rows(form: str) -> list[dict[str, Any]]:
    def turns(number: int) -> list[dict[str, Any]]:
        return [{"role": "user", "content": f"question {number}?"}]

    def answer(text: str, **fields: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": text, **fields}

    if form == "weighted":
        return [{"messages": [*turns(n), answer(f"yes {n}", weight=0.5 if 40 < n < 45 else 1)]} for n in range(60)]
    if form == "pairs":
        return [
            {"chosen": [*turns(n), answer(f"fine {n}")], "rejected": [*turns(n), answer("no " * (n % 5 + 1))]}
            for n in range(60)
        ]
    return [{"prompt": f"question {n}?", "completion": f"so {n}", "label": n % 3 == 0} for n in range(60)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A store with a dataset of each kind in several chunks, moved to an otherwise empty folder."""
    folder = tmp_path_factory.mktemp("format")
    write_rows(folder / "rows.jsonl", 120)
    given = settings(tokenizer_folder)
    rows = {"dataset": {"name": str(folder / "rows.jsonl"), "val_split": 0.2}, **given}
    lengths = {"packed": {"packing": "concat"}, "split": {"strategy": "split", "stride": 2}}
    short = {"tokenizer": {**given["tokenizer"], "max_length": 16}}
    configs: dict[str, Any] = {"plain": rows, "packed": {**rows, "length": lengths["packed"]}}
    configs["packed"]["dataset"] = {**rows["dataset"], "keep_columns": ["a", "q"]}
    configs["split"] = {**rows, **short, "length": lengths["split"]}
    chat = {"name_or_path": str(tokenizer_folder), "max_length": 64, "chat_template": CHATML}
    for name in FORMS:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chat_rows(name)))
        configs[name] = {"dataset": {"name": str(folder / f"{name}.jsonl")}, "tokenizer": chat}
        configs[name]["prompt_template"] = {"format_type": FORMS[name], "add_eos": False}
    for name in NAMES:
        config = PipelineConfig.from_mapping({"name": name, **configs[name]})
        list(Build(config, ArtifactStore(folder / "store"), chunk_size=ChunkSize(1024, 4096)).run_all())
    shutil.copytree(folder / "store", folder / "elsewhere" / "copy")
    shutil.rmtree(folder / "store")
    return folder / "elsewhere" / "copy"


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_written_from_the_page_finds_the_same_rows(store: Path, name: str) -> None:
    manifest = reader.latest(reader.open_store(store), name, "sequences")
    assert len(manifest.chunks) > 2
    for split in dict.fromkeys(chunk["split"] for chunk in manifest.chunks):
        dataset = open_dataset(name, split, store)
        assert len(dataset) == sum(chunk["table_rows"] for chunk in manifest.chunks if chunk["split"] == split)
        for row in range(len(dataset)):
            opened = {key: value.tolist() for key, value in dataset[row].items() if key not in dataset.keep_columns}
            found = reader.read_row(store, manifest, split, row)
            assert {key: opened[key] for key in found} == found
            unnamed = {key for key in opened.keys() - found.keys() if "attention_mask" not in key}
            assert unnamed == ({"position_ids"} if name == "packed" else set())
        assert dataset.digest == reader.digest_of([c["output"] for c in manifest.chunks if c["split"] == split])
        facts = manifest.head["facts"]
        assert (dataset.pad_token_id, dataset.vocab_size) == (facts["pad_token_id"], facts["vocab_size"])


@pytest.mark.parametrize("name", NAMES)
def test_row_lengths_and_places_are_read_as_documented(store: Path, name: str) -> None:
    manifest, dataset = reader.latest(store, name, "sequences"), open_dataset(name, store=store)
    chunks = [chunk for chunk in manifest.chunks if chunk["split"] == "train"]
    lengths = [length for chunk in chunks for length in reader.read_lengths(store, chunk)]
    assert dataset.lengths(np.arange(len(dataset))).tolist() == lengths
    joined = reader.ReadManifest(store, manifest.head["notes"]["lengths"])
    each = [reader.read_object(store, chunk["lengths"])["length"].to_pylist() for chunk in manifest.chunks]
    groups = [reader.read_object(store, group["output"])["length"].to_pylist() for group in joined.chunks]
    assert [length for group in groups for length in group] == [length for rows in each for length in rows]
    assert [len(group) for group in groups] == [group["table_rows"] for group in joined.chunks]
    documents = [
        (chunk, rows) for chunk in chunks for rows in reader.read_object(store, chunk["output"])["rows"].to_pylist()
    ]
    assert [list(dataset.trace(row).places) for row in range(len(dataset))] == [
        [reader.place_of(chunk, raw) for raw in rows] for chunk, rows in documents
    ]


def test_sidecars_are_read_as_documented(store: Path) -> None:
    manifest, first = reader.latest(store, "packed", "sequences"), {"train": 0, "validation": 0}
    opened = {split: open_dataset("packed", split, store) for split in first}
    for number, chunk in enumerate(manifest.chunks):
        dataset, split = opened[chunk["split"]], chunk["split"]
        for row in range(chunk["table_rows"]):
            kept = reader.read_kept(store, manifest, number, row)
            assert kept.keys() == {"a", "q"}
            assert kept == {key: dataset[first[split] + row][key] for key in kept}
        first[split] += chunk["table_rows"]


@pytest.mark.parametrize("name", NAMES)
def test_digests_and_keys_are_computed_as_documented(store: Path, name: str) -> None:
    before: dict[str, reader.ReadManifest] = {}
    for stage in STAGES:
        manifest = before[stage] = reader.latest(store, name, stage)
        parts = manifest.head["parts"]
        assert (manifest.head["dataset"], manifest.head["stage"], parts["stage"]) == (name, stage, stage)
        assert ArtifactStore(store).manifest(name, stage).digest == manifest.digest
        for chunk in manifest.chunks:
            keyed = {part: parts[part] for part in parts if part not in ("libraries", "shaping")}
            assert reader.digest_of({**keyed, "chunk": chunk["input"]}) == chunk["key"]
            table = reader.read_object(store, chunk["output"])
            assert table.num_rows == chunk["table_rows"]
            assert chunk["rows_in"] == chunk["rows_out"] + chunk["rejected"] + chunk["filtered"]
            action = reader.read_record(store, f"actions/{chunk['key'][:2]}/{chunk['key']}.json")
            assert {field: action[field] for field in action if field in chunk} == {
                field: chunk[field] for field in chunk if field in action
            }
            if chunk["rejects"]:
                assert reader.read_object(store, chunk["rejects"]).num_rows == chunk["rejected"]
    for stage, upstream in (("schema", "raw"), ("columns", "raw"), ("prompts", "columns"), ("tokens", "prompts")):
        assert [c["input"] for c in before[stage].chunks] == [c["output"] for c in before[upstream].chunks]
    last = reader.versions(store, name)[-1]
    assert last["digest"] == before["sequences"].digest
    assert {stage: reader.ReadManifest(store, digest).digest for stage, digest in last["stages"].items()} == {
        stage: manifest.digest for stage, manifest in before.items()
    }
    files = reader.read_object(store, before["sequences"].head["facts"]["tokenizer"]).to_pylist()
    for file in files:
        folder = store / "tokenizers" / before["sequences"].head["facts"]["tokenizer"]
        assert (folder / file["file"]).read_bytes() == file["content"]


def test_every_file_column_and_field_is_documented(store: Path) -> None:
    named = set(re.findall(r"`([^`]+)`", PAGE)) | set(re.findall(r"\w+", PAGE))
    for name in NAMES:
        for stage in STAGES:
            manifest = reader.latest(store, name, stage)
            assert set(manifest.head) <= named
            assert set(manifest.head["parts"]) <= named
            assert set(manifest.chunks[0]) <= named
            if stage not in ("raw", "columns", "schema"):
                assert set(manifest.head["facts"]) <= named
            if stage != "raw" and not (stage == "columns" and name not in FORMS):
                columns = reader.read_object(store, manifest.chunks[0]["output"]).column_names
                assert {re.sub("^(chosen|rejected)_", "", column) for column in columns} <= named
    assert {path.name for path in store.iterdir()} - {"scratch"} <= {
        found.partition("/")[0] for found in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    }


def test_sequences_and_tokens_are_mapped_without_a_copy(store: Path) -> None:
    for stage in ("tokens", "sequences"):
        for chunk in reader.latest(store, "plain", stage).chunks:
            path = store / "objects" / chunk["output"][:2] / f"{chunk['output']}.arrow"
            with pa.memory_map(str(path)) as source:
                data = source.read_buffer()
            file = pa.ipc.open_file(data)
            assert (file.num_record_batches, file.schema.metadata) == (min(chunk["table_rows"], 1), None)
            for column in file.read_all()["input_ids"].chunks:
                for buffer in (column.buffers()[1], column.values.buffers()[1]):
                    assert 0 < buffer.address - data.address < data.size
                    assert (buffer.address - data.address) % 8 == 0


def test_objects_open_with_datasets(store: Path, tmp_path: Path) -> None:
    from datasets import Dataset, load_dataset

    chunks = reader.latest(store, "plain", "sequences").chunks
    paths = [str(store / "objects" / chunk["output"][:2] / f"{chunk['output']}.arrow") for chunk in chunks]
    loaded = load_dataset("arrow", data_files=paths, cache_dir=str(tmp_path), split="train")
    assert isinstance(loaded, Dataset)
    expected = [row for chunk in chunks for row in reader.read_object(store, chunk["output"]).to_pylist()]
    assert loaded.to_list() == expected


def test_a_moved_store_gives_the_same_rows(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "moved")
    for name in NAMES:
        here, there = (TokenLoader(open_dataset(name, store=place), seed=4) for place in (store, tmp_path / "moved"))
        for one, other in zip(here, there, strict=True):
            assert one.keys() == other.keys()
            assert all(str(one[key]) == str(other[key]) for key in one)
    assert Path(open_dataset("plain", store=tmp_path / "moved").tokenizer_path, "tokenizer.json").is_file()


@pytest.mark.parametrize("older", ["tokenloom store 2", "tokenloom store 4"])
def test_stores_of_other_formats_are_refused(store: Path, tmp_path: Path, older: str) -> None:
    shutil.copytree(store, tmp_path / "other")
    (tmp_path / "other" / "FORMAT").write_text(f"{older}\n")
    with pytest.raises(StoreError, match=f"{older}.*tokenloom store 3.*build") as caught:
        open_dataset("plain", store=tmp_path / "other")
    assert caught.value.exit_code == 4
    with pytest.raises(reader.RefusedError, match=older):
        reader.open_store(tmp_path / "other")


def test_the_reader_does_not_import_tokenloom() -> None:
    source = Path(reader.__file__).read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
    assert imported == {"__future__", "blake3", "json", "pathlib", "pyarrow", "typing"}
