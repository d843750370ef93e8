"""An edit recomputes only its own chunks, and gives the same output as a cold build of the new input."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.builds import SMALL, build, digests, frozen_tokenizer
from support.datasets_on_disk import STAGES, TOKENIZER, rows, write_dataset
from support.soak import SOAK, each
from tokenloom.assets.building import build as building
from tokenloom.resources.store import ArtifactStore

ROUNDS = 40 if SOAK else 2
Edit = Callable[[list[str], random.Random], None]

CHUNKED = ("raw", "schema", "columns", "prompts", "tokens", "sequences")


def line(draw: random.Random) -> str:
    (row,) = rows(1, seed=draw.randrange(1 << 30))
    return json.dumps(row, ensure_ascii=False)


def append(lines: list[str], draw: random.Random) -> None:
    lines.append(line(draw))


def insert(lines: list[str], draw: random.Random) -> None:
    lines.insert(draw.randrange(len(lines)), line(draw))


def delete(lines: list[str], draw: random.Random) -> None:
    del lines[draw.randrange(len(lines))]


def change(lines: list[str], draw: random.Random) -> None:
    lines[draw.randrange(len(lines))] = line(draw)


def at_the_start(lines: list[str], draw: random.Random) -> None:
    lines.insert(0, line(draw))


def break_off(lines: list[str], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    lines[at] = lines[at][:20]


@pytest.mark.parametrize("trained", [False, True])
def test_random_edits_give_the_manifests_of_a_cold_build(
    tmp_path: Path, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "LARGE_BYTES", 0)  # a thread prepares later stages, as in large builds
    config = write_dataset(
        tmp_path,
        500,
        dataset={"name": "small.jsonl", "keep_columns": ["output"], "val_split": 0.1},
        length={"packing": "best_fit"},
        validation={"max_reject_fraction": 0.9},
        tokenizer=TOKENIZER if trained else frozen_tokenizer(tmp_path),
    )
    draw, data = random.Random(trained), tmp_path / "small.jsonl"
    seen = [data.read_text(encoding="utf-8").splitlines()]
    for _ in range(ROUNDS):
        lines = list(seen[-1] if draw.random() < 0.8 else draw.choice(seen))
        for _ in range(draw.randint(0, 6)):
            draw.choice([append, insert, delete, change, at_the_start, break_off])(lines, draw)
        seen.append(lines)
        data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made = build(config, tmp_path / "store"), build(config, tmp_path / "cold")
        assert digests(made[0]) == digests(made[1])
        stores = [ArtifactStore(tmp_path / name) for name in ("store", "cold")]
        assert len({tuple(store.latest("small", stage) for stage in STAGES) for store in stores}) == 1
        shutil.rmtree(tmp_path / "cold")


@pytest.mark.parametrize(
    ("packing", "edit"), each(["none", "best_fit"], [append, insert, delete, change, at_the_start])
)
def test_an_edit_recomputes_at_most_two_chunks_of_a_stage(tmp_path: Path, edit: Edit, packing: str) -> None:
    tokenizer, length = frozen_tokenizer(tmp_path), {"packing": packing}
    config = write_dataset(tmp_path, 1200, tokenizer=tokenizer, length=length)
    assert build(config, tmp_path / "store")["raw"].chunks > 8
    draw, data = random.Random(edit.__name__), tmp_path / "small.jsonl"
    lines = data.read_text(encoding="utf-8").splitlines()
    found = {}
    for _ in range(3):
        edit(lines, draw)
        data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = build(config, tmp_path / "store")
        for stage in CHUNKED:
            assert found[stage].chunks - found[stage].chunks_reused <= 2, stage
        assert found["raw"].chunks > found["raw"].chunks_reused
    assert digests(found) == digests(build(config, tmp_path / "cold"))


def test_added_and_removed_files_recompute_only_their_own_chunks(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 10, tokenizer=frozen_tokenizer(tmp_path), dataset={"name": "parts"})
    (tmp_path / "parts").mkdir()

    def write(name: str, seed: int) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(400, seed))
        (tmp_path / "parts" / name).write_text(text, encoding="utf-8")

    for number, name in enumerate(("b.jsonl", "d.jsonl")):
        write(name, number)
    before = build(config, tmp_path / "store")
    write("c.jsonl", 7)
    added = build(config, tmp_path / "store")
    for stage in CHUNKED:
        assert added[stage].chunks_reused == before[stage].chunks < added[stage].chunks, stage
    assert digests(added) == digests(build(config, tmp_path / "cold"))
    (tmp_path / "parts" / "c.jsonl").unlink()
    removed = build(config, tmp_path / "store")
    assert digests(removed) == digests(before)
    assert all(report.chunks_reused == report.chunks for report in removed.values())


@pytest.mark.parametrize("bumped", ["raw", "columns", "prompts", "tokens", "sequences"])
def test_a_new_stage_version_recomputes_only_that_stage(
    tmp_path: Path, bumped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenloom.assets.building.chain import stage_named

    config = write_dataset(tmp_path, tokenizer=frozen_tokenizer(tmp_path))
    before = build(config, tmp_path / "store")
    monkeypatch.setattr(type(stage_named(bumped)), "version", 99)
    after = build(config, tmp_path / "store")
    assert digests(after) == digests(before)
    for stage in STAGES:
        assert after[stage].chunks_reused == (0 if stage == bumped else after[stage].chunks), stage


def test_chunk_sizes_stay_in_range(tmp_path: Path) -> None:
    build(write_dataset(tmp_path, 4000), tmp_path / "store")
    sizes = [chunk.rows_out for chunk in ArtifactStore(tmp_path / "store").manifest("small", "raw").chunks][:-1]
    assert max(sizes) < 6 * min(sizes), SMALL
