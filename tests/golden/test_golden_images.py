"""Keys, output digests, rejects and pixels of datasets with images: a changed output needs a new stage version.

Write the new digests on purpose only: `PYTHONPATH=tests python tests/golden/test_golden_images.py`. With other versions
of the libraries that decode images, keys and pixels can differ, and are not compared.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from support.image_rows import Built, Oracle, write_lines, write_yaml
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.resources.processors.pixels import LOSSY, decoders
from tokenloom.resources.store import ArtifactStore

GOLDEN = Path(__file__).parent / "golden_image_digests.json"
FAMILIES = {"qwen2_vl": "parts", "idefics3": "idefics"}


def png(width: int, height: int) -> bytes:
    """Return a PNG of a pattern, the same bytes on every machine: its pixels are not compressed."""
    rows = b"".join(
        b"\0" + bytes((7 * x * y + 50 * band) % 256 for x in range(width) for band in range(3)) for y in range(height)
    )

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    stored = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    stored += struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", stored) + part(b"IEND", b"")


def said(*parts: Any) -> list[dict[str, Any]]:
    return [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]


def write_rows(folder: Path) -> None:
    jpeg, webp = map(b64decode, LOSSY)
    for name, content in {"a.png": png(70, 45), "b.png": png(20, 90), "c.jpg": jpeg, "d.webp": webp}.items():
        (folder / name).write_bytes(content)
    (folder / "damaged.jpg").write_bytes(jpeg[:-100])

    def shown(path: str) -> dict[str, str]:
        return {"type": "image", "path": path}

    url = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"}}
    asked = [
        said(shown("a.png"), "What is it?"),
        said("Left ", shown("b.png"), " or right ", shown("c.jpg")),
        said(shown("d.webp"), shown("a.png"), url, "All?"),
        "Only text",
        said(shown("missing.png"), "Lost"),
        said(shown("damaged.jpg"), "Damaged"),
    ]
    answers = [said("This:", shown("c.jpg")), said("The left one"), said(f"{len(asked)} of them")]
    rows = [
        {
            "messages": [
                {"role": "user", "content": question if isinstance(question, list) else said(question)},
                {"role": "assistant", "content": answers[number % 3]},
            ]
        }
        for number, question in enumerate(asked * 2)
    ]
    write_lines(folder / "rows.jsonl", rows)


def made(family: str, folder: Path) -> dict[str, Any]:
    """Build the rows with a processor, and load them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder)
    processor = Oracle(family, FAMILIES[family]).save(folder / "processor")
    sections = {"prompt_template": {"add_eos": False}, "validation": {"max_reject_fraction": 1.0}}
    built = Built.of(write_yaml(folder, "rows.jsonl", processor, **sections), folder / "store")
    store, found = ArtifactStore(built.store), dict[str, Any]()
    for name, digest in built.digests().items():
        keys = [chunk.key for chunk in store.manifest(built.name, name).chunks]
        found[name] = {"digest": digest, "keys": blake3("\n".join(keys).encode()).hexdigest()}
    found["rejected"] = dict(sorted(Counter(code for _, code, _ in built.rejects().values()).items()))
    loader = TokenLoader(open_dataset(built.name, store=built.store), batch_size=4, padding="longest", drop_last=False)
    inputs = [
        [name, str(array.dtype), list(array.shape), blake3(np.ascontiguousarray(array).tobytes()).hexdigest()]
        for batch in loader
        for name, array in sorted((name, value.numpy()) for name, value in batch.items())
    ]
    return found | {"inputs": inputs, "decoders": decoders(torchvision=False)}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_with_images_keep_their_keys_digests_and_pixels(family: str, tmp_path: Path) -> None:
    expected, found = json.loads(GOLDEN.read_text())[family], made(family, tmp_path)
    if found["decoders"] != expected["decoders"]:
        for facts in (expected, found):
            del facts["decoders"], facts["inputs"], facts["tokenizer"]
            facts.update({name: facts[name]["digest"] for name in ("tokens", "sequences")})
    assert json.loads(json.dumps(found)) == expected


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as at:
        frozen = {family: made(family, Path(at) / family) for family in FAMILIES}
    GOLDEN.write_text(json.dumps(frozen, indent=2) + "\n")
    sys.exit(0)
