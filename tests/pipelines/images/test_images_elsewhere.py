"""Rows with images in folders that `datasets` reads, in `dedup`, `diff`, `explain` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from support.builds import build, digests
from support.image_rows import Built, write_lines, write_pictures
from support.vision_processors import FAMILIES, save
from tokenloom.assets.building.diff import diff_datasets
from tokenloom.cli.main import main
from tokenloom.resources.store import ArtifactStore

ANSWER = " it is a long answer with the same words in every row of these four rows"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a processor, four pictures, and rows that differ only in their picture."""
    save(FAMILIES["qwen2_vl"](), tmp_path / "processor")
    names = list(write_pictures(tmp_path, 4))
    rows = [{"image": name, "prompt": "what is it?", "completion": ANSWER} for name in (*names, names[0])]
    write_lines(tmp_path / "rows.jsonl", rows)
    yaml(tmp_path, "rows.jsonl")
    return tmp_path


def yaml(folder: Path, source: str, more: str = "") -> Path:
    path = folder / "data.yaml"
    settings = f"dataset: {{name: {source}}}\ntokenizer: {{processor: processor, max_length: 512}}\n"
    path.write_text(f"{settings}prompt_template: {{format_type: completion}}\n{more}")
    return path


def test_rows_with_other_images_are_not_duplicates(folder: Path, tmp_path: Path) -> None:
    reports = build(yaml(folder, "rows.jsonl", "dedup: {}\n"), tmp_path / "store")
    assert (reports["dedup"].rows_in, reports["dedup"].rows_out) == (5, 4)
    near = build(yaml(folder, "rows.jsonl", "dedup: {exact: null}\n"), tmp_path / "store")
    assert near["dedup"].rows_out == 4


@pytest.mark.parametrize("metadata", ["jsonl", "csv", "parquet"])
def test_a_folder_of_images_is_read_as_datasets_reads_it(metadata: str, folder: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    named = [{"file_name": row.pop("image"), **row} for row in rows]
    own = tmp_path / "own"
    for name in {row["file_name"] for row in named}:
        path = own / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((folder / name).read_bytes())
    table = datasets.Dataset.from_list(named)
    write: dict[str, Any] = {"jsonl": table.to_json, "csv": table.to_csv, "parquet": table.to_parquet}
    write[metadata](own / "train" / f"metadata.{metadata}")
    loaded = datasets.load_dataset("imagefolder", data_dir=str(own), split="train")
    assert [row["prompt"] for row in loaded] == [row["prompt"] for row in named]  # pyright: ignore[reportCallIssue, reportArgumentType, reportIndexIssue]
    whole = digests(build(yaml(folder, "rows.jsonl"), tmp_path / "store"))
    assert digests(build(yaml(folder, "own"), tmp_path / "store"))["sequences"] == whole["sequences"]


def test_a_folder_with_only_images_says_what_is_missing(folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bare").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "bare" / "a.png")
    assert main(["build", str(yaml(folder, "bare")), "--store", str(tmp_path / "store")]) == 2
    assert "metadata.jsonl" in capsys.readouterr().err


def test_diff_and_explain_notice_another_image_under_the_same_name(folder: Path, tmp_path: Path, capsys: Any) -> None:
    config, store = folder / "data.yaml", tmp_path / "store"
    build(config, store)
    first = ArtifactStore(store).versions.of("data")[-1].digest
    path = next(folder.rglob("*.png"))
    inverted = ImageOps.invert(Image.open(path).convert("RGB"))
    inverted.save(path)
    assert main(["explain", str(config), "--store", str(store)]) == 0
    assert "media" in capsys.readouterr().out
    build(config, store)
    (split,) = diff_datasets(ArtifactStore(store), f"data@{first}", "data").splits
    rows = [number for number, line in enumerate((folder / "rows.jsonl").open(), 1) if path.name in line]
    assert split.rows["images"] == len(rows) and not split.is_empty
    assert split.examples["images"] == [f"rows.jsonl:{number}" for number in rows]


@pytest.mark.parametrize("layout", ["parquet", "hf"])
def test_exported_rows_have_their_image_files(layout: str, folder: Path, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    built = Built.of(folder / "data.yaml", store)
    assert main(["export", "--to", layout, str(folder / "data.yaml"), str(out), "--store", str(store)]) == 0
    if layout == "hf":
        rows = datasets.load_from_disk(str(out))["train"].to_list()  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    else:
        rows = [row for path in sorted(out.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    source = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for number, (row, given) in enumerate(zip(rows, source, strict=True)):
        assert [image["bytes"] for image in row["images"]] == [(folder / given["image"]).read_bytes()]
        assert row["input_ids"] == built.ids()[number][0]
