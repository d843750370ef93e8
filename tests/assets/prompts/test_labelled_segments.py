"""Texts in segments with a label each: ids and labels are those of axolotl's `input_output`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.columns_stage import Row, as_json, canonical, codes, kept
from support.small_tokenizers import CONTROL, byte_level
from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts.segments import SegmentedTexts
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore

TOKENS = ("</s>", "<s>", "<s>x")
PART = st.text(st.sampled_from(["a", "é", "\n", "<", "s", ">", "/"]), max_size=4)
TEXT = st.lists(st.one_of(PART, st.sampled_from(TOKENS)), max_size=4).map("".join)
SEGMENTS = st.lists(st.fixed_dictionaries({"label": st.booleans(), "text": TEXT}), max_size=4)


@given(st.lists(SEGMENTS, max_size=5))
def test_exactly_the_labelled_segments_are_trained(rows: list[list[Row]]) -> None:
    kind = pa.list_(pa.struct([("label", pa.bool_()), ("text", pa.string())]))
    expected = [row for row in rows if any(segment["label"] and segment["text"] for segment in row)]
    for table in (pa.table({"segments": pa.array(rows, kind)}), as_json(*({"segments": row} for row in rows))):
        if not rows:
            continue
        out = canonical(table, form="segments")
        assert set(codes(out).values()) <= {"empty_answer"}
        rendered = SegmentedTexts(TOKENS, False)(out.table).table.to_pylist()
        assert [row["text"] for row in rendered] == ["".join(part["text"] for part in row) for row in expected]
        for row, found in zip(expected, rendered, strict=True):
            wanted = b"".join((b"\1" if part["label"] else b"\0") * len(part["text"].encode()) for part in row)
            marks, data, at = b"", found["text"].encode(), 0
            for span in found["spans"]:
                assert span["start"] == at < span["end"]
                at, part = span["end"], data[span["start"] : span["end"]].decode()
                marks += (b"\1" if span["weight"] else b"\0") * (span["end"] - span["start"])
                assert (part in TOKENS) if span["control"] else not any(token in part for token in TOKENS)
            assert (marks, at) == (wanted, len(data))


UNFIT: list[Any] = [
    [{"label": True}],
    [{"label": "perhaps", "text": "a"}],
    [{"text": "a"}],
    [{"label": True, "text": ["a"]}],
    "text",
    None,
    [],
    [{"label": False, "text": "a"}],
]


@pytest.mark.parametrize("segments", UNFIT, ids=json.dumps)
def test_a_row_that_does_not_fit_is_rejected_alone(segments: Any) -> None:
    good = {"segments": [{"label": 1, "text": "a"}, {"label": 0, "text": "b"}]}
    out = canonical(as_json(good, {"segments": segments}, good), form="segments")
    assert kept(out) == [{"segments": [{"text": "a", "weight": 1.0}, {"text": "b", "weight": 0.0}]}] * 2
    assert out.rejects[ROW].to_pylist() == [3]


def row_of(n: int) -> Row:
    asked = f"<|im_start|>user\nWhat is {n}?<|im_end|>\n<|im_start|>assistant\n"
    return {
        "segments": [
            {"label": False, "text": asked},
            {"label": True, "text": f"It is {n}.<|im_end|>"},
            {"label": False, "text": "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"},
            {"label": True, "text": "Yes.<|im_end|>"},
        ]
    }


def build_of(folder: Path, **sections: Any) -> Build:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row_of(n)) + "\n" for n in range(20)))
    byte_level(CONTROL).save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    dataset = {"dataset": {"name": str(folder / "rows.jsonl")}, "tokenizer": {"name_or_path": str(folder)}}
    build = Build(PipelineConfig.from_mapping({**dataset, **sections}), ArtifactStore(folder / "store"))
    for stage in ("raw", "schema", "columns", "prompts", "tokenizer", "tokens", "sequences"):
        build.run(stage)
    return build


@pytest.mark.parametrize("train_on", ["completions", "all"])
def test_ids_and_labels_are_those_of_axolotl(tmp_path: Path, train_on: str) -> None:
    """axolotl tokenizes each segment alone, without special tokens, and joins the ids (RawInputOutputStrategy)."""
    build = build_of(tmp_path, prompt_template={"train_on": train_on})
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = []
    for n in range(20):
        ids = [(tokenizer.encode(part["text"], add_special_tokens=False).ids, part) for part in row_of(n)["segments"]]
        marks = [part["label"] or train_on == "all" for found, part in ids for _ in found]
        expected.append(([token for found, _ in ids for token in found], marks))
    (chunk,) = build.manifest("sequences").chunks
    rows = build.store.objects.get(chunk.output).to_pylist()
    assert [(row["input_ids"], [bool(mark) for mark in row["trained"]]) for row in rows] == expected


def test_a_token_that_the_text_should_hold_is_not_added(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write the BOS token in the first segment"):
        build_of(tmp_path, prompt_template={"add_bos": True})
