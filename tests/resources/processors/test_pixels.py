"""Pixels that depend on a version of a library: the certificate has them, and other ones are refused."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

from support.image_rows import Built, Oracle, write_lines, write_yaml
from support.vision_processors import FAMILIES, picture, save
from tokenloom.errors import StoreError
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.loaders.reading.images import ImageSource
from tokenloom.resources.processors import pixels
from tokenloom.resources.processors.certificate import CertifiedProcessor, certify
from tokenloom.resources.processors.processor import CERTIFICATE, ImageTokens, Processor, ProcessorError

Change = Callable[[pytest.MonkeyPatch], None]


def brighter(image: Image.Image) -> Image.Image:
    """An image whose middle differs by 1."""
    changed = np.array(image)
    changed[changed.shape[0] // 2, changed.shape[1] // 2, 0] ^= 1
    return Image.fromarray(changed)


def other_jpeg(patch: pytest.MonkeyPatch, form: bytes = b"\xff\xd8") -> None:
    own = pixels.open_image

    def opened(data: bytes) -> Image.Image:
        return brighter(own(data)) if data.startswith(form) else own(data)

    patch.setattr(pixels, "open_image", opened)


def other_webp(patch: pytest.MonkeyPatch) -> None:
    other_jpeg(patch, b"RIFF")


def other_resize(patch: pytest.MonkeyPatch) -> None:
    own = Image.Image.resize
    patch.setattr(Image.Image, "resize", lambda self, *given, **named: brighter(own(self, *given, **named)))


def other_conversion(patch: pytest.MonkeyPatch) -> None:
    own = Image.Image.convert

    def converted(self: Image.Image, mode: str = "RGB", *given: Any, **named: Any) -> Image.Image:
        result = own(self, mode, *given, **named)
        return brighter(result) if self.mode == "CMYK" else result

    patch.setattr(Image.Image, "convert", converted)


@pytest.mark.parametrize("change", [other_jpeg, other_webp, other_resize, other_conversion])
def test_other_pixels_than_the_certified_ones_are_refused(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(FAMILIES["llava"](), tmp_path)
    tokens = certify(Processor.load(folder))
    assert Processor.load(folder, tokens).certificate is tokens
    change(monkeypatch)
    with pytest.raises(
        ProcessorError, match=r"LlavaProcessor makes other pixels .* here, with Pillow [\d.]+, libwebp "
    ):
        Processor.load(folder, replace(tokens, decoders="Pillow 11.0.0"))
    other = certify(Processor.load(folder))
    assert other.pixels != tokens.pixels
    assert replace(other, pixels=tokens.pixels) == tokens


def test_another_version_with_the_same_pixels_is_taken(tmp_path: Path) -> None:
    folder = save(FAMILIES["qwen2_vl"](), tmp_path)
    tokens = replace(certify(Processor.load(folder)), decoders="Pillow 11.0.0, libjpeg 9.5")
    found = Processor.load(folder, tokens)
    (folder / CERTIFICATE).write_bytes(tokens.to_bytes())
    source = ImageSource(folder)
    assert found.features(picture(30, 20)) and source.processor.certificate == tokens
    before = source.digest
    (folder / CERTIFICATE).write_bytes(replace(tokens, decoders="Pillow 12").to_bytes())
    assert ImageSource(folder).digest == before
    (folder / CERTIFICATE).write_bytes(replace(tokens, pixels="other").to_bytes())
    assert ImageSource(folder).digest != before


def test_certificates_without_pixels_are_read_and_keep_their_bytes(tmp_path: Path) -> None:
    folder = save(FAMILIES["llava"](), tmp_path)
    written = json.loads(certify(Processor.load(folder)).to_bytes())
    assert written.pop("pixels") and written.pop("decoders")
    earlier = json.dumps(written, sort_keys=True, ensure_ascii=False).encode()
    tokens = ImageTokens.from_bytes(earlier)
    assert tokens.to_bytes() == earlier
    assert Processor.load(folder, tokens).features(picture(5, 5))


def test_a_certificate_is_kept_for_the_versions_of_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, kept = save(FAMILIES["llava"](), tmp_path), list[dict[str, str]]()

    class Kept:
        def recalled(self, name: str, version: int, depends: Any, compute: Callable[[], str]) -> str:
            kept.append(dict(depends))
            return compute()

    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    first, own = CertifiedProcessor(files, Kept()).tokens, metadata.distributions
    pillow = SimpleNamespace(version="1", read_text=lambda name: "pillow.libs/libjpeg-b1.so.62,sha256=b,1")
    monkeypatch.setattr("PIL.features.version_feature", lambda name: "9.9" if name == "libjpeg_turbo" else None)
    monkeypatch.setattr(
        metadata, "distributions", lambda **given: [pillow] if given == {"name": "pillow"} else own(**given)
    )
    second = CertifiedProcessor(files, Kept()).tokens
    assert {name for name in kept[0] if kept[0][name] != kept[1][name]} == {"decoders"}
    assert "libjpeg-turbo 9.9" in second.decoders
    assert first.decoders.startswith(f"Pillow {Image.__version__}, ")
    assert second == replace(first, decoders=second.decoders)


def test_a_dataset_does_not_load_other_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = Oracle("qwen2_vl", "parts")
    (shown := picture(90, 60)).save(tmp_path / "a.png")
    asked = [{"type": "image", "path": "a.png"}, {"type": "text", "text": "What?"}]
    write_lines(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": asked}, *_answer("A cat")]}])
    made = Built.of(write_yaml(tmp_path, "rows.jsonl", oracle.save(tmp_path / "processor")), tmp_path / "store")

    def first() -> Any:
        return next(iter(TokenLoader(open_dataset(made.name, store=made.store), batch_size=1, padding="longest")))

    own = oracle.processor.image_processor([shown], return_tensors="pt")
    assert torch.equal(first()["pixel_values"], own["pixel_values"])
    other_resize(monkeypatch)
    with pytest.raises(StoreError, match="Qwen2VLProcessor makes other pixels of the same images here"):
        first()


def _answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_the_files_are_decoded_as_transformers_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in pixels.LOSSY:
        np.testing.assert_array_equal(np.array(pixels.open_image(b64decode(content))), np.array(load_image(content)))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(__version__="0.28.0"))
    assert pixels.decoders(torchvision=True) == (
        f"{pixels.decoders(torchvision=False)}, torch {torch.__version__}, torchvision 0.28.0"
    )
