"""docs/prepare/first_rows.md: `inspect` and `build`, without an edit, over every real file that holds rows."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.paths import ROOT
from support.soak import some

PAGE = ROOT / "docs" / "prepare" / "first_rows.md"
SECTIONS: dict[str, str] = dict(
    re.findall(r"\n## (\S+)\n(.*?)(?=\n## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
NOT_QUOTED = {
    "instruct/alpaca_data.json",
    "instruct/alpaca_seed_tasks.jsonl",
    "awkward/dialogsum_dev.jsonl",
    "preference/hh-rlhf_harmless-base_test.jsonl.gz",
    "chat/openai_sft_barelist.jsonl",
}
"""Files for research alone, one whose text overlaps theirs, and one of offensive text."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_rows", ROOT / "docs" / "generate" / "first_rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", some(SECTIONS, 3))
def test_the_section_of_a_file_is_up_to_date(generator: ModuleType, real_data: Path, name: str) -> None:
    assert generator.section(real_data / name, real_data) == f"\n## {name}\n{SECTIONS[name]}", "run `make docs`"


def test_every_file_that_holds_rows_is_on_the_page(generator: ModuleType, real_data: Path) -> None:
    assert [str(path.relative_to(real_data)) for path in generator.files(real_data)] == list(SECTIONS)
    known = {name for name in SECTIONS if not generator.quoted(name, real_data)} - {"vision/clothing/labels.csv"}
    assert known == NOT_QUOTED


@pytest.mark.parametrize("name", SECTIONS)
def test_no_answer_follows_its_prompt_directly(name: str) -> None:
    for before, after in re.findall(r"(.)⟦(.)", SECTIONS[name]):
        assert "⏎" in (before, after) or before.isspace() or after.isspace()


def rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file, as the standard library reads them; none for plain text and lists."""
    ends = [suffix for suffix in path.suffixes if suffix != ".gz"]
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ends[-1] == ".json":
        found = json.loads(data)
        if path.name == "xquad.ar.json":
            paragraphs = [(part["title"], each) for part in found["data"] for each in part["paragraphs"]]
            return [{"title": title, **each, **asked} for title, each in paragraphs for asked in each["qas"]]
        return list(found.values()) if isinstance(found, dict) else found
    if ends[-1] == ".jsonl":
        found = [json.loads(line) for line in data.splitlines()]
        return [row for row in found if isinstance(row, dict)]
    if ends[-1] == ".csv":
        return list(csv.DictReader(data.decode("utf-8-sig", "replace").splitlines()))
    return []


@pytest.mark.parametrize("name", SECTIONS)
def test_every_column_of_text_is_used_or_named(real_data: Path, name: str) -> None:
    facts = SECTIONS[name].partition("```")[0]
    texts = {key for row in rows(real_data / name) for key, value in row.items() if value and isinstance(value, str)}
    if "- read as" in facts:
        assert not {text for text in texts if f" {text}`" not in facts and f"`{text}`" not in facts}
    else:
        assert "- asks" in facts and "- refused: " in facts and "```" not in SECTIONS[name]


@pytest.mark.parametrize("name", sorted(NOT_QUOTED))
def test_content_that_must_not_be_quoted_is_not(name: str) -> None:
    words = {*re.findall(r"\w{3,}", SECTIONS[name].partition("```")[2])}
    template = (
        "Instruction Response instruction output instances endoftext im_start user assistant chosen rejected dialogue"
    )
    assert words <= {*f"{template} summary system text".split()}
