"""Every real text file: read like independent readers, detected, and converted to its canonical form."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from support.raw_rows import Row, read
from tokenloom.assets.building.build import Build
from tokenloom.assets.schema.candidates import FormatCandidate, choose
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.forms import FORMS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

QUESTION = {"prompt": "question", "completion": "answer"}
ALPACA = {"prompt": "instruction", "context": "input", "completion": "output"}
UNNAMED = {"prompt": "column_0", "completion": "column_1"}
SEED = {"prompt": "instruction", "context": "instances[0].input", "completion": "instances[0].output"}
FOUND: dict[str, tuple[str, str, dict[str, str]]] = {
    "instruct/alpaca_data.json": ("alpaca", "completion", ALPACA),
    "instruct/alpaca_seed_tasks.jsonl": ("alpaca", "completion", SEED),
    "math/gsm8k_train.jsonl": ("question/answer", "completion", QUESTION),
    "math/gsm8k_test.jsonl": ("question/answer", "completion", QUESTION),
    "chat/glaive_toolcall_en_demo.json": ("ShareGPT", "messages", {"messages": "conversations", "tools": "tools"}),
    "chat/dummy_conversation.json": ("ShareGPT", "messages", {"messages": "conversations"}),
    "chat/toy_chat_fine_tuning.jsonl": ("OpenAI messages", "messages", {"messages": "messages"}),
    "chat/openai_sft_barelist.jsonl": ("OpenAI messages", "messages", {"messages": "items"}),
    "preference/hh-rlhf_harmless-base_test.jsonl.gz": (
        "preference",
        "preference",
        {"chosen": "chosen", "rejected": "rejected"},
    ),
    "preference/v1_dpo_demo.jsonl": (
        "preference",
        "preference",
        {"chosen": "chosen_messages", "rejected": "rejected_messages"},
    ),
    "text/wikitext-2/train.txt.gz": ("plain text", "text", {"text": "text"}),
    "text/wikitext-2/valid.txt": ("plain text", "text", {"text": "text"}),
    "text/wikitext-2/test.txt": ("plain text", "text", {"text": "text"}),
    "multilingual/alpaca_zh_demo.json": ("alpaca", "completion", ALPACA),
    **{
        f"multilingual/mgsm_{tongue}.tsv": ("question/answer", "completion", UNNAMED)
        for tongue in ("bn", "ja", "ru", "zh")
    },
    "multilingual/xquad.ar.json": (
        "reading comprehension",
        "completion",
        {"prompt": "question", "context": "context", "completion": "answers[0].text"},
    ),
    "awkward/TruthfulQA_bom.csv": (
        "question/answer",
        "completion",
        {"prompt": "Question", "completion": "Best Answer"},
    ),
    "awkward/dialogsum_dev.jsonl": ("dialogue summary", "completion", {"prompt": "dialogue", "completion": "summary"}),
    "awkward/banking77_test.csv": ("classification", "completion", {"prompt": "text", "completion": "category"}),
}
"""Files with a clear format: the format, the canonical form, and the source of each role."""

BLANK_LINES = {
    "text/wikitext-2/train.txt.gz": 12951,
    "text/wikitext-2/valid.txt": 1299,
    "text/wikitext-2/test.txt": 1467,
}

ASKED: dict[str, tuple[str, dict[str, str]]] = {
    "multilingual/gemoji.json": ("completion", {"prompt": "{description} ({category})", "completion": "emoji"}),
    "awkward/query_wellformedness_dev.tsv": ("completion", UNNAMED),
    "awkward/gap_validation.tsv": ("completion", {"prompt": "{Text}\n\nWho is {Pronoun}?", "completion": "A"}),
    "awkward/disfl_qa_dev.json": ("completion", {"prompt": "disfluent", "completion": "original"}),
    "awkward/avengers_latin1.csv": ("completion", {"prompt": "Name/Alias", "completion": "Notes"}),
}
"""Files for which only the owner knows what to train on: a form, and a mapping that leads to it."""


def rows_of(path: Path) -> list[Any]:
    """Return the rows of a file, read by Python's own readers; blank lines are skipped."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    name = path.name.removesuffix(".gz")
    text = data.decode("latin-1" if "latin1" in name else "utf-8-sig")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if name.endswith((".csv", ".tsv")):
        header, *records = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if name.endswith(".tsv") else ",")
        if "mgsm" in name or "query" in name:
            header, records = [f"column_{index}" for index in range(len(header))], [header, *records]
        return [dict(zip(header, record, strict=True)) for record in records if record]
    if name.endswith(".txt"):
        return [{"text": line.removesuffix("\r")} for line in text.split("\n") if line.strip()]
    loaded = json.loads(text)
    if "xquad" in name:
        return [
            {**question, "context": paragraph["context"], "title": article["title"]}
            for article in loaded["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    return [{"key": key, **row} for key, row in loaded.items()] if isinstance(loaded, dict) else loaded


def plain(value: Any) -> Any:
    """Return a value without the nulls that a table adds for missing fields."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", [*FOUND, *ASKED])
@pytest.mark.parametrize("size", [ChunkSize(), ChunkSize(16 << 10, 64 << 10)], ids=["", "small chunks"])
def test_every_row_is_read_unchanged(real_data: Path, name: str, size: ChunkSize) -> None:
    if "alpaca_data" in name and size != ChunkSize():
        pytest.skip("52,002 rows are read once")
    rows, rejects, filtered = read(real_data / name, size)
    expected = rows_of(real_data / name)
    if "barelist" in name:
        expected = [{"items": row} for row in expected]
    assert plain(rows) == plain(expected)
    assert (rejects, filtered) == ([], BLANK_LINES.get(name, 0))


def built(tmp_path: Path, path: Path, form: str, mapping: dict[str, str] | None = None) -> Build:
    settings: Row = {"name": str(path), **({"column_mapping": mapping} if mapping else {})}
    format_type = {"messages": "chat", "preference": "preference", "kto": "kto"}.get(form, form)
    config = PipelineConfig.from_mapping(
        {"dataset": settings, "prompt_template": {"format_type": format_type if mapping else "custom"}}
    )
    build = Build(config, ArtifactStore(tmp_path / "store"))
    for stage in ("raw", "schema", "columns"):
        report = build.run(stage)
        assert report.rows_in == report.rows_out + report.rejected + report.filtered > 0
    return build


def canonical_columns(build: Build) -> set[str]:
    first = build.store.objects.get(build.manifest("columns").chunks[0].output)
    return set(first.column_names) - {ROW}


@pytest.mark.parametrize("name", FOUND)
def test_a_clear_file_is_converted_to_its_form(real_data: Path, tmp_path: Path, name: str) -> None:
    format, form, roles = FOUND[name]
    build = built(tmp_path, real_data / name, form)
    best = choose([FormatCandidate(**found) for found in build.manifest("schema").facts["formats"]])
    assert isinstance(best, FormatCandidate)
    assert (best.format, best.form, best.roles) == (format, form, roles)
    assert canonical_columns(build) == set(FORMS[form].columns)
    assert build.manifest("columns").facts["mapping"]["roles"] == roles
    assert build.manifest("columns").total("rejected") <= 0.01 * build.manifest("columns").total("rows_in")


@pytest.mark.parametrize("name", ASKED)
def test_an_unclear_file_needs_the_mapping_that_converts_it(real_data: Path, tmp_path: Path, name: str) -> None:
    form, mapping = ASKED[name]
    with pytest.raises(ConfigError, match=r"dataset\.column_mapping: .*write e\.g\. column_mapping: "):
        built(tmp_path / "first", real_data / name, form)
    build = built(tmp_path / "second", real_data / name, form, mapping)
    assert canonical_columns(build) == set(FORMS[form].columns)
