"""Batches of rows with images: which pixels they have, and that order, states and mixtures are those of text."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support.soak import each
from support.vision_models import MARKERS, MODELS, TEMPLATE, build_images
from tokenloom.cli import main
from tokenloom.config import TrainingConfig
from tokenloom.errors import LoaderStateError
from tokenloom.loaders import MixedDataset, TokenDataset, TokenLoader, batch_digest, model_inputs, open_dataset
from tokenloom.loaders.frameworks import ArrayDataLoader
from tokenloom.loaders.reading import images
from tokenloom.resources.digest import digest_bytes
from tokenloom.resources.images.image_file import open_image
from tokenloom.resources.processors.processor import load_processor
from tokenloom.trainer.run import build_model

COUNTS = (1, 0, 2, 3, 1, 0, 1, 0, 0, 2, 1, 0, 1, 1, 0, 4, 1)
"""Images of each row."""
PLANS: tuple[dict[str, Any], ...] = ({"batch_size": 2}, {"token_budget": 300})
PACKED_TO = {"qwen2_vl": 120, "llava": 140, "idefics3": 300}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets with images of three families, packed and not, and one of texts with a tokenizer of theirs."""
    path = tmp_path_factory.mktemp("images")
    for family in MODELS:
        build_images(path, family, COUNTS, family)
        build_images(path, family, COUNTS, f"{family}-packed", PACKED_TO[family], length={"packing": "best_fit"})
    build_images(path, "qwen2_vl", [0] * 11, "texts")
    return path


def opened(folder: Path, name: str) -> TokenDataset:
    return open_dataset(name, store=folder / "store")


def pictures(folder: Path, name: str) -> dict[str, Image.Image]:
    """The images of a dataset, by the digest of their bytes."""
    files = (folder / "images").glob(f"{name}-*.png")
    return {digest_bytes(file.read_bytes()): Image.open(file).convert("RGB") for file in files}


def loader_on(dataset: Any, **options: Any) -> TokenLoader:
    return TokenLoader(dataset, **{"seed": 3, "padding": "longest", **options})


@pytest.mark.parametrize("family", MODELS)
def test_rows_and_batches_have_what_the_image_processor_returns(folder: Path, family: str) -> None:
    dataset, shown = opened(folder, family), pictures(folder, family)
    processor = load_processor(folder / f"{family}-processor")

    def expected(rows: list[list[str]]) -> dict[str, torch.Tensor]:
        given = [[shown[digest] for digest in row] for row in rows]
        text = ["".join([processor.image_token] * len(row)) for row in rows]
        some: dict[str, Any] = {"images": given} if any(given) else {}
        output = processor(text=text, **some, padding=True, return_tensors="pt")
        return {name: value for name, value in output.items() if "pixel" in name or name.startswith("image_")}

    for number, count in enumerate(COUNTS):
        row, traced = dataset[number], dataset.trace(number)
        assert len(traced.images) == count and traced.places == (f"{family}.jsonl:{number + 1}",)
        right = expected([list(traced.images)])
        assert {name for name in row if name in right or "pixel" in name} == set(right)
        assert all(torch.equal(row[name], value) for name, value in right.items())
    for options in PLANS:
        loader = loader_on(dataset, **options)
        for step, batch in enumerate(loader):
            right = expected([list(row.images) for row in loader.trace(step)])
            assert {name for name in batch if name in right or "pixel" in name} == set(right)
            assert all(torch.equal(batch[name], value) for name, value in right.items())
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[2]["pixel_values"], dataset[2]["pixel_values"])


@pytest.mark.parametrize(("name", "plan"), each(["qwen2_vl", "qwen2_vl-packed", "idefics3", "llava-packed"], PLANS))
def test_batches_do_not_depend_on_workers_and_resume(folder: Path, name: str, plan: dict[str, Any]) -> None:
    dataset = opened(folder, name)
    right = [batch_digest(batch) for batch in loader_on(dataset, **plan)]
    second = [batch_digest(batch) for batch in loader_on(dataset, **plan, num_workers=2)]
    assert second == right and len(set(right)) == len(right) > 1
    assert [batch_digest(batch) for batch in loader_on(dataset, **plan, prefetch_factor=2)] == right
    for stop, workers in ((1, 0), (len(right) - 1, 2)):
        stopped = loader_on(dataset, **plan)
        assert len([*islice(stopped, stop)]) == stop
        resumed = loader_on(dataset, **plan, num_workers=workers)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert [batch_digest(batch) for batch in resumed] == right[stop:]


@pytest.mark.parametrize("family", MODELS)
def test_cached_pixels_are_small_and_equal(
    folder: Path, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [*loader_on(opened(folder, family), batch_size=2)]
    right, floats = (
        [*map(batch_digest, plain)],
        sum(batch["pixel_values"].nbytes for batch in plain if "pixel_values" in batch),
    )
    monkeypatch.setenv("TOKENLOOM_IMAGE_CACHE", str(tmp_path))
    assert [batch_digest(batch) for batch in loader_on(opened(folder, family), batch_size=2, num_workers=2)] == right
    files = list(tmp_path.iterdir())
    assert len(files) == len(pictures(folder, family))
    assert sum(file.stat().st_size for file in files) < floats / 4 + 2000 * len(files)
    damaged, *_ = files
    damaged.write_bytes(damaged.read_bytes()[:-100])
    read = Counter[str]()
    monkeypatch.setattr(images, "open_image", lambda data, most: read.update(["one"]) or open_image(data, most))
    assert [batch_digest(batch) for batch in loader_on(opened(folder, family), batch_size=2)] == right
    assert read.total() == 1


def test_pixels_that_are_held_stay(folder: Path) -> None:
    held, copies = list[Any](), list[Any]()
    for batch in loader_on(opened(folder, "qwen2_vl"), batch_size=2):
        if "pixel_values" in batch:
            held.append(batch["pixel_values"][1:].numpy()[:, 3:].T)
            copies.append(held[-1].copy())
        del batch
    assert len(held) > 4 and all(np.array_equal(*both) for both in zip(held, copies, strict=True))


def content(batch: dict[str, Any], rows: list[Any]) -> list[tuple[Any, ...]]:
    """For each row of a Qwen2-VL batch its ids, its pixels, and the raw rows that `trace` names."""
    found, patches = [], 0
    grids = iter(batch.get("image_grid_thw", torch.zeros(0, 3)).tolist())
    real = batch["attention_mask"].any(1).tolist()
    for number, row in enumerate(rows):
        assert real[number]
        sizes = [np.prod(next(grids)).astype(int) for _ in row.images]
        pixels = batch["pixel_values"][patches : patches + sum(sizes)] if sizes else torch.zeros(0)
        patches += sum(sizes)
        ids = batch["input_ids"][number][batch["attention_mask"][number] == 1]
        found.append((tuple(ids.tolist()), digest_bytes(pixels.numpy().tobytes()), row.places))
    assert not any(real[len(rows) :]) and next(grids, None) is None
    assert patches == len(batch.get("pixel_values", ()))
    return found


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_vl-packed"])
def test_other_ranks_continue_with_the_same_rows(folder: Path, name: str) -> None:
    dataset = opened(folder, name)
    one = loader_on(dataset, batch_size=1)
    right = [row for step, batch in enumerate(one) for row in content(batch, one.trace(step))]
    assert len({row[0] for row in right}) == len(dataset) == len(right)
    for world in (2, 3):
        loaders = [loader_on(dataset, batch_size=1, rank=rank, world_size=world) for rank in range(world)]
        for loader in loaders:
            assert len([*islice(loader, 2)]) == 2
        rest = right[2 * world :]
        for other in (1, 2):
            found = []
            for rank in range(other):
                resumed = loader_on(dataset, batch_size=2, rank=rank, world_size=other)
                state = {**loaders[0].state_dict(), "world_size": other}
                resumed.load_state_dict(state)
                steps = zip(resumed.steps(), resumed, strict=True)
                rows = [content(batch, traced(dataset, step.rows)) for step, batch in steps]
                found += [(step, rank, each) for step, each in enumerate(rows)]
            ordered = [row for _, _, each in sorted(found, key=lambda each: each[:2]) for row in each]
            assert sorted(ordered) == sorted(rest)


def traced(dataset: Any, rows: Any) -> list[Any]:
    return [dataset.trace(row) for row in rows.tolist() if row >= 0]


def test_a_mixture_of_images_and_texts(folder: Path) -> None:
    datasets = {name: opened(folder, name) for name in ("texts", "qwen2_vl")}
    mixture = MixedDataset(datasets, {"texts": 1, "qwen2_vl": 2}, by="rows", epochs={"qwen2_vl": 1})
    assert mixture.images and (Path(mixture.tokenizer_path) / "processor_config.json").exists()
    for workers in (0, 2):
        loader = loader_on(mixture, batch_size=2, num_workers=workers)
        rows = [row for step, batch in enumerate(loader) for row in content(batch, loader.trace(step))]
        counts = Counter(place.split(".")[0] for _, _, places in rows for place in places)
        assert counts["qwen2_vl"] == len(COUNTS) and abs(counts["texts"] - len(COUNTS) / 2) <= 1
        assert {row[2] for row in rows} >= {(f"qwen2_vl.jsonl:{number + 1}",) for number in range(len(COUNTS))}
    model = build_model(TrainingConfig(model=MODELS["qwen2_vl"]), mixture)
    kinds = set()
    for batch in loader_on(mixture, batch_size=1):
        assert torch.isfinite(model(**model_inputs(batch)).loss)
        kinds.add("pixel_values" in batch)
    assert kinds == {True, False}
    with pytest.raises(ValueError, match="were built with different tokenizers"):
        MixedDataset({"texts": datasets["texts"], "llava": opened(folder, "llava")})


@pytest.mark.parametrize("name", [*MODELS, *(f"{family}-packed" for family in MODELS)])
def test_batches_have_the_logits_of_single_rows(folder: Path, name: str) -> None:
    family, dataset = name.removesuffix("-packed"), opened(folder, name)
    single = opened(folder, family)
    by_ids = {tuple(row["input_ids"].tolist()): row for row in map(single.__getitem__, range(len(single)))}
    torch.manual_seed(0)
    model: Any = build_model(TrainingConfig(model=MODELS[family]), dataset).eval()
    compared = 0
    for batch in loader_on(dataset, batch_size=3, rank=0, world_size=2):  # its last batch has padding rows
        with torch.no_grad():
            logits = model(**model_inputs(batch)).logits
        for row, mask in enumerate(batch["attention_mask"].bool()):
            starts = torch.zeros_like(mask)
            if "position_ids" in batch:
                positions = batch["position_ids"]
                starts = (positions[0] if positions.ndim == 3 else positions)[row] == 0
            starts[0] = True
            bounds = [*torch.where(starts & mask)[0].tolist(), int(mask.sum())] if mask.any() else []
            for begin, end in pairwise(bounds):
                one = by_ids[tuple(batch["input_ids"][row, begin:end].tolist())]
                tokens = {k: v[None] for k, v in one.items() if k in ("input_ids", "mm_token_type_ids")}
                images = {k: v for k, v in one.items() if "pixel" in k or k.startswith("image_")}
                with torch.no_grad():
                    expected = model(**tokens, **images).logits[0]
                torch.testing.assert_close(logits[row, begin:end], expected, rtol=1e-5, atol=1e-5)
                compared += 1
    assert compared >= len(COUNTS) // 2


def test_a_state_and_a_mixture_are_of_one_image_processor(folder: Path, tmp_path: Path) -> None:
    """Chat templates can differ; what decides about pixels cannot."""
    build_images(tmp_path, "qwen2_vl", COUNTS, "first")
    before = opened(tmp_path, "first")
    stopped = loader_on(before, batch_size=2)
    next(iter(stopped))
    other = {"chat_template": TEMPLATE.replace("MARKER", repr(MARKERS["qwen2_vl"])).replace(": ", "> ")}
    build_images(tmp_path, "qwen2_vl", COUNTS, "second", tokenizer=other)
    weights = {"first": 1, "second": 1}
    assert len(MixedDataset({"first": before, "second": opened(tmp_path, "second")}, weights)) == 2 * len(COUNTS)
    settings = tmp_path / "qwen2_vl-processor" / "processor_config.json"
    written = json.loads(settings.read_text())
    written["image_processor"]["image_mean"] = [0.5, 0.5, 0.5]
    settings.write_text(json.dumps(written))
    build_images(tmp_path, "qwen2_vl", COUNTS, "first")
    after = opened(tmp_path, "first")
    assert torch.equal(after[0]["input_ids"], before[0]["input_ids"])
    assert not torch.equal(after[0]["pixel_values"], before[0]["pixel_values"])
    with pytest.raises(LoaderStateError, match="data is"):
        loader_on(after, batch_size=2).load_state_dict(stopped.state_dict())
    with pytest.raises(ValueError, match="were built with different image processors"):
        MixedDataset({"second": opened(tmp_path, "second"), "first": after}, weights)
    loader_on(before, batch_size=2).load_state_dict(stopped.state_dict())


def test_trace_prints_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["trace", str(folder / "qwen2_vl.yaml"), "--store", str(folder / "store"), "--step", "0"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["batches"][0]["rows"]
    shown = [row["images"] for row in rows if row["images"]]
    known = pictures(folder, "qwen2_vl")
    assert shown and all(digest in known and digest in printed.replace("\n", "") for row in shown for digest in row)
    assert printed.count("images: ") == len(shown)


def test_arrays(folder: Path) -> None:
    pytest.importorskip("jax")
    for name in ("qwen2_vl", "qwen2_vl-packed"):
        dataset = opened(folder, name)
        right = [batch_digest(batch) for batch in loader_on(dataset, batch_size=2, padding="max_length")]
        arrays = ArrayDataLoader(None, None, dataset, 2, seed=3)
        assert [batch_digest(batch) for batch in arrays] == right
        for batch in islice(ArrayDataLoader(None, None, dataset, 2, seed=3, framework="jax"), 2):
            assert {type(value).__module__.split(".")[0] for value in batch.values()} <= {"jaxlib", "jax", "builtins"}
        with pytest.raises(ValueError, match="to_tf_dataset does not support rows with images"):
            arrays.to_tf_dataset()
        with pytest.raises(ValueError, match="a batch of several rows with images cannot be divided into rows"):
            next(iter(ArrayDataLoader(None, None, dataset, 4, seed=3, collate_fn=lambda rows: rows[0])))
