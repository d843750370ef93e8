"""Differences between two builds, compared with plain Python: multisets of rows, difflib, and token counts."""

from __future__ import annotations

import difflib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.loaded_rows import PROMPT, settings, write_rows
from support.soak import SOAK
from tokenloom import open_dataset
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.diff import DatasetDiff, Side, diff_datasets, diff_rows
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.errors import DatasetNotFoundError
from tokenloom.resources.store import ArtifactStore, Manifest

SIZE = ChunkSize(target=1024, maximum=4096)
Rows = list[dict[str, str]]
EDITS = 200 if SOAK else 12


def side(values: list[int]) -> Side:
    return Side(np.array(values, np.uint64), np.zeros(len(values), bool))


@given(st.lists(st.integers(0, 6), max_size=25), st.lists(st.integers(0, 6), max_size=25))
def test_rows_are_compared_as_multisets(a: list[int], b: list[int]) -> None:
    found = diff_rows(side(a), side(b))
    was, now = found.changed
    added, removed = Counter(b) - Counter(a), Counter(a) - Counter(b)
    assert Counter(b[item] for item in [*found.added, *now]) == added
    assert Counter(a[item] for item in [*found.removed, *was]) == removed
    assert len(was) == len(now)
    back = diff_rows(side(b), side(a))
    assert [part.tolist() for part in (back.removed, back.added)] == [
        part.tolist() for part in (found.added, found.removed)
    ]
    assert sorted(zip(*back.changed, strict=True)) == sorted(zip(now, was, strict=True))


@given(st.data())
def test_rows_at_the_same_place_count_as_changed(data: st.DataObject) -> None:
    """All rows are distinct and keep their order, so difflib finds every kept row."""
    a = list(range(data.draw(st.integers(0, 30))))
    b, fresh = [], 1000
    for value in a:
        edit = data.draw(st.sampled_from(["keep", "keep", "keep", "remove", "change", "insert"]))
        fresh += 1
        b += {"keep": [value], "remove": [], "change": [fresh], "insert": [fresh, value]}[edit]
    found = diff_rows(side(a), side(b))
    expected = [
        (at, to)
        for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if tag == "replace"
        for at, to in zip(range(a1, a2), range(b1, b2), strict=False)
    ]
    assert list(zip(*(part.tolist() for part in found.changed), strict=True)) == expected
    assert len(found.added) == len(set(b) - set(a)) - len(expected)
    assert len(found.removed) == len(set(a) - set(b)) - len(expected)


def write(folder: Path, rows: Rows) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def publish_raw(config: PipelineConfig, store: ArtifactStore) -> Build:
    """Build raw rows, and publish them as a version without any other stage."""
    build = Build(config, store, chunk_size=SIZE)
    build.run("raw")
    chunks = build.manifest("raw").chunks
    last = Manifest(build.name, "sequences", chunks)
    digests = {"raw": store.latest(build.name, "raw") or "", "sequences": store.put_manifest(last)}
    store.versions.add(build.name, last.digest, digests)
    return build


def talk(**changed: Any) -> dict[str, Any]:
    """A row with a part of every kind; `changed` names the values of some of them."""
    part = {"system": "You help.", "name": "book", "to": "Oslo", "train": True, "tool": "mail", **changed}
    function = {"name": part["name"], "arguments": {"to": part["to"]}}
    called = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "system", "content": part["system"]},
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": part.get("said", "Now."), "tool_calls": [called], "train": part["train"]},
    ]
    tool = {"name": part["tool"], "parameters": {"type": "object", "properties": {}}}
    variables = {"enable_thinking": part.get("thinks", True)}
    beside = {
        "label": part.get("label", True),
        "weight": part.get("weight", 1.0),
        "images": [part.get("image", "a.png")],
    }
    return {"messages": messages, "tools": [{"function": tool}], "chat_template_kwargs": variables, **beside}


OTHERS = {
    "said": ("Now.", None), "system": ("A", "B"), "name": ("book", "cancel"), "to": (1, 2), "train": (True, False),
    "tool": ("mail", "post"), "thinks": (True, False), "label": (True, False), "weight": (1.0, 0.5),
    "image": ("a.png", "b.png"),
}  # fmt: skip


@pytest.mark.parametrize("part", OTHERS)
def test_a_row_of_which_any_part_changes_is_a_changed_row(tmp_path: Path, part: str) -> None:
    store, path = ArtifactStore(tmp_path / "store"), tmp_path / "rows.jsonl"
    for value in OTHERS[part]:
        rows = [talk(said="First."), talk(**{part: value}), talk(said="Last.")]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        publish_raw(PipelineConfig.from_mapping({"name": "d", "dataset": {"name": str(path)}}), store)
    was, now = store.versions.of("d")
    (split,) = diff_datasets(store, f"d@{was.digest}", f"d@{now.digest}").splits
    assert split.rows == {"a": 3, "b": 3, "added": 0, "removed": 0, "changed": 1}
    assert split.examples["changed"] == ["rows.jsonl:2"]


def edited(rows: Rows, draw: random.Random) -> Rows:
    """The rows after some edits: changed, removed, inserted, repeated and moved ones."""
    made = list(rows)
    for _ in range(draw.randint(0, 8)):
        at = draw.randrange(len(made))
        match draw.choice(["change", "remove", "insert", "repeat", "move", "append"]):
            case "change":
                made[at] = {**made[at], "a": f"changed {draw.random()}"}
            case "remove":
                del made[at]
            case "insert":
                made.insert(at, {"q": f"new {draw.random()}", "a": "b"})
            case "repeat":
                made.insert(draw.randrange(len(made)), made[at])
            case "move":
                made.insert(draw.randrange(len(made) - 1), made.pop(at))
            case "append":
                made.append({"q": f"last {draw.random()}", "a": "b"})
    return made


@pytest.mark.parametrize("seed", range(EDITS))
def test_random_edits_of_a_file_give_the_multiset_difference(tmp_path: Path, seed: int) -> None:
    draw, store = random.Random(seed), ArtifactStore(tmp_path / "store")
    a = write_rows(tmp_path / "rows.jsonl", 200, seed)
    config = PipelineConfig.from_mapping({"name": "d", "dataset": {"name": str(tmp_path / "rows.jsonl")}})
    publish_raw(config, store)
    b = edited(a, draw)
    write(tmp_path, b)
    publish_raw(config, store)
    versions = store.versions.of("d")
    if a == b:
        return
    (split,) = diff_datasets(store, f"d@{versions[0].digest}", "d").splits
    before, after = (Counter(json.dumps(row) for row in rows) for rows in (a, b))
    counts = {"added": (after - before).total(), "removed": (before - after).total()}
    changed = split.rows["changed"]
    assert changed is not None
    assert split.rows == {
        "a": len(a),
        "b": len(b),
        "added": counts["added"] - changed,
        "removed": counts["removed"] - changed,
        "changed": changed,
    }
    lines = {"added": (b, after - before), "removed": (a, before - after)}
    for kind, (rows, only) in lines.items():
        assert len(split.examples[kind]) == min(5, split.rows[kind] or 0)
        for place in split.examples[kind]:
            assert json.dumps(rows[int(place.removeprefix("rows.jsonl:")) - 1]) in only
    for place in split.examples["changed"]:
        was, _, now = place.partition(" → ")
        at, to = (int(one.removeprefix("rows.jsonl:")) - 1 for one in (was, now or was))
        assert json.dumps(a[at]) in before - after
        assert json.dumps(b[to]) in after - before


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> tuple[Path, Rows, Rows]:
    """A folder with a store with two versions of `d`, the second with edited rows; and `e` with other settings."""
    folder = tmp_path_factory.mktemp("diff")
    a = write_rows(folder / "rows.jsonl", 200)
    sections = settings(tokenizer_folder)
    shorter = {**sections["tokenizer"], "max_length": 32}
    configs = {
        "d": {"dataset": {"name": "rows.jsonl", "val_split": 0.2}, **sections},
        "e": {"dataset": {"name": "rows.jsonl", "val_split": 0.2}, **sections, "tokenizer": shorter},
    }
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        make(folder, name)
    b = [{**row, "a": "changed"} if number in (20, 90, 91) else row for number, row in enumerate(a) if number != 150]
    b += [{"q": f"more {number}", "a": "yes"} for number in range(7)]
    write(folder, b)
    make(folder, "d")
    return folder, a, b


def make(folder: Path, name: str) -> None:
    list(
        Build(
            PipelineConfig.from_file(folder / f"{name}.yaml"), ArtifactStore(folder / "store"), chunk_size=SIZE
        ).run_all()
    )


def found_in(folder: Path, a: str, b: str) -> DatasetDiff:
    return diff_datasets(ArtifactStore(folder / "store"), a, b)


def test_rows_and_tokens_of_each_split(built: tuple[Path, Rows, Rows]) -> None:
    folder, a, b = built
    old = ArtifactStore(folder / "store").versions.of("d")[0].digest
    found = found_in(folder, f"d@{old[:10]}", "d")
    assert found.settings == []
    assert found.notes == []
    assert [split.split for split in found.splits] == ["train", "validation"]
    total = Counter[str]()
    for split in found.splits:
        total.update({name: count or 0 for name, count in split.rows.items()})
        for name, version in (("a", old), ("b", None)):
            dataset = open_dataset("d", split.split, folder / "store", version)
            assert split.tokens[name] == sum(len(dataset[row]["input_ids"]) for row in range(len(dataset)))
            assert split.rows[name] == len(dataset)
    assert (total["a"], total["b"]) == (len(a), len(b))
    assert total["added"] + total["changed"] == 10
    assert total["removed"] + total["changed"] == 4


def test_tokens_of_rows_are_counted_before_truncation(built: tuple[Path, Rows, Rows], tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    folder, a, b = built
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))

    def tokens(rows: list[str]) -> int:
        texts = [PROMPT["template"].format(**json.loads(row)) + "</s>" for row in rows]
        return sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)

    old = ArtifactStore(folder / "store").versions.of("d")[0].digest
    splits = found_in(folder, f"d@{old}", "d").splits
    before, after = (Counter(json.dumps(row) for row in rows) for rows in (a, b))
    kinds = {"added": ("added", "changed_to"), "removed": ("removed", "changed_from")}
    for kind, only in (("added", after - before), ("removed", before - after)):
        counted = sum(split.tokens[name] or 0 for split in splits for name in kinds[kind])
        assert counted == tokens(list(only.elements()))


def test_other_settings_are_reported_and_equal_rows_are_not_opened(built: tuple[Path, Rows, Rows]) -> None:
    folder, *_ = built
    old = ArtifactStore(folder / "store").versions.of("d")[0].digest
    found = found_in(folder, f"d@{old}", "e")
    assert [vars(setting) for setting in found.settings] == [
        {"stage": "sequences", "name": "settings.tokenizer.max_length", "a": 48, "b": 32}
    ]
    for split in found.splits:
        assert (split.rows["added"], split.rows["removed"], split.rows["changed"]) == (0, 0, 0)
        assert split.tokens["a"] > split.tokens["b"]  # type: ignore[operator]
    store = ArtifactStore(folder / "store")
    paths = [store.objects.path(chunk.output) for chunk in store.manifest("d", "raw", old).chunks]
    for path in paths:
        path.rename(path.with_suffix(".away"))
    try:
        assert found_in(folder, f"d@{old}", "e").to_json() == found.to_json()
    finally:
        for path in paths:
            path.with_suffix(".away").rename(path)


@pytest.mark.parametrize("stage", ["tokens", "raw"])
def test_dropped_objects_are_reported_and_the_rest_is_compared(built: tuple[Path, Rows, Rows], stage: str) -> None:
    folder, *_ = built
    store = ArtifactStore(folder / "store")
    old = store.versions.of("d")[0].digest
    whole = found_in(folder, f"d@{old}", "d").splits
    paths = {store.objects.path(chunk.output) for chunk in store.manifest("d", stage, old).chunks}
    for path in paths:
        path.rename(path.with_suffix(".away"))
    try:
        found = found_in(folder, f"d@{old}", "d")
        (note,) = found.notes
        assert "no longer in the store" in note
        for split, expected in zip(found.splits, whole, strict=True):
            for count in ("a", "b"):
                assert (split.rows[count], split.tokens[count]) == (expected.rows[count], expected.tokens[count])
            known = expected.rows if stage == "tokens" else dict.fromkeys(("added", "removed", "changed"))
            assert all(split.rows[kind] == known[kind] for kind in ("added", "removed", "changed"))
            assert split.tokens["added"] is None
    finally:
        for path in paths:
            path.with_suffix(".away").rename(path)


def test_the_command_prints_counts_places_and_settings(
    built: tuple[Path, Rows, Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, *_ = built
    store = ["--store", str(folder / "store")]
    old = ArtifactStore(folder / "store").versions.of("d")[0].digest
    assert main(["diff", f"d@{old[:12]}", "e", *store]) == 0
    shown = capsys.readouterr().out
    assert old[:12] in shown
    assert "settings.tokenizer.max_length" in shown
    assert main(["diff", f"d@{old[:12]}", "d", *store]) == 0
    shown = capsys.readouterr().out
    assert "rows.jsonl:21" in shown
    table = [line.split() for line in shown.splitlines()]
    for split in found_in(folder, f"d@{old}", "d").splits:
        counts = ([counts[name] for name in ("a", "b", "added", "removed")] for counts in (split.rows, split.tokens))
        in_rows, in_tokens = ([f"{count:,}" if count else "\N{MIDDLE DOT}" for count in found] for found in counts)
        assert [split.split, "rows", *in_rows] in [cells[:6] for cells in table], shown
        assert ["tokens", *in_tokens] in [cells[:5] for cells in table], shown
    assert main(["diff", "d", "d", *store]) == 0
    assert "the same sequences" in capsys.readouterr().out
    assert main(["diff", f"d@{old[:12]}", "d", *store, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["same"] is False
    assert printed["a"]["version"] == old
    assert [split["split"] for split in printed["splits"]] == ["train", "validation"]


@pytest.mark.parametrize("named", ["x", "d@beef", "d@1999-01-01", "x@beef", "d@"])
def test_an_unknown_version_is_answered_with_those_that_exist(built: tuple[Path, Rows, Rows], named: str) -> None:
    with pytest.raises(DatasetNotFoundError):
        found_in(built[0], "d", named)


def test_a_dataset_name_can_contain_an_at_sign(built: tuple[Path, Rows, Rows]) -> None:
    folder, *_ = built
    config = PipelineConfig.from_file(folder / "d.yaml")
    list(Build(config, ArtifactStore(folder / "store"), limit=9).run_all())
    rows = [split.rows for split in found_in(folder, "d", "d@9").splits]
    assert sum(counts["b"] or 0 for counts in rows) <= 18
    assert all(counts["added"] == counts["changed"] == 0 for counts in rows)
