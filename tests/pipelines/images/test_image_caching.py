"""What builds of rows with images keep and compute again, what the store keeps of images, and what is noticed of
missing and damaged ones."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from support import processes
from support.builds import SMALL
from support.image_rows import Built, Oracle, made_rows, paths_of, write_lines, write_pictures, write_yaml
from support.processes import DEADLINE
from support.soak import machine
from support.vision_processors import picture
from tokenloom.cli import main
from tokenloom.errors import StoreError
from tokenloom.loaders import TokenLoader, open_dataset

COUNT, IMAGES = 160, 120


def write_rows(folder: Path) -> Path:
    """Write rows that name images, most of them once, the processor and the YAML."""
    write_pictures(folder, IMAGES, most=60)
    rows = made_rows(COUNT, 1, IMAGES, answers=False)
    write_lines(folder / "rows.jsonl", [{"messages": messages} for messages in rows])
    processor = Oracle("qwen2_vl", "parts").save(folder / "processor")
    return write_yaml(folder, "rows.jsonl", processor, validation={"max_reject_fraction": 1.0})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, and a store with their build."""
    folder = tmp_path_factory.mktemp("original")
    Built.of(write_rows(folder), folder / "store", size=SMALL)
    return folder


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """A copy of that folder, with the times of files."""
    shutil.copytree(original, tmp_path / "copy")
    config = tmp_path / "copy" / "rows.yaml"
    config.write_text(config.read_text().replace(str(original), str(tmp_path / "copy")))
    return tmp_path / "copy"


def rebuilt(folder: Path, store: str = "store", workers: int = 1) -> Built:
    return Built.of(folder / "rows.yaml", folder / store, workers, SMALL)


def computed(made: Built) -> dict[str, int]:
    return {
        name: report.chunks - report.chunks_reused
        for name, report in made.reports.items()
        if report.chunks > report.chunks_reused
    }


def named_once(folder: Path) -> str:
    """An image that only one row names."""
    rows = [json.loads(line)["messages"] for line in (folder / "rows.jsonl").read_text().splitlines()]
    named = [path for messages in rows for path in paths_of(messages)]
    return next(path for path in named if named.count(path) == 1)


def test_an_edited_image_computes_one_chunk_of_each_stage(copied: Path) -> None:
    before = rebuilt(copied)
    assert computed(before) == {}
    assert before.reports["media"].chunks > 2
    picture(77, 33, seed=9).save(copied / named_once(copied))
    after = rebuilt(copied)
    assert computed(after) == dict.fromkeys(("media", "prompts", "tokens", "sequences"), 1)
    assert after.digests() == rebuilt(copied, "cold").digests() != before.digests()
    assert computed(rebuilt(copied)) == {}


def test_pixels_that_change_under_the_same_size_leave_the_tokens(copied: Path) -> None:
    """Ids depend on sizes; the sequences name the digest."""
    before, path = rebuilt(copied), copied / named_once(copied)
    from PIL import Image

    with Image.open(path) as image:
        size = image.size
    picture(*size, seed=123).save(path)
    after = rebuilt(copied)
    assert computed(after)["media"] == 1
    assert after.ids() == before.ids()


def test_an_image_that_comes_and_goes(copied: Path) -> None:
    before, path = rebuilt(copied), copied / named_once(copied)
    content = path.read_bytes()
    path.unlink()
    without = rebuilt(copied)
    assert [code for _, code, _ in without.rejects().values()].count("image_missing") == 1
    assert computed(without)["media"] == 1
    path.write_bytes(content)
    assert rebuilt(copied).digests() == before.digests()


def test_workers_do_not_matter(copied: Path) -> None:
    expected = rebuilt(copied).digests()
    assert rebuilt(copied, "one", 1).digests() == rebuilt(copied, "three", 3).digests() == expected


WATCHED = """
import os, sys
folder, opened = sys.argv[1], []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        opened.append(os.fspath(arguments[0]))
sys.addaudithook(hook)
from tokenloom.cli import main
code = main(["build", f"{folder}/rows.yaml", "--store", f"{folder}/" + sys.argv[2]])
images = [path for path in opened if path.startswith((f"{folder}/pictures/", f"{folder}/{sys.argv[2]}/media/"))]
print(code, len(images), any(name.startswith("PIL.") for name in sys.modules), "transformers" in sys.modules)
"""


def test_an_unchanged_build_opens_no_image(copied: Path) -> None:
    def watched() -> list[str]:
        done = processes.run([sys.executable, "-c", WATCHED, copied, "watched"], check=True)
        assert "channel dimension" not in done.stderr
        return done.stdout.splitlines()[-1].split()

    first = watched()
    assert first[0] == "0"
    assert int(first[1]) >= IMAGES  # the hook sees what is opened
    assert watched() == ["0", "0", "False", "False"]


def test_an_image_of_many_rows_is_stored_once(tmp_path: Path) -> None:
    Oracle("qwen2_vl", "parts").save(tmp_path / "processor")
    picture(50, 40).save(tmp_path / "a.png")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a.png", tmp_path / "b" / "c.png")
    rows = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "path": ("a.png", "b/c.png")[n % 2]}, {"type": "text", "text": f"{n}?"}],
            },
            {"role": "assistant", "content": "A cat."},
        ]
        for n in range(1000)
    ]
    write_lines(tmp_path / "rows.jsonl", [{"messages": row} for row in rows])
    made = Built.of(write_yaml(tmp_path, "rows.jsonl", tmp_path / "processor"), tmp_path / "store", size=SMALL)
    assert made.reports["sequences"].rows_out == 1000
    assert len(media_files(tmp_path / "store")) == 1
    counters = made.reports["media"].counters
    assert counters["images_shared"] + counters["images"] == 1000


def media_files(store: Path) -> list[Path]:
    return [path for path in (store / "media").rglob("*") if path.is_file()]


@machine("kills")
def test_killed_builds_resume_to_the_same_digests(copied: Path, tmp_path: Path) -> None:
    expected, draw, killed = rebuilt(copied).digests(), random.Random(4), 0
    command = [sys.executable, "-m", "tokenloom", "build", copied / "rows.yaml", "--store"]
    begun = time.monotonic()
    processes.run([*command, copied / "whole"], check=True)
    whole = Built(copied / "whole", "rows", {})
    seconds = time.monotonic() - begun
    for part in (draw.uniform(0.2, 0.4), draw.uniform(0.4, 1.0)):
        with processes.started([*command, copied / "killed"], log=tmp_path / "printed") as process:
            try:
                process.wait(part * seconds)
            except TimeoutExpired:
                process.kill()
                killed += process.wait(DEADLINE) == -signal.SIGKILL
    assert killed
    processes.run([*command, copied / "killed"], check=True)
    assert Built(copied / "killed", "rows", {}).ids() == whole.ids()
    assert {path.name for path in media_files(copied / "killed")} == {
        path.name for path in media_files(copied / "whole")
    }
    assert Built.of(copied / "rows.yaml", copied / "killed", size=SMALL).digests() == expected


def batches(folder: Path) -> list[Any]:
    dataset = open_dataset("rows", store=folder / "store")
    found = [batch["input_ids"].tolist() for batch in TokenLoader(dataset, batch_size=16, padding="longest")]
    del dataset
    gc.collect()  # an open dataset keeps its version
    return found


def run(*arguments: str) -> int:
    return main([*arguments])


@pytest.mark.parametrize("damage", ["missing", "damaged", "emptied"])
def test_missing_and_damaged_images_are_noticed_and_stored_again(
    damage: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, whole = rebuilt(copied).digests(), batches(copied)
    store = str(copied / "store")
    assert run("verify", "--store", store) == 0
    victim = sorted(media_files(copied / "store"))[7]
    content = victim.read_bytes()
    victim.chmod(0o644)
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] + b"?" if damage == "damaged" else b"")
    capsys.readouterr()
    with pytest.raises(StoreError, match=victim.name):
        batches(copied)
    assert run("verify", "--store", store) != 0
    output = "".join(capsys.readouterr())
    assert victim.name[:8] in output
    assert "Traceback" not in output
    again = rebuilt(copied)
    assert again.digests() == expected
    assert victim.read_bytes() == content
    assert batches(copied) == whole
    assert run("verify", "--store", store) == 0


def test_gc_keeps_the_images_of_datasets_and_deletes_others(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rebuilt(copied)
    store, path = copied / "store", copied / named_once(copied)
    kept = {file.name for file in media_files(store)}
    whole = batches(copied)
    picture(20, 20, seed=77).save(path)
    rebuilt(copied)
    assert len(media_files(store)) == len(kept) + 1
    long_ago = time.time() - 10**7
    for file in [*store.rglob("*")]:
        if file.is_file():
            os.utime(file, (long_ago, long_ago))
    assert run("gc", "--store", str(store)) == 0
    assert len(media_files(store)) == len(kept) + 1  # nothing is deleted without --delete
    assert run("gc", "--store", str(store), "--keep", "1", "--delete") == 0
    left = {file.name for file in media_files(store)}
    assert len(left) == len(kept)
    assert left != kept
    assert computed(rebuilt(copied)) == {}
    assert len(batches(copied)) == len(whole)
    assert run("verify", "--store", str(store)) == 0
    assert "Traceback" not in "".join(capsys.readouterr())


def test_an_error_of_a_build_is_a_sentence(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = copied / "rows.yaml"
    config.write_text(config.read_text().replace("dataset:\n", "dataset:\n  media: {folder: nowhere}\n"))
    assert run("build", str(config), "--store", str(copied / "none")) != 0
    output = "".join(capsys.readouterr())
    assert "nowhere" in output
    assert "Traceback" not in output
