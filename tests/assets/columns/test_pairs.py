"""Preference pairs and KTO labels: only the completion is trained on both sides, no row is lost or duplicated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.canonical_tables import (
    CHATML,
    TOOLS,
    Row,
    build_canonical,
    chatml,
    config_of,
    prompts_of,
    said,
    table_of,
)
from support.rendered_prompts import assert_partition, trained_parts
from support.soak import each
from tokenloom.assets.prompts.spans import SPANS
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.sequences.stage import STAGE as SEQUENCES
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.assets.stage.definition import validate
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.stage.rows import in_pairs
from tokenloom.assets.tokens.encode import ContentEncoder
from tokenloom.assets.tokens.stage import STAGE as TOKENS
from tokenloom.assets.tokens.stage import tokenize
from tokenloom.cli.page import Page, rendered_page
from tokenloom.config import LengthConfig
from tokenloom.errors import ConfigError, DataValidationError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tokenizers import resolve_tokenizer

BROKEN = "\ue0d0"
"""A character that makes the prompts stage reject its row."""

SIDES = ("chosen", "rejected")
words = st.text(st.sampled_from("abc é你\n"), min_size=1, max_size=12).map(lambda text: text.strip() or "x")
answers = st.one_of(words, words, words, words.map(lambda text: text + BROKEN))
prompts = st.builds(
    lambda system, turns, question: [
        *([said("system", system)] if system else []),
        *(said(role, text) for pair in turns for role, text in zip(("user", "assistant"), pair, strict=True)),
        said("user", question),
    ],
    st.one_of(st.just(""), words),
    st.lists(st.tuples(words, words), max_size=2),
    words,
)
PAIRS = st.lists(
    st.builds(
        lambda prompt, chosen, rejected: {
            "prompt": prompt,
            "chosen": [said("assistant", chosen)],
            "rejected": [said("assistant", rejected)],
        },
        prompts,
        answers,
        answers,
    ),
    max_size=8,
)


@pytest.mark.parametrize(
    ("template", "train_on"),
    each([CHATML, TOOLS], ["completions", "last", "all", ["assistant"], ["user", "assistant"]]),
)
@given(rows=PAIRS)
def test_the_answer_and_its_stop_token_are_trained_on_both_sides(
    tokenizer_folder: Path, template: str, train_on: Any, rows: list[Row]
) -> None:
    config = config_of(tokenizer_folder, {"format_type": "preference", "train_on": train_on}, template)
    out = prompts_of("preference", table_of("preference", rows), config)
    kept = [
        i for i, row in enumerate(rows) if BROKEN not in row["chosen"][0]["content"] + row["rejected"][0]["content"]
    ]
    assert out.table[ROW].to_pylist() == kept
    assert sorted(out.rejects[ROW].to_pylist()) == [i for i in range(len(rows)) if i not in kept]
    for result in out.table.to_pylist():
        row = rows[result[ROW]]
        for side in SIDES:
            text, spans = result[f"{side}_text"], result[f"{side}_spans"]
            assert text == chatml([*row["prompt"], *row[side]])
            assert_partition(text, spans)
            assert trained_parts(text, spans) == [row[side][0]["content"] + "<|im_end|>"]


def test_a_reject_names_its_side(tokenizer_folder: Path) -> None:
    bad, good = [said("assistant", BROKEN)], [said("assistant", "b")]
    prompt = [said("user", "a")]
    rows = [
        {"prompt": prompt, "chosen": good, "rejected": bad},
        {"prompt": prompt, "chosen": bad, "rejected": bad},
        {"prompt": prompt, "chosen": bad, "rejected": good},
    ]
    out = prompts_of("preference", table_of("preference", rows), config_of(tokenizer_folder))
    assert out.rejects.select([ROW, "code", "field"]).to_pylist() == [
        {ROW: 0, "code": "private_use", "field": "rejected"},
        {ROW: 1, "code": "private_use", "field": "chosen"},
        {ROW: 2, "code": "private_use", "field": "chosen"},
    ]


@pytest.mark.parametrize("train_on", ["completions", "all"])
def test_the_system_message_of_the_yaml_is_not_trained(tokenizer_folder: Path, train_on: str) -> None:
    row = {"prompt": [said("user", "q")], "chosen": [said("assistant", "a")], "rejected": [said("assistant", "b")]}
    config = config_of(tokenizer_folder, {"system": "Be brief.", "train_on": train_on})
    (result,) = prompts_of("preference", table_of("preference", [row]), config).table.to_pylist()
    assert result["chosen_text"] == chatml([said("system", "Be brief."), *row["prompt"], *row["chosen"]])
    assert trained_parts(result["chosen_text"], result["chosen_spans"]) == ["a<|im_end|>"]


def test_completions_of_several_turns_are_trained_by_role(tokenizer_folder: Path) -> None:
    talk = [said("assistant", "a1"), said("user", "q2"), said("assistant", "a2")]
    row = {"prompt": [said("user", "q")], "chosen": talk, "rejected": talk[:1]}
    expected = {
        "completions": ["a1<|im_end|>", "a2<|im_end|>"],
        "last": ["a2<|im_end|>"],
        "all": ["a1<|im_end|>", "q2<|im_end|>", "a2<|im_end|>"],
    }
    for train_on, parts in expected.items():
        config = config_of(tokenizer_folder, {"train_on": train_on})
        (result,) = prompts_of("preference", table_of("preference", [row]), config).table.to_pylist()
        assert trained_parts(result["chosen_text"], result["chosen_spans"]) == parts
        assert trained_parts(result["rejected_text"], result["rejected_spans"]) == ["a1<|im_end|>"]


@given(rows=st.lists(st.tuples(prompts, answers, st.booleans()), max_size=8))
def test_labels_stay_with_their_completions(tokenizer_folder: Path, rows: list[tuple[Any, str, bool]]) -> None:
    found = [
        {"prompt": prompt, "completion": [said("assistant", answer)], "label": label} for prompt, answer, label in rows
    ]
    config = config_of(tokenizer_folder, {"format_type": "kto"})
    out = prompts_of("kto", table_of("kto", found), config)
    kept = [index for index, (_, answer, _) in enumerate(rows) if BROKEN not in answer]
    assert out.table[ROW].to_pylist() == kept
    encoder, control = encoder_of(tokenizer_folder)
    tokens = in_pairs(lambda table: tokenize(table, encoder, control, "reject"))(out.table)
    validate(TOKENS, tokens.table)
    result = in_pairs(lambda table: to_sequences(table, LengthConfig(strategy="drop"), 40))(tokens.table)
    validate(SEQUENCES, result.table)
    labels = {row["rows"][0]: row["label"] for row in result.table.to_pylist()}
    assert labels == {row: rows[row][2] for row in labels}
    lengths = zip(tokens.table[ROW].to_pylist(), tokens.table["input_ids"].to_pylist(), strict=True)
    assert list(labels) == [row for row, ids in lengths if len(ids) <= 40]
    assert out.table.num_rows == result.table.num_rows + result.filtered + result.rejects.num_rows


def encoder_of(folder: Path) -> tuple[ContentEncoder, tuple[str, ...]]:
    spec = resolve_tokenizer(config_of(folder))
    return ContentEncoder((folder / "tokenizer.json").read_bytes(), spec.control, keep_control=False), spec.control


@given(rows=PAIRS)
def test_tokens_of_both_sides_decode_to_their_texts(tokenizer_folder: Path, rows: list[Row]) -> None:
    out = prompts_of("preference", table_of("preference", rows), config_of(tokenizer_folder))
    encoder, control = encoder_of(tokenizer_folder)
    tokens = in_pairs(lambda table: tokenize(table, encoder, control, "split"))(out.table)
    validate(TOKENS, tokens.table)
    plain = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    for prompt, result in zip(out.table.to_pylist(), tokens.table.to_pylist(), strict=True):
        assert prompt[ROW] == result[ROW]
        for side in SIDES:
            assert plain.decode(result[f"{side}_input_ids"], skip_special_tokens=False) == prompt[f"{side}_text"]
    ids = [row[f"{side}_input_ids"] for row in tokens.table.to_pylist() for side in SIDES]
    assert tokens.tokens == sum(map(len, ids))


lengths = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), max_size=8)


@given(
    strategy=st.sampled_from(["drop", "truncate_right", "truncate_left", "truncate_middle"]),
    longest=st.integers(1, 12),
    pairs=st.lists(st.tuples(*[st.tuples(st.integers(1, 8), st.integers(1, 6))] * 2), max_size=8),
)
def test_each_side_is_truncated_separately(strategy: Any, longest: int, pairs: list[Any]) -> None:
    """A pair is (prompt tokens, answer tokens) of each side; the answer is trained."""
    columns: dict[str, Any] = {ROW: pa.array([2 * index for index in range(len(pairs))], pa.int32())}
    for number, side in enumerate(SIDES):
        ids = [[100 * number + place for place in range(sum(pair[number]))] for pair in pairs]
        spans = [
            [
                {"start": 0, "end": asked, "role": 0, "message": -1, "weight": 0.0, "control": False},
                {"start": asked, "end": asked + answered, "role": 0, "message": -1, "weight": 1.0, "control": False},
            ]
            for asked, answered in (pair[number] for pair in pairs)
        ]
        columns |= {f"{side}_input_ids": pa.array(ids, pa.list_(pa.uint16())), f"{side}_spans": pa.array(spans, SPANS)}
    out = in_pairs(lambda table: to_sequences(table, LengthConfig(strategy=strategy), longest))(pa.table(columns))
    validate(SEQUENCES, out.table)
    expected, useless, dropped = [], [], 0
    for index, pair in enumerate(pairs):
        result = [kept_places(sum(side), longest, strategy) for side in pair]
        lost = [place is not None and max(place) < side[0] for side, place in zip(pair, result, strict=True)]
        if any(lost):
            useless.append(2 * index)
        elif None in result:
            dropped += 1
        else:
            expected.append((2 * index, result))
    assert [row["rows"] for row in out.table.to_pylist()] == [[row] for row, _ in expected]
    for row, (index, result) in zip(out.table.to_pylist(), expected, strict=True):
        for number, side in enumerate(SIDES):
            asked = pairs[index // 2][number][0]
            assert row[f"{side}_input_ids"] == [100 * number + place for place in result[number]]
            assert row[f"{side}_trained"] == [int(place >= asked) for place in result[number]]
    assert out.rejects[ROW].to_pylist() == useless
    assert (out.filtered, out.rows_in) == (dropped, len(pairs))


def kept_places(length: int, longest: int, strategy: str) -> list[int] | None:
    places = list(range(length))
    if length <= longest:
        return places
    head = {"truncate_right": longest, "truncate_left": 0, "truncate_middle": -(-longest // 2)}
    return None if strategy == "drop" else places[: head[strategy]] + places[length - longest + head[strategy] :]


PAIR: Row = {"prompt": [said("user", "q")], "chosen": [said("assistant", "a")], "rejected": [said("assistant", "b")]}
KTO: Row = {"prompt": [said("user", "q")], "completion": [said("assistant", "a")], "label": True}


@pytest.mark.parametrize(("form", "row"), [("preference", PAIR), ("kto", KTO)])
def test_packing_and_a_missing_chat_template_are_errors(
    tokenizer_folder: Path, tmp_path: Path, form: str, row: Row
) -> None:
    table, packed = table_of(form, [row]), config_of(tokenizer_folder, length={"packing": "concat"})
    with pytest.raises(ConfigError, match=r"length\.packing.*cannot be packed"):
        prompts_of(form, table, packed)
    build, _ = build_canonical(config_of(tokenizer_folder), ArtifactStore(tmp_path), form, [table])
    build.config = packed
    with pytest.raises(ConfigError, match=r"length\.packing.*cannot be packed"):
        build.run("sequences")
    config = config_of(tokenizer_folder, {"format_type": form}, None)
    with pytest.raises(ConfigError, match=r"tokenizer\.chat_template"):
        prompts_of(form, table, config)


def test_a_side_that_fails_its_checks_is_named(tokenizer_folder: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    build, _ = build_canonical(config_of(tokenizer_folder), store, "preference", [table_of("preference", [PAIR])])
    table = store.objects.get(build.manifest("sequences").chunks[0].output)
    validate(SEQUENCES, table)
    with pytest.raises(DataValidationError, match="rejected no column trained"):
        validate(SEQUENCES, table.drop_columns(["rejected_trained"]))
    wrong = pa.array([[1]], table["rejected_trained"].type)
    with pytest.raises(DataValidationError, match=r"rejected .*trained marks every token"):
        validate(SEQUENCES, table.set_column(table.column_names.index("rejected_trained"), "rejected_trained", wrong))


def test_a_tokenizer_is_trained_on_both_sides(tmp_path: Path) -> None:
    row = {
        "prompt": [said("user", "q")],
        "chosen": [said("assistant", "abcabcabc " * 9)],
        "rejected": [said("assistant", "xyzxyzxyz " * 9)],
    }
    tokenizer = {
        "name_or_path": None,
        "train": {"vocab_size": 300},
        "special_tokens": {"eos": "<|endoftext|>", "additional": ["<|im_start|>", "<|im_end|>"]},
    }
    config = config_of(tmp_path, tokenizer=tokenizer)
    table = table_of("preference", [row] * 3)
    build, _ = build_canonical(config, ArtifactStore(tmp_path), "preference", [table])
    folder = build.store.tokenizer_folder(build.manifest("tokenizer").facts["digest"])
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    assert {"abc", "xyz"} <= vocabulary.keys()


def test_preview_shows_both_sides_and_labels(tokenizer_folder: Path, tmp_path: Path) -> None:
    broken = {**PAIR, "rejected": [said("assistant", BROKEN)]}
    config = config_of(tokenizer_folder, validation={"max_reject_fraction": 1.0})
    store = ArtifactStore(tmp_path)
    build, _ = build_canonical(config, store, "preference", [table_of("preference", [PAIR, broken])])
    shown, absent = (RowReader(store, build.name).read(row) for row in (0, 1))
    assert {
        side: [("".join(run.text for run in runs if run.trained)), "".join(run.text for run in runs)]
        for side, runs in shown.sides.items()
    } == {side: [f"{PAIR[side][0]['content']}<|im_end|>", chatml([*PAIR["prompt"], *PAIR[side]])] for side in SIDES}
    assert "private_use" in absent.absence
    page = rendered_page(Page("x", [shown, absent]))
    assert page.index("<h4>chosen</h4>") < page.index("<h4>rejected</h4>") < page.index("private_use")
    build, _ = build_canonical(config, ArtifactStore(tmp_path / "kto"), "kto", [table_of("kto", [KTO])])
    shown = RowReader(build.store, build.name).read(0)
    assert (shown.label, list(shown.sides)) == (True, [""])
    assert "label true" in rendered_page(Page("x", [shown]))


def test_counts_of_a_build_are_those_of_pairs(tokenizer_folder: Path, tmp_path: Path) -> None:
    long = {**PAIR, "chosen": [said("assistant", "word " * 50)]}
    config = config_of(tokenizer_folder, tokenizer={"max_length": 40}, length={"strategy": "drop"})
    tables = [table_of("preference", [PAIR, long, PAIR]), table_of("preference", [PAIR])]
    build, reports = build_canonical(config, ArtifactStore(tmp_path), "preference", tables)
    found = reports["sequences"]
    assert (found.rows_in, found.rows_out, found.filtered, found.rejected) == (4, 3, 1, 0)
    assert found.counters["sequences"] == 3
    chunks = [build.store.objects.get(chunk.output) for chunk in build.manifest("sequences").chunks]
    stored = [np.concatenate(table[f"{side}_input_ids"].to_numpy()) for table in chunks for side in SIDES]
    assert found.tokens == sum(map(len, stored))
