"""Ids and labels equal those that TRL's trainers prepare from the same rows, but for the differences listed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")


from support.soak import SOAK, sweep
from support.trl_cases import CASES, REASONS, Case, compare, save_tokenizer
from support.trl_rows import Texts, real_texts, sample_texts

COUNT = 200 if SOAK else 25


@pytest.fixture(scope="module", params=["samples", pytest.param("real", marks=sweep)])
def data(request: pytest.FixtureRequest) -> Path | None:
    return request.getfixturevalue("real_data") if request.param == "real" else None


@pytest.fixture(scope="module")
def texts(data: Path | None) -> Texts:
    return real_texts(data) if data else sample_texts()


@pytest.fixture(scope="module")
def tokenizer(data: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "made", data if SOAK else None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rows}, {case.trainer} {case.options or ''}")
def test_ids_and_labels_equal_trl(case: Case, texts: Texts, tokenizer: Path, tmp_path: Path) -> None:
    rows, kinds, wrong = compare(case, texts, tmp_path, tokenizer, COUNT)
    assert rows == COUNT
    assert wrong == []
    assert set(kinds) == set(case.differs) <= set(REASONS)
