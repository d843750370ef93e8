"""Rows with images that are longer than `max_length`, and packed rows: no sequence has part of an image."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from support.image_rows import (
    Built,
    Message,
    Oracle,
    made_rows,
    paths_of,
    write_lines,
    write_pictures,
    write_yaml,
)

COUNT, LENGTH = 60, 120


@dataclass(frozen=True)
class Rows:
    folder: Path
    oracle: Oracle
    rows: list[list[Message]]
    pictures: dict[str, Any]

    def images(self, number: int) -> list[Any]:
        return [self.pictures[path] for path in paths_of(self.rows[number])]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder, oracle = tmp_path_factory.mktemp("rows"), Oracle("qwen2_vl", "parts")
    pictures = write_pictures(folder, 14, most=150)
    made = made_rows(COUNT, 5, 14, answers=False, tools=False)
    write_lines(folder / "rows.jsonl", [{"messages": messages} for messages in made])
    oracle.save(folder / "processor")
    return Rows(folder, oracle, made, pictures)


def built(rows: Rows, store: Path, max_length: int = LENGTH, **length: Any) -> Built:
    sections = {"length": length, "prompt_template": {"add_eos": False}, "validation": {"max_reject_fraction": 1.0}}
    name = "-".join(["rows", str(max_length), *(str(value) for value in length.values())])
    config = write_yaml(
        rows.folder, "rows.jsonl", rows.folder / "processor", name, tokenizer={"max_length": max_length}, **sections
    )
    return Built.of(config, store)


def runs(ids: list[int], image: int) -> list[int]:
    """The lengths of the runs of image tokens; adjacent images have other tokens between them in this family."""
    return [len(list(group)) for token, group in groupby(ids) if token == image]


def sequences(made: Built) -> list[dict[str, Any]]:
    return [row for _, table in made.tables("sequences") for row in table.to_pylist()]


@pytest.mark.parametrize(
    "strategy", ["truncate_right", "truncate_left", "truncate_middle", "smart", "drop_turns", "drop"]
)
def test_no_sequence_has_part_of_an_image(strategy: str, rows: Rows, tmp_path: Path) -> None:
    made = built(rows, tmp_path, strategy=strategy)
    image = rows.oracle.processor.image_token_id
    rejects, kept = made.rejects(), 0
    whole = [rows.oracle.row(messages, rows.images(number)) for number, messages in enumerate(rows.rows)]
    starts = {tuple(ids): number for number, (ids, _) in enumerate(whole) if len(ids) <= LENGTH}
    found = sequences(made)
    for row in found:
        assert len(row["input_ids"]) <= LENGTH
        sizes = [(each["width"], each["height"], each["tokens"]) for each in row["media"]]
        assert runs(row["input_ids"], image) == [tokens for *_, tokens in sizes]
        if tuple(row["input_ids"]) in starts:
            kept += 1
            number = starts[tuple(row["input_ids"])]
            assert [size[:2] for size in sizes] == [picture.size for picture in rows.images(number)]
    assert kept == len([ids for ids, _ in whole if len(ids) <= LENGTH])  # rows that fit are whole
    assert kept < COUNT - 10
    codes = Counter(code for _, code, _ in rejects.values())
    assert (codes["image_cut"] > 0) == (strategy not in ("drop", "drop_turns"))
    report = made.reports["sequences"]
    assert report.rows_in == COUNT == len(found) + report.filtered + report.rejected
    assert report.rejected == len(rejects)
    assert report.tokens == sum(len(row["input_ids"]) for row in found)
    lost = sum(report.counters[name] for name in ("tokens_cut", "tokens_dropped", "tokens_rejected"))
    assert made.reports["tokens"].tokens == report.counters["tokens_in"] == report.tokens + lost
    for number, (_, code, _) in rejects.items():
        assert code != "image_cut" or rows.images(number)


def test_drop_turns_drops_the_images_of_dropped_turns(rows: Rows, tmp_path: Path) -> None:
    made = built(rows, tmp_path, strategy="drop_turns")
    expected = []
    for number, messages in enumerate(rows.rows):
        system = [message for message in messages if message["role"] == "system"]
        rest = messages[len(system) :]
        while rest:  # drop the oldest question and answer until the row fits
            left = [*system, *rest]
            ids, _ = rows.oracle.row(left, [rows.pictures[path] for path in paths_of(left)])
            if len(ids) <= LENGTH:
                expected.append((number, ids, paths_of(left)))
                break
            rest = rest[2:]
    found = sequences(made)
    chosen = {tuple(row["input_ids"]): row for row in found}
    dropped = 0
    for number, ids, paths in expected:
        row = chosen[tuple(ids)]
        assert [(each["width"], each["height"]) for each in row["media"]] == [
            rows.pictures[path].size for path in paths
        ]
        dropped += paths != paths_of(rows.rows[number])
    assert dropped > 5


@pytest.mark.parametrize("budget", [60, 200])
def test_packing_has_a_budget_of_patches(budget: int, rows: Rows, tmp_path: Path) -> None:
    made = built(rows, tmp_path, max_length=400, packing="best_fit", media_budget=budget)
    single = built(rows, tmp_path, max_length=400, media_budget=budget)
    image = rows.oracle.processor.image_token_id
    whole = Counter(tuple(row["input_ids"]) for row in sequences(single))
    packed, documents = sequences(made), Counter[tuple[int, ...]]()
    for row in packed:
        assert len(row["input_ids"]) <= 400
        assert sum(each["patches"] for each in row["media"]) <= budget
        assert runs(row["input_ids"], image) == [each["tokens"] for each in row["media"]]
        at = 0
        for number, length in enumerate(row["document_lengths"]):
            ids = row["input_ids"][at : at + length]
            own = [each["tokens"] for each in row["media"] if each["document"] == number]
            assert runs(ids, image) == own
            documents[tuple(ids)] += 1
            at += length
    assert documents == whole
    assert len(packed) < sum(whole.values())
    assert made.rejects() == single.rejects()
    codes = {code for _, code, _ in made.rejects().values()}
    assert "too_many_patches" in codes
    for number, (_, code, message) in made.rejects().items():
        if code == "too_many_patches":
            own = rows.oracle.processor(text=[rows.oracle.text(rows.rows[number])], images=[rows.images(number)])
            assert len(own["pixel_values"]) > budget, message
