"""Certified processors: ids, type ids and model inputs equal the processor's own call on rows of images."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers.image_processing_backends import TorchvisionBackend

from support.vision_processors import FAMILIES, picture, save
from tokenloom.resources.processors.certificate import certify
from tokenloom.resources.processors.features import combine
from tokenloom.resources.processors.processor import Processor, ProcessorError

TEXTS = ("", "a cat ", "\n", " ", "\n\n ", "?", "Grüße,", "x\n", "the quick brown fox", "<image", "\t")
ROWS = 30


@pytest.fixture(scope="module", params=FAMILIES)
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Processor:
    folder = save(FAMILIES[request.param](), tmp_path_factory.mktemp(request.param))
    return Processor.load(folder, certify(Processor.load(folder)))


def made_rows(processor: Processor) -> list[tuple[list[str], list[Any]]]:
    """Pieces of text, and the images between them."""
    drawn = random.Random(1)
    extremes = [(1, 1), (800, 300), (2, 1), (3, 100), (800, 5), (55, 56), (57, 113)]
    rows = []
    for number in range(ROWS):
        sizes = [drawn.choice(extremes) for _ in range(drawn.randint(0 if number % 7 == 0 else 1, 6))]
        sizes = [size if drawn.random() < 0.4 else (drawn.randint(1, 300), drawn.randint(1, 300)) for size in sizes]
        pieces = [drawn.choice(TEXTS) for _ in range(len(sizes) + 1)]
        images = [picture(*size, seed=number) for size in sizes]
        rows.append((pieces if sizes else ["only text"], images))
    assert max(len(images) for _, images in rows) == 6 and not all(images for _, images in rows)
    return rows


def own_call(processor: Processor, rows: list[tuple[list[str], list[Any]]]) -> Any:
    texts = [processor.loaded.image_token.join(pieces) for pieces, _ in rows]
    images = [images for _, images in rows]
    return processor.loaded(images=images, text=texts, padding=False, add_special_tokens=False)


def ids_of(processor: Processor, pieces: list[str], images: list[Any]) -> list[int]:
    """The pieces are tokenized one by one, with the text around images, and the ids of images are put between them."""
    texts = list(pieces)
    for place in range(len(images)):
        texts[place] += processor.around[0]
        texts[place + 1] = processor.around[1] + texts[place + 1]
    parts = [processor.loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    for place, image in reversed(list(enumerate(images))):
        width, height = image.size
        parts.insert(place + 1, processor.expansion(width, height, len(images)).ids.tolist())
    return [number for part in parts for number in part]


def test_rows_equal_the_processors_own_call(processor: Processor) -> None:
    rows, tokens = made_rows(processor), processor.certificate
    assert tokens is not None
    for start in range(0, ROWS, 5):
        batch = rows[start : start + 5]
        own = own_call(processor, batch)
        ids = [ids_of(processor, pieces, images) for pieces, images in batch]
        assert ids == [list(row) for row in own["input_ids"]]

        assert set(tokens.type_ids) == own.keys() & {"mm_token_type_ids", "token_type_ids"}
        for name in tokens.type_ids:
            assert [np.isin(row, tokens.ids).astype(int).tolist() for row in ids] == own[name]

        features = [[processor.features(image, len(images)) for image in images] for _, images in batch]
        combined = combine(features, tokens.rules, tokens.levels)
        outside = {"input_ids", "attention_mask", *tokens.type_ids, *processor.loaded.unused_input_names}
        assert set(combined) == own.keys() - outside
        for name, array in combined.items():
            expected = np.array(own[name])
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected, strict=True)


def test_pixels_that_bytes_do_not_hold_stay_floats(processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor.certificate is not None
    rules, levels = processor.certificate.rules, processor.certificate.levels
    assert levels.keys() == {"pixel_values"}
    shown = [picture(100, 70), picture(30, 90)]
    right = combine([[processor.features(image)] for image in shown], rules, levels)
    odd, raw = shown[1], processor.raw_features

    def changed(image: Any, images: int = 1) -> Any:
        inputs = raw(image, images)
        return inputs | {"pixel_values": inputs["pixel_values"] + np.float32(0.5)} if image is odd else inputs

    monkeypatch.setattr(processor, "raw_features", changed)
    features = [[processor.features(image)] for image in shown]
    assert [each["pixel_values"].dtype for (each,) in features] == [np.uint8, np.float32]
    for name, array in combine(features, rules, levels).items():
        np.testing.assert_array_equal(array, right[name], strict=True)


def test_patches_are_counted_from_the_size(processor: Processor) -> None:
    for width, height in ((640, 480), (31, 200), (1, 1)):
        pixels = processor.features(picture(width, height))["pixel_values"]
        crops = pixels.ndim > 3
        expected = pixels.size / (3 * 14 * 14) if crops else pixels.size / pixels.shape[-1]
        assert processor.expansion(width, height).patches == np.ceil(expected)


def test_large_images_take_no_memory_for_pixels(processor: Processor) -> None:
    if processor.name != "Gemma4Processor":  # it resizes with a function of its own
        assert len(processor.expansion(13_000, 13_000).ids)
    with pytest.raises(ProcessorError, match="more than 178956970 pixels"):
        processor.expansion(100_000, 100_000)


def test_a_batch_without_images_has_no_image_inputs() -> None:
    assert combine([[], []], {"pixel_values": "images"}, {}) == combine([], {"pixel_values": "images"}, {}) == {}


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "idefics3", "internvl", "qwen3_vl"])
def test_files_of_older_repositories_give_the_same(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / "new", tmp_path / "old"]
    for folder, older in zip(folders, (False, True), strict=True):
        folder.mkdir()
        save(FAMILIES[name](), folder, older=older)
    new, old = (Processor.load(folder) for folder in folders)
    assert (new.name, new.around) == (old.name, old.around)
    for size in ((64, 48), (300, 20)):
        assert (new.expansion(*size).ids == old.expansion(*size).ids).all()
        for key, array in new.features(picture(*size)).items():
            np.testing.assert_array_equal(old.features(picture(*size))[key], array)


def test_text_around_an_image(tmp_path: Path) -> None:
    processor = Processor.load(save(FAMILIES["gemma3"](), tmp_path))
    assert (processor.image_token, processor.around) == ("<start_of_image>", ("\n\n", "\n\n"))
    assert len(processor.expansion(5, 5).ids) == 18


def test_images_in_rows_with_several_can_be_expanded_differently(tmp_path: Path) -> None:
    processor = Processor.load(save(FAMILIES["llava_onevision"](), tmp_path))
    assert certify(processor).by_count
    assert len(processor.expansion(300, 300, images=2).ids) == len(processor.expansion(300, 300, images=6).ids) == 17
    assert len(processor.expansion(300, 300).ids) > 17
    assert processor.expansion(300, 300, images=2).patches == 16


def test_models_that_share_a_processor_are_told_apart(tmp_path: Path) -> None:
    folders = {kind: tmp_path / kind for kind in ("qwen3_vl", "qwen3_5")}
    for kind, folder in folders.items():
        folder.mkdir()
        save(FAMILIES["qwen3_vl"](), folder, model_type=kind)
    tokens = {kind: certify(Processor.load(folder)) for kind, folder in folders.items()}
    assert tokens["qwen3_vl"].packs and tokens["qwen3_vl"].mrope and not tokens["qwen3_vl"].reason
    assert not tokens["qwen3_5"].packs and tokens["qwen3_5"].mrope and "linear attention" in tokens["qwen3_5"].reason


def test_pixels_do_not_depend_on_whether_torchvision_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(FAMILIES["qwen2_vl"](), tmp_path)
    right = Processor.load(folder)
    own = type(right.loaded).from_pretrained.__func__

    class Torchvision(TorchvisionBackend):
        """Stands for an image processor that transformers prefers where torchvision is installed."""

    def preferred(cls: Any, *arguments: Any, **options: Any) -> Any:
        loaded = own(cls, *arguments, **options)
        loaded.image_processor = object.__new__(Torchvision)
        return loaded

    monkeypatch.setattr(transformers.Qwen2VLProcessor, "from_pretrained", classmethod(preferred))
    found = Processor.load(folder)
    assert isinstance(found.loaded.image_processor, transformers.Qwen2VLImageProcessorPil)
    shown = picture(300, 211)
    for name, array in right.features(shown).items():
        np.testing.assert_array_equal(found.features(shown)[name], array, strict=True)
    other = replace(certify(right), image_processor="Torchvision")
    with pytest.raises(ProcessorError, match="certified with Torchvision, but Qwen2VLImageProcessorPil is loaded"):
        Processor.load(folder, other)
