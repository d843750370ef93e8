"""What Dagster's assets show of rows with images: thumbnails, marks, counts, a picture of their tokens, and rejects."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

from support.dagster_project import Project, runnable
from support.image_rows import Oracle, write_lines, write_pictures, write_yaml
from tokenloom.assets.dagster.names import asset_key
from tokenloom.assets.stage.names import stages_of


def test_a_materialization_shows_the_images_of_rows(tmp_path: Path) -> None:
    project = Project(tmp_path)
    write_pictures(project.pipelines, 12)
    rows = [
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "path": path}, {"type": "text", "text": "What?"}]},
                {"role": "assistant", "content": "This."},
            ]
        }
        for path in [*(f"pictures/{n}.png" for n in range(12)), "pictures/3.png", "pictures/gone.png"]
    ]
    write_lines(project.pipelines / "toy.jsonl", rows)
    processor = Oracle("llava", "parts").save(tmp_path / "processor")
    write_yaml(project.pipelines, "toy.jsonl", processor, validation={"max_reject_fraction": 0.5})
    keys = [asset_key("toy", stage) for stage in stages_of(project.config)]
    job = runnable(project.config, project.root).resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, asset_selection=keys, raise_on_error=False)
    assert result.success
    made = [event.step_materialization_data.materialization for event in result.get_asset_materialization_events()]
    shown = {one.asset_key.path[-1]: one.metadata for one in made}
    media, sequences = shown["media"], shown["sequences"]
    assert {name: media[name].value for name in ("images", "images_shared", "images_animated", "rejected")} == {
        "images": 12, "images_shared": 1, "images_animated": 0, "rejected": 1,
    }  # fmt: skip
    thumbnails = text_of(media["thumbnails"])
    assert len(re.findall(r"!\[image \d+×\d+\]\(data:image/(?:png|jpeg);base64,[\w+/=]+\) image", thumbnails)) == 8
    assert "toy.jsonl:1\n" in thumbnails and len(thumbnails) < 1 << 20
    assert "image_missing" in text_of(media["rejects_summary"])
    assert re.search(r"\[image 1×1, \d+ tokens\]", text_of(sequences["sample"]))
    assert "[image 1×1]" in text_of(shown["prompts"]["sample"])
    picture = text_of(sequences["image_tokens"])
    assert picture.startswith("![image_tokens](data:image/png;base64,")
    assert "the 13 images of the first chunk" in picture
    assert "image_tokens" not in media


def text_of(value: dg.MetadataValue) -> str:
    assert isinstance(value, dg.MarkdownMetadataValue | dg.TextMetadataValue)
    return value.value or ""
