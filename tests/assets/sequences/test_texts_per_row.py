"""Rows with several texts through the stages after `prompts`: counts of rows, and sequences that can be traced back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builds import build, digests
from support.small_tokenizers import WriteConfig
from tokenloom.assets.building.diff import diff_datasets
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.prompts.exact import NOT_EXACT, TEXTS, TURNS
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.rejects import ROW, join_rejects, reject_rows
from tokenloom.assets.stage.rows import LOST, counted_by_row
from tokenloom.assets.tokens.stage import FURTHER
from tokenloom.cli.main import main
from tokenloom.loaders import open_dataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import list_parts

Row = dict[str, Any]
LAST_ONLY = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.thinking and loop.last %}{{ '(' + m.thinking + ')' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def talk(turns: int, size: int = 3) -> list[Row]:
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {turn} " * size})
        messages.append({"role": "assistant", "content": f"answer {turn}", "thinking": f"thought {turn} " * size})
    return messages


TURNS_OF_ROWS = [1, 3, 2, 1, 4, 2, 2, 5]


@pytest.fixture
def declared(tmp_path: Path, write_config: WriteConfig, tokenizer_folder: Path) -> Any:
    rows = [{"messages": talk(turns)} for turns in TURNS_OF_ROWS]
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def declare(name: str, turns: str = "exact", **sections: Any) -> Path:
        tokenizer = {"name_or_path": str(tokenizer_folder), "chat_template": LAST_ONLY, "max_length": 512}
        tokenizer |= sections.pop("tokenizer", {})
        prompt = {"format_type": "chat", "turns": turns, **sections.pop("prompt_template", {})}
        dataset = {"name": str(tmp_path / "talks.jsonl")}
        return write_config(tmp_path, name, dataset=dataset, tokenizer=tokenizer, prompt_template=prompt, **sections)

    return declare


def assert_accounted(reports: dict[str, StageReport]) -> None:
    for report in reports.values():
        assert report.rows_in == report.rows_out + report.rejected + report.filtered
    for before, after in zip(("prompts", "tokens"), ("tokens", "sequences"), strict=True):
        assert reports[before].rows_out == reports[after].rows_in


def trained_tokens(store: Path, name: str) -> list[tuple[int, list[int], list[int]]]:
    manifest = ArtifactStore(store).manifest(name, "sequences")
    tables = [ArtifactStore(store).objects.get(chunk.output).to_pylist() for chunk in manifest.chunks]
    return [(row["rows"][0], row["input_ids"], row["trained"]) for table in tables for row in table]


def test_every_turn_is_trained_once_and_rows_are_counted_once(declared: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    reports = build(declared("exact"), store)
    together = build(declared("together", "together"), store)
    assert_accounted(reports)
    turns = sum(TURNS_OF_ROWS)
    assert reports["sequences"].rows_out == len(TURNS_OF_ROWS)
    assert reports["prompts"].counters == {TURNS: turns, NOT_EXACT: 0, TEXTS: turns}
    assert together["prompts"].counters == {
        TURNS: turns,
        NOT_EXACT: turns - len(TURNS_OF_ROWS),
        TEXTS: len(TURNS_OF_ROWS),
    }
    sequences = trained_tokens(store, "exact")
    assert [row for row, _, _ in sequences] == [row for row, turns in enumerate(TURNS_OF_ROWS) for _ in range(turns)]
    longest = Counter[int]()
    for row, ids, _ in sequences:
        longest[row] = max(longest[row], len(ids))
    assert reports["tokens"].counters[FURTHER] == reports["tokens"].tokens - sum(longest.values())
    assert FURTHER not in together["tokens"].counters
    decode = RowReader(ArtifactStore(store), "exact")._decoder._tokenizer.decode
    parts = [
        (row, decode([i for i, flag in zip(ids, flags, strict=True) if flag], skip_special_tokens=False))
        for row, ids, flags in sequences
    ]
    assert parts == [
        (row, f"({f'thought {turn} ' * 3})answer {turn}<|im_end|>")
        for row, turns in enumerate(TURNS_OF_ROWS)
        for turn in range(turns)
    ]


@pytest.mark.parametrize(
    "length",
    [
        {"strategy": "drop"},
        {"strategy": "truncate_right"},
        {"strategy": "smart"},
        {"strategy": "split", "stride": 8},
        {"packing": "concat"},
        {"packing": "best_fit", "strategy": "drop"},
    ],
)
def test_rows_stay_accounted_for_when_texts_do_not_fit(declared: Any, tmp_path: Path, length: Row) -> None:
    """The first turns of long conversations fit; with `drop` the texts of the others are lost, but no row is."""
    reports = build(
        declared("short", length=length, tokenizer={"max_length": 96}, validation={"max_reject_fraction": 1.0}),
        tmp_path / "store",
    )
    assert_accounted(reports)
    rows = {row for row, _, _ in trained_tokens(tmp_path / "store", "short")}
    if length.get("packing") is None:
        assert len(rows) == reports["sequences"].rows_out
    if length.get("strategy") == "drop":
        assert reports["sequences"].rows_out == len(TURNS_OF_ROWS)
        assert reports["sequences"].counters[LOST] > 0


def test_rebuilding_gives_the_same_bytes(declared: Any, tmp_path: Path) -> None:
    first = build(declared("exact"), tmp_path / "store", workers=1)
    again = build(declared("exact"), tmp_path / "store")
    other = build(declared("exact"), tmp_path / "other", workers=3)
    assert digests(first) == digests(again) == digests(other)
    assert all(report.chunks_reused == report.chunks for report in again.values())


def test_texts_are_seen_by_preview_trace_and_diff(
    declared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    config = declared("exact")
    assert main(["build", str(config), "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    turns = sum(TURNS_OF_ROWS)
    assert f"{turns} turns trained" in printed
    assert f"{turns} texts of {len(TURNS_OF_ROWS)} rows" in printed
    reader = RowReader(ArtifactStore(store), "exact")
    assert [len(reader.read(row).sides) for row in range(len(TURNS_OF_ROWS))] == TURNS_OF_ROWS
    assert main(["preview", str(config), "--store", str(store), "--row", "1"]) == 0
    assert "3 of 3" in capsys.readouterr().out
    assert main(["preview", str(config), "--store", str(store), "--row", "1", "--inference"]) == 0
    assert "thought 2" not in capsys.readouterr().out
    assert main(["explain", str(config), "--store", str(store)]) == 0
    dataset = open_dataset("exact", store=store)
    assert [dataset.trace(row).places[0].rpartition(":")[2] for row in range(len(dataset))] == [
        str(row + 1) for row, turns in enumerate(TURNS_OF_ROWS) for _ in range(turns)
    ]
    path = tmp_path / "talks.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    tokens = sum(len(ids) for row, ids, _ in trained_tokens(store, "exact") if row == 4)
    before = ArtifactStore(store).manifest("exact", "sequences").digest
    build(config, store)
    (split,) = diff_datasets(ArtifactStore(store), f"exact@{before}", "exact").splits
    assert (split.rows["removed"], split.tokens["removed"]) == (1, tokens)


def test_rows_of_one_text_have_no_more_tokens_than_their_longest_text(
    declared: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only row with several texts has a control token in one of them, so that `tokens` rejects it."""
    config = declared("exact", tokenizer={"control_tokens_in_content": "reject"})
    split = talk(2)
    split[0]["content"] += "<|im_end|>"
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps({'messages': row})}\n" for row in (talk(1), split)))
    config.write_text(config.read_text() + "validation: {max_reject_fraction: 0.5}\n")
    assert main(["build", str(config), "--store", str(tmp_path / "store")]) == 0
    assert "3 texts of 2 rows: 0.0% more tokens than with the longest of each row" in capsys.readouterr().out


TEXTS_OF_ROWS = st.lists(
    st.lists(st.sampled_from(["kept", "rejected", "filtered"]), min_size=1, max_size=4), max_size=6
)


@given(TEXTS_OF_ROWS)
def test_a_row_is_lost_only_with_all_its_texts(rows: list[list[str]]) -> None:
    texts = [(3 * row, fate) for row, fates in enumerate(rows) for fate in fates]
    table = pa.table({ROW: pa.array([row for row, _ in texts], pa.int32())})
    kept, rejected, filtered = (
        [row for row, fate in texts if fate == name] for name in ("kept", "rejected", "filtered")
    )
    documents = pa.array([[row] for row in kept], pa.list_(pa.int32()))
    rejects = join_rejects([reject_rows(np.array(rejected), "sequences", "code", "", "", [""] * len(rejected))])
    out = counted_by_row(
        ChunkOutput(pa.table({"rows": documents}), len(texts), rejects, len(filtered), len(kept)), table
    )
    lost = [row for row in {row for row, _ in texts} if row not in kept]
    counts = out.counts()
    assert counts["rows_in"] == len(rows) == counts["rows_out"] + counts["rejected"] + counts["filtered"]
    assert counts["rows_out"] == len({*kept}) == len({*list_parts(out.table["rows"])[1].to_pylist()})
    assert sorted(out.rejects[ROW].to_pylist()) == sorted({*rejected} & {*lost})
    if LOST in out.counters:
        assert out.counters[LOST] == sum(fate != "kept" and row in kept for row, fate in texts)
