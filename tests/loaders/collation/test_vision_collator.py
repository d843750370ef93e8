"""Vision collators: every form of an image gives the same pixels, normalized as configured."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch.utils.data import DataLoader

from tokenloom.errors import DataValidationError
from tokenloom.loaders import TaskSpec, VisionCollator, VisionDataCollator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def forms(pixels: np.ndarray) -> list[Any]:
    """Return a uint8 image [height, width, 3] or [height, width] in every form that a row can have."""
    image, tensor = Image.fromarray(pixels), torch.from_numpy(pixels)
    first = tensor.permute(2, 0, 1) if pixels.ndim == 3 else tensor[None]
    return [
        pixels,
        first.numpy(),
        first,
        first.to(torch.int64),
        first.to(torch.float32) / 255,
        image,
        encoded(image),
        {"bytes": encoded(image), "path": None},
        pixels.tolist(),
    ]


def normalized(pixels: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """Return [channels, height, width], computed pixel by pixel and channel by channel."""
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, None]
    height, width, channels = pixels.shape
    out = np.empty((channels, height, width))
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                out[channel, row, column] = (float(pixels[row, column, channel]) / 255 - mean[channel]) / std[channel]
    return out


IMAGES = st.tuples(st.integers(4, 6), st.integers(4, 6), st.sampled_from([1, 3])).flatmap(
    lambda shape: arrays(np.uint8, shape if shape[2] == 3 else shape[:2])
)


@given(IMAGES)
def test_all_forms_of_an_image_are_the_same_pixels(pixels: np.ndarray) -> None:
    channels = 3 if pixels.ndim == 3 else 1
    mean, std = (MEAN, STD) if channels == 3 else ((sum(MEAN) / 3,), (sum(STD) / 3,))
    expected = normalized(pixels, mean, std)
    for form in forms(pixels):
        batch = VisionDataCollator()([{"pixel_values": form}, {"pixel_values": form}])
        assert batch["pixel_values"].dtype == torch.float32 and batch["pixel_values"].is_contiguous()
        np.testing.assert_allclose(batch["pixel_values"], np.stack([expected, expected]), atol=1e-5)


@given(IMAGES, st.sampled_from(["imagenet", "cifar10", "custom", "one", False]))
def test_normalizations(pixels: np.ndarray, kind: Any) -> None:
    options: dict[str, Any] = {"normalize": kind}
    mean, std = MEAN, STD
    if kind == "cifar10":
        mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    elif kind == "custom":
        mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
        options = {"mean": list(mean), "std": list(std)}
    elif kind == "one":
        mean, std = (0.5,) * 3, (0.25,) * 3
        options = {"normalize": True, "mean": 0.5, "std": [0.25]}
    elif kind is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    if pixels.ndim == 2:
        mean, std = [sum(mean) / 3], [sum(std) / 3]
    before = pixels.copy()
    found = VisionDataCollator(**options)([{"image": pixels}])["pixel_values"][0]
    np.testing.assert_allclose(found, normalized(pixels, mean, std), atol=1e-5)
    assert (pixels == before).all()


def test_what_is_given_is_not_changed() -> None:
    image = torch.rand(3, 4, 4)
    before = image.clone()
    VisionDataCollator()([{"pixel_values": image}])
    assert torch.equal(image, before)


def test_color_modes_are_those_of_pil() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    grey = VisionDataCollator(normalize=False, mode="greyscale")([{"image": pixels}, {"image": pixels[:, :, 0]}])
    assert grey["pixel_values"].shape == (2, 1, 5, 6)
    theirs = np.asarray(Image.fromarray(pixels).convert("L")) / 255
    np.testing.assert_allclose(grey["pixel_values"][0, 0], theirs, atol=1 / 255)
    np.testing.assert_allclose(grey["pixel_values"][1, 0], pixels[:, :, 0] / 255, atol=1e-6)
    rgb = VisionDataCollator(normalize=False, mode="rgb")([{"image": pixels}, {"image": pixels[:, :, 0]}])
    assert rgb["pixel_values"].shape == (2, 3, 5, 6)
    np.testing.assert_allclose(rgb["pixel_values"][0], pixels.transpose(2, 0, 1) / 255, atol=1e-6)
    for channel in range(3):
        np.testing.assert_allclose(rgb["pixel_values"][1, channel], pixels[:, :, 0] / 255, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3), ("CMYK", 3), ("I;16", 1), ("F", 1)],
)
def test_pil_modes(mode: str, channels: int) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 5), 65535, np.uint16))
    elif mode == "F":
        image = Image.fromarray(np.ones((4, 5), np.float32))
    else:
        image = Image.new("RGB", (5, 4), "white").convert(mode)
    pixels = VisionDataCollator(normalize=False)([{"image": image}])["pixel_values"]
    assert pixels.shape == (1, channels, 4, 5)
    np.testing.assert_allclose(pixels, 1.0)


def test_files_are_turned_as_their_orientation_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera held upright
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    (tmp_path / "a.png").write_bytes(encoded(image, exif=exif))
    upright = np.rot90(np.asarray(image), -1) / 255
    for form in ((tmp_path / "a.png").read_bytes(), {"path": str(tmp_path / "a.png"), "bytes": None}):
        pixels = VisionDataCollator(normalize=False)([{"image": form}])["pixel_values"]
        np.testing.assert_allclose(pixels[0, 0], upright, atol=1e-6)


def test_sizes_are_brought_to_one_and_flat_images_stay_flat() -> None:
    rows = [{"image": np.full((7, 9, 3), 51, np.uint8)}, {"image": np.full((20, 5, 3), 51, np.uint8)}]
    for size, shape in ((8, (8, 8)), ((4, 6), (4, 6))):
        pixels = VisionDataCollator(normalize=False, size=size)(rows)["pixel_values"]
        assert pixels.shape == (2, 3, *shape)
        np.testing.assert_allclose(pixels, 0.2, atol=1e-6)


@pytest.mark.parametrize("name", ["labels", "label"])
@pytest.mark.parametrize(
    ("labels", "dtype", "expected"),
    [
        ([3, 1], torch.int64, [3, 1]),
        ([np.int32(3), np.int32(1)], torch.int64, [3, 1]),
        ([torch.tensor(3), torch.tensor(1)], torch.int64, [3, 1]),
        ([True, False], torch.int64, [1, 0]),
        ([0.5, 1.5], torch.float32, [0.5, 1.5]),
        ([np.array([1.0, 0.0]), np.array([0.0, 1.0])], torch.float32, [[1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_labels(name: str, labels: list[Any], dtype: torch.dtype, expected: Any) -> None:
    image = np.zeros((4, 4), np.uint8)
    batch = VisionDataCollator()([{"img": image, name: label} for label in labels])
    assert set(batch) == {"pixel_values", "labels"}
    assert (batch["labels"].dtype, batch["labels"].tolist()) == (dtype, expected)


def test_rows_may_be_tuples_or_images_alone_or_hold_more() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    assert VisionDataCollator()([(image, 3), (image, 4)])["labels"].tolist() == [3, 4]
    assert set(VisionDataCollator()([image, image])) == {"pixel_values"}
    batch = VisionDataCollator()([{"image": image, "id": "a", "weight": 2.0}])
    assert batch["id"] == ["a"] and batch["weight"].tolist() == [2.0]
    task = TaskSpec("birds", "vision", "classification", input_fields=("photo",), target_field="species")
    batch = VisionCollator(task)([{"photo": image, "species": 2, "label": 9}])
    assert batch["labels"].tolist() == [2] and batch["label"].tolist() == [9]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "at least one"),
        ([{"x": np.zeros((4, 4))}], "no image column 'pixel_values or image or img'; pass image_column=, one of x"),
        (
            [{"image": np.zeros((4, 4))}, {"img": np.zeros((4, 4))}],
            "rows 0 and 1 of the batch differ in 'image', 'img'",
        ),
        ([{"image": np.zeros((4, 4))}, {"image": b"no image"}], "row 1 of the batch: cannot be decoded"),
        ([{"image": {"path": "/nowhere.png", "bytes": None}}], "row 0 of the batch: cannot be decoded"),
        ([{"image": {"path": None, "bytes": None}}], "row 0 of the batch: cannot be decoded"),
        ([{"image": None}], "row 0 of the batch: must be an array, .* got NoneType"),
        ([{"image": "a.png"}], "row 0 of the batch: must be an array, .* got str"),
        ([{"image": np.zeros((4, 4, 4))}], r"got shape \[4, 4, 4\]"),
        ([{"image": np.zeros((4, 4))}, {"image": np.zeros((4, 5))}], r"row 1 .* has shape \[1, 4, 5\], .* pass size="),
        ([{"image": np.zeros((4, 4))}, {"image": np.zeros((4, 4), np.uint8)}], "row 1 .* has dtype torch.uint8"),
        ([{"image": np.full((4, 4), 300)}], "between 0 and 255"),
        ([{"image": np.zeros((4, 4)), "label": "cat"}], "labels 'label' must be numbers"),
        ([{"image": np.zeros((4, 4)), "label": None}], "default collator"),
    ],
)
def test_rows_that_do_not_fit_are_told_with_their_place(rows: Any, told: str) -> None:
    with pytest.raises(DataValidationError, match=told):
        VisionDataCollator()(rows)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"normalize": "mnist"}, "normalize must be True, False or one of imagenet, cifar10.*'mnist'"),
        ({"mean": [0.5]}, "pass both mean and std"),
        ({"mean": [0.5], "std": [0.0]}, "above 0"),
        ({"mean": [0.5, 0.5], "std": [1]}, "mean must be .* got 2 numbers"),
        ({"normalize": False, "mean": 0, "std": 1}, "normalize=False"),
        ({"mode": "grey"}, "mode must be .* got 'grey'"),
        ({"size": 0}, "size"),
    ],
)
def test_wrong_arguments_are_told(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        VisionDataCollator(**options)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_of_workers_are_those_of_the_process_itself(method: str) -> None:
    noise = np.random.default_rng(0)
    rows: Any = [{"image": noise.integers(0, 256, (4, 4, 3), np.uint8), "label": n} for n in range(5)]
    collator = VisionCollator(TaskSpec.vision_tiny(), size=6)
    assert torch.equal(pickle.loads(pickle.dumps(collator))(rows)["pixel_values"], collator(rows)["pixel_values"])
    alone = list(DataLoader(rows, 2, collate_fn=collator))
    workers = list(DataLoader(rows, 2, collate_fn=collator, num_workers=2, multiprocessing_context=method))
    for one, other in zip(alone, workers, strict=True):
        assert torch.equal(one["pixel_values"], other["pixel_values"]) and torch.equal(one["labels"], other["labels"])


def test_real_photos(real_data: Path) -> None:
    files = sorted((real_data / "vision" / "clothing").rglob("*.jpg"))
    names = sorted({file.parent.name for file in files})
    rows = [{"image": file.read_bytes(), "label": names.index(file.parent.name)} for file in files]
    batch = VisionDataCollator(size=64)(rows)
    assert batch["pixel_values"].shape == (30, 3, 64, 64)
    assert batch["labels"].bincount().tolist() == [3] * 10
    opened = VisionDataCollator(size=64)([{"image": Image.open(file)} for file in files])
    theirs = []
    for file in files:
        photo = Image.open(file).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR)
        theirs.append((np.asarray(photo) / 255 - MEAN) / STD)
    for found in (batch, opened):
        difference = found["pixel_values"].permute(0, 2, 3, 1).numpy() - np.stack(theirs)
        assert np.abs(difference).max() < 0.05  # PIL rounds to whole numbers between its two passes
