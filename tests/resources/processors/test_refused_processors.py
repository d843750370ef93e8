"""Processors that cannot be used are refused by name, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.resolved_tokenizers import resolve
from support.vision_processors import FAMILIES, gemma3, mllama, paligemma, picture, save
from tokenloom.errors import ConfigError
from tokenloom.resources.processors.certificate import PACKS, UNPACKED, certify, unpacked_reason
from tokenloom.resources.processors.processor import Processor, ProcessorError


def test_pan_and_scan_writes_text_that_depends_on_the_size() -> None:
    processor = gemma3(do_pan_and_scan=True)
    processor.images_kwargs = processor.images_kwargs | {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 20,
    }
    with pytest.raises(
        ProcessorError, match=r"Gemma3Processor cannot be used: it writes .*'Here is the original image"
    ):
        certify(Processor(processor))


def test_paligemma_moves_images_before_the_start_token() -> None:
    with pytest.raises(ProcessorError, match=r"PaliGemmaProcessor cannot be used: .* other token ids"):
        certify(Processor(paligemma()))


def test_mllama_is_refused() -> None:
    with pytest.raises(ProcessorError, match="MllamaProcessor cannot be used"):
        certify(Processor(mllama()))


def test_inputs_that_cannot_be_combined_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = FAMILIES["llava"]()
    own = type(loaded).__call__

    def call(self, *args, **options):
        output = own(self, *args, **options)
        output["places"] = [[len(row)] for row in output["input_ids"]]
        return output

    monkeypatch.setattr(type(loaded), "__call__", call)
    with pytest.raises(ProcessorError, match="LlavaProcessor cannot be used: places of a batch"):
        certify(Processor(loaded))


def test_type_ids_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = FAMILIES["qwen2_vl"]()
    monkeypatch.setattr(
        type(loaded), "create_mm_token_type_ids", lambda self, ids: [[0] * len(row) for row in ids], raising=False
    )
    with pytest.raises(ProcessorError, match="its mm_token_type_ids differ"):
        certify(Processor(loaded))


def test_ids_that_depend_on_pixels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = FAMILIES["llava"]()

    def replaced(self, image_inputs, image_idx, **_):
        return self.image_token * (2 + bool(image_inputs["pixel_values"][image_idx].max() > 0))

    monkeypatch.setattr(type(loaded), "replace_image_token", replaced)
    with pytest.raises(ProcessorError, match="other token ids"):
        certify(Processor(loaded))


def test_a_size_that_the_processor_rejects() -> None:
    processor = Processor(FAMILIES["qwen2_vl"]())
    with pytest.raises(ProcessorError, match="rejects an image of 3000x2 pixels: absolute aspect ratio"):
        processor.expansion(3000, 2)
    with pytest.raises(ProcessorError, match="rejects an image: absolute aspect ratio"):
        processor.features(picture(3000, 2))
    with pytest.raises(ProcessorError, match="0x5 pixels is empty"):
        processor.expansion(0, 5)


def test_folders_without_a_usable_processor(tmp_path: Path) -> None:
    with pytest.raises(ProcessorError, match=r"no file in .* names a processor class"):
        Processor.load(tmp_path)
    config = tmp_path / "preprocessor_config.json"
    for name, message in {
        "WhisperProcessor": "does not process images",
        "CustomVLProcessor": "is not a processor of transformers",
        "PixtralProcessor": "PixtralProcessor (cannot be loaded|needs a library that is not installed: PixtralProc)",
        "Qwen2VLProcessor": "Qwen2VLProcessor cannot be loaded",
    }.items():
        config.write_text(json.dumps({"processor_class": name}))
        with pytest.raises(ProcessorError, match=message):
            Processor.load(tmp_path)
    config.write_text("{")
    with pytest.raises(ProcessorError, match="is not valid JSON"):
        Processor.load(tmp_path)


@pytest.mark.parametrize("name", ["video_preprocessor_config.json", "config.json", "chat_template.jinja"])
def test_a_folder_without_an_image_processor_is_refused(tmp_path: Path, tokenizer_folder: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"has no processor_config\.json or preprocessor_config\.json; use a folder"):
        resolve(tokenizer_folder, processor=str(tmp_path))


def test_no_code_of_the_folder_is_run(tmp_path: Path) -> None:
    save(FAMILIES["llava"](), tmp_path)
    path = tmp_path / "processor_config.json"
    content = json.loads(path.read_text()) | {"processor_class": "MyProcessor", "auto_map": {"AutoProcessor": "my.My"}}
    path.write_text(json.dumps(content))
    (tmp_path / "my.py").write_text("raise SystemExit('run')")
    with pytest.raises(ProcessorError, match=r"MyProcessor in .* is not a processor of transformers"):
        Processor.load(tmp_path)


def test_an_unknown_model_does_not_pack() -> None:
    assert unpacked_reason("NewProcessor") == "it is not known whether its model can take packed rows"
    assert not any(map(unpacked_reason, PACKS)) and not UNPACKED.keys() & set(PACKS)
