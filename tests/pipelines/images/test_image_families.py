"""Rows with images through a build: token ids and labels of each family and kind of chat template, compared with the
processor's own call on the text that transformers renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.image_rows import Built, Oracle, compared, made_rows, write_lines, write_pictures, write_yaml
from support.soak import some
from support.vision_processors import FAMILIES

CASES = [
    *((family, "parts") for family in FAMILIES),
    *((family, kind) for family in ("qwen2_vl", "gemma3") for kind in ("trim", "first", "generation", "text")),
    ("idefics3", "idefics"),
    ("idefics3", "text"),
    ("llava", "first"),
    ("aya_vision", "trim"),
]


@pytest.mark.parametrize(("family", "kind"), some(CASES, 2))
def test_ids_and_labels_are_those_of_the_processors_own_call(family: str, kind: str, tmp_path: Path) -> None:
    _compare(Oracle(family, kind), {}, tmp_path)


@pytest.mark.parametrize(
    ("roles", "turns"), [(["assistant", "tool"], "together"), (["tool", "user"], "together"), (["assistant"], "exact")]
)
def test_trained_messages_of_any_role_have_images(roles: list[str], turns: str, tmp_path: Path) -> None:
    _compare(Oracle("qwen2_vl", "parts", roles), {"train_on": roles, "turns": turns}, tmp_path)


def _compare(oracle: Oracle, prompt: dict[str, Any], tmp_path: Path) -> None:
    family, kind = oracle.family, oracle.kind
    pictures = write_pictures(tmp_path, 16, most=200)
    rows = made_rows(30, CASES.index((family, kind)), 16, tools=kind not in ("first", "idefics"))
    write_lines(tmp_path / "rows.jsonl", [{"messages": messages} for messages in rows])
    sections = {"prompt_template": {"add_eos": False, **prompt}, "validation": {"max_reject_fraction": 1.0}}
    made = Built.of(write_yaml(tmp_path, "rows.jsonl", oracle.save(tmp_path / "processor"), **sections), tmp_path / "s")
    counts, wrong = compared(oracle, rows, pictures, made)
    assert not wrong
    assert made.rejects() == {}
    assert counts["labels"] == counts["rows"] - counts["rejected"] > 20
    images = oracle.processor.image_token_ids
    for ids, trained in made.ids().values():
        assert not any(token in images and chosen for token, chosen in zip(ids, trained, strict=True))
