"""Images in rows that are shown: one mark in place of the tokens of each, as built and straight from the source."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

from support.image_rows import Built, Oracle, made_rows, paths_of, write_lines, write_pictures, write_yaml
from support.vision_processors import FAMILIES
from tokenloom.assets.shown_rows.thumbnails import MOST, MOST_CHARACTERS, thumbnails
from tokenloom.assets.shown_rows.token_runs import RowReader, image_places
from tokenloom.config import PipelineConfig
from tokenloom.errors import StoreError
from tokenloom.resources.processors.processor import Processor
from tokenloom.resources.store import ArtifactStore
from tokenloom.starter.source_rows import source_rows

SIZES = ((64, 48), (300, 200), (10, 400), (1, 1), (113, 57))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_each_image_are_found_in_a_sequence(family: str) -> None:
    processor, draw = Processor(FAMILIES[family](), family), random.Random(7)
    for _ in range(40):
        ids, expected, counts = list[int](), list[tuple[int, int]](), list[int]()
        for _ in range(draw.randint(0, 5)):
            ids += [draw.randrange(300) for _ in range(draw.choice((0, 0, 1, 2, 9)))]
            tokens = processor.expansion(*draw.choice(SIZES)).ids.tolist()
            expected.append((len(ids), len(ids) + len(tokens)))
            counts.append(len(tokens))
            ids += tokens
        ids += [draw.randrange(300) for _ in range(draw.randrange(4))]
        assert [*image_places(np.array(ids, np.uint16), processor.image_token_ids, counts)] == expected


@pytest.mark.parametrize(
    "length",
    [{"packing": "none"}, {"packing": "best_fit", "media_budget": 3000}, {"strategy": "drop_turns"}],
    ids=["rows", "packed", "drop_turns"],
)
def test_rows_from_the_source_are_those_of_a_build(tmp_path: Path, length: dict[str, Any]) -> None:
    oracle = Oracle("qwen2_vl", "parts")
    rows, pictures = made_rows(24, 3, 8, answers=False), write_pictures(tmp_path, 8)
    pictures_of = [[pictures[path].size for path in paths_of(messages)] for messages in rows]
    rows[5] = [
        {"role": "user", "content": [{"type": "image", "path": "pictures/gone.png"}]},
        {"role": "assistant", "content": "?"},
    ]
    write_lines(tmp_path / "rows.jsonl", [{"messages": messages} for messages in rows])
    most = 140 if length.get("strategy") else 600
    path = write_yaml(
        tmp_path, "rows.jsonl", oracle.save(tmp_path / "processor"), tokenizer={"max_length": most}, length=length,
        validation={"max_reject_fraction": 1.0, "max_unstopped_fraction": 1.0},
    )  # fmt: skip
    built = Built.of(path, tmp_path / "store")
    reader, config = RowReader(ArtifactStore(built.store), "rows"), PipelineConfig.from_file(path)
    shown = [reader.read(row) for row in range(24)]
    assert list(source_rows(config, range(24))) == shown
    assert shown[5].code == "image_missing"
    tables = [table for _, table in built.tables("sequences")]
    counted = [image["tokens"] for table in tables for row in table["media"].to_pylist() for image in row]
    packed, marks = length["packing"] != "none" if "packing" in length else False, list[int]()
    for number, row in enumerate(shown):
        images = [run for run in row.runs if run.image is not None]
        assert all(run.text == f"[{image_text(run)}]" and run.control and not run.trained for run in images)
        assert "<|image_pad|>" not in "".join(run.text for run in row.runs)
        marks += [run.tokens for run in images]
        if not packed and not row.absence:
            sizes = [(run.image.width, run.image.height) for run in images if run.image is not None]
            assert sizes == pictures_of[number][len(pictures_of[number]) - len(sizes) :]
    assert set(marks) == set(counted) and (packed or sorted(marks) == sorted(counted))
    if length.get("strategy"):
        dropped = [run.text for row in shown for run in row.runs if run.dropped]
        assert any("[image, " in text for text in dropped)


def image_text(run: Any) -> str:
    return f"image {run.image.width}×{run.image.height}, {run.tokens} token{'s' * (run.tokens != 1)}"


def test_a_prompt_for_inference_shows_its_images(tmp_path: Path) -> None:
    oracle = Oracle("idefics3", "parts")
    write_pictures(tmp_path, 3)
    parts = [{"type": "image", "path": "pictures/2.png"}, {"type": "text", "text": "What?"}]
    rows = [{"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]}]
    path = write_yaml(tmp_path, write_lines(tmp_path / "rows.jsonl", rows).name, oracle.save(tmp_path / "processor"))
    config = PipelineConfig.from_file(path)
    (prompt,), (row,) = source_rows(config, [0], inference=True), source_rows(config, [0])
    images = [[run for run in shown.runs if run.image is not None] for shown in (prompt, row)]
    assert len(images[0]) == 1 and images[0] == images[1]
    text = "".join(run.text for run in row.runs)
    assert text.startswith("".join(run.text for run in prompt.runs)) and "A cat." in text
    assert text.count("[image 28×28, ") == 1 and "<image>" not in text and "<fake_token_around_image>" not in text


def test_thumbnails_are_bounded_and_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path, 60, most=2000)
    contents = {name: (tmp_path / name).read_bytes() for name in pictures}
    contents["pictures/1.png"] = b"not an image"

    def read(name: str) -> bytes:
        if name == "pictures/2.png":
            raise StoreError("gone")
        return contents[name]

    found = thumbnails([*pictures, *pictures], read)
    assert 20 < len(found) <= MOST and sum(map(len, found.values())) <= MOST_CHARACTERS
    assert not {"pictures/1.png", "pictures/2.png"} & {*found}
    assert all(url.startswith(("data:image/jpeg;base64,", "data:image/png;base64,")) for url in found.values())
    assert not thumbnails(["pictures/1.png"], read)
