"""`length.document_multiple`: each document is padded at its end, untrained and counted; nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets_on_disk import TOKENIZER, write_dataset
from support.token_documents import Document, documents_of, table_of
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.sequences.shown import dropped_tokens
from tokenloom.assets.sequences.stage import CONTRACT
from tokenloom.cli import main
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.loaders import open_dataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import list_array
from tokenloom.resources.tables.sequence_schema import SequenceFacts, check_sequences, without_padding

DOCUMENTS = st.lists(st.lists(st.booleans(), max_size=40), max_size=12).map(documents_of)
STRATEGIES = st.sampled_from(["truncate_right", "truncate_left", "truncate_middle", "split", "drop"])
PAD = 60_000


def run(documents: list[Document], longest: int, **length: Any) -> Any:
    return to_sequences(table_of(documents), LengthConfig.model_validate(length), longest, pad_token_id=PAD)


def pieces(table: pa.Table, multiple: int = 1) -> list[tuple[int, list[int], list[int]]]:
    """Return raw row, ids and flags of each document of all sequences; each must be padded by the definition."""
    found = []
    for row in table.to_pylist():
        at = 0
        for number, (raw, size) in enumerate(zip(row["rows"], row["document_lengths"], strict=True)):
            ids, trained = (row[name][at : at + size] for name in ("input_ids", "trained"))
            pads = row["padding"][number] if "padding" in row else 0
            own = size - pads
            wide = own
            while wide % multiple:
                wide += 1
            assert (size, ids[own:], trained[own:]) == (wide, [PAD] * pads, [0] * pads)
            found.append((raw, ids[:own], trained[:own]))
            at += size
        assert at == len(row["input_ids"])
    return found


@given(DOCUMENTS, st.sampled_from([2, 3, 4, 8, 16]), st.integers(1, 3), STRATEGIES, st.booleans())
def test_documents_are_those_without_the_setting_padded(
    documents: list[Document], multiple: int, times: int, strategy: str, packed: bool
) -> None:
    longest, packing = multiple * times, "best_fit" if packed else "none"
    plain = run(documents, longest, strategy=strategy)
    padded = run(documents, longest, strategy=strategy, packing=packing, document_multiple=multiple)
    found = pieces(padded.table, multiple)
    assert (sorted(found) if packed else found) == (sorted(pieces(plain.table)) if packed else pieces(plain.table))
    assert all(len(row["input_ids"]) <= longest for row in padded.table.to_pylist())
    pads = sum(sum(row["padding"]) for row in padded.table.to_pylist())
    assert padded.counters.pop("tokens_padding") == pads
    assert padded.tokens == plain.tokens + pads == sum(len(row["input_ids"]) for row in padded.table.to_pylist())
    assert padded.counters == {**plain.counters, "sequences": padded.table.num_rows}
    if not packed:
        assert without_padding(padded.table).equals(plain.table)
    for check in CONTRACT.checks.values():
        assert check(padded.table)


@given(DOCUMENTS, st.sampled_from([2, 4, 8]), STRATEGIES, st.booleans())
def test_gaps_are_those_of_sequences_without_padding(
    documents: list[Document], multiple: int, strategy: str, packed: bool
) -> None:
    """Every token that a row lost is in one gap, at the place that it has without padding."""
    settings = {"length.strategy": strategy, "length.packing": "best_fit" if packed else "none"}
    settings |= {"tokenizer.max_length": 16, "length.document_multiple": multiple}
    length = {name.removeprefix("length."): value for name, value in settings.items() if "length." in name[:7]}
    tokens, sequences = table_of(documents), run(documents, 16, **length).table
    gaps = dropped_tokens(tokens, sequences, settings)
    left = {raw for row in sequences.to_pylist() for raw in row["rows"]}
    kept = [number for _, ids, _ in pieces(sequences, multiple) for number in ids]
    lost = [number for found in gaps.get("", {}).values() for gap in found for number in gap.ids.tolist()]
    expected = {number for document in documents if document.row in left for number, _ in document.tokens}
    assert {*kept} | {*lost} == expected and not {*kept} & {*lost}
    for number, found in gaps.get("", {}).items():
        own = without_padding(sequences)["input_ids"][number].as_py()
        for gap in found:
            before = own[gap.position - 1 : gap.position] if gap.ends else own[gap.position : gap.position + 1]
            assert before == [gap.ids[0] - 1 if gap.ends else gap.ids[-1] + 1]


def declared(**changes: Any) -> PipelineConfig:
    settings: dict[str, Any] = {"dataset": {"name": "rows.jsonl"}, "tokenizer": {"max_length": 64}}
    settings["length"] = {"document_multiple": 8, **changes.pop("length", {})}
    return PipelineConfig.from_mapping({**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": {"document_multiple": 1}}, "greater than or equal to 2"),
        ({"tokenizer": {"max_length": 60}}, "max_length 60 is not a multiple of 8; set max_length: 56"),
        ({"tokenizer": {"max_length": 4}}, "max_length 4 is not a multiple of 8; set max_length: 8"),
        ({"length": {"packing": "concat"}}, "packing: concat cannot be padded; set packing: none or best_fit"),
        ({"tokenizer": {"max_length": 64, "padding": 12}}, "tokenizer.padding 12 is not a multiple of 8"),
        (
            {"tokenizer": {"max_length": 64, "processor": "p"}},
            "rows with images cannot be padded to a multiple of tokens; omit it",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        declared(**changes)
    assert "length.document_multiple" in str(raised.value)


@pytest.mark.parametrize("padding", [1, 2, 4, 8, 24, "longest"])
def test_a_padding_that_keeps_the_multiple_is_accepted(padding: int | str) -> None:
    assert declared(tokenizer={"max_length": 64, "padding": padding}).length.document_multiple == 8


def build(path: Path, *options: str) -> int:
    return main(["build", str(path), "--store", str(path.parent / "store"), *options])


@pytest.mark.parametrize("kind", ["preference", "kto"])
def test_pairs_and_labelled_rows_are_refused(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {"prompt": "river", "chosen": "stone", "rejected": "maple"}
    if kind == "kto":
        row = {"prompt": "river", "completion": "stone", "label": True}
    path = write_dataset(tmp_path, 0, prompt_template={"format_type": kind}, length={"document_multiple": 8})
    (tmp_path / "small.jsonl").write_text("".join(json.dumps({**row, "prompt": f"river {n}"}) + "\n" for n in range(9)))
    assert build(path) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"{kind} data cannot be padded to a multiple of tokens; omit it" in printed


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padded")
    for name, packing in (("padded", "best_fit"), ("alone", "none")):
        length = {"packing": packing, "document_multiple": 16, "strategy": "truncate_right"}
        assert build(write_dataset(folder, 120, name, length=length, tokenizer={**TOKENIZER, "max_length": 128})) == 0
    plain = {"length": {"strategy": "truncate_right"}, "tokenizer": {**TOKENIZER, "max_length": 128}}
    assert build(write_dataset(folder, 120, "plain", **plain)) == 0
    return folder


def stored(home: Path, name: str) -> pa.Table:
    store = ArtifactStore(home / "store")
    return pa.concat_tables(store.objects.get(chunk.output) for chunk in store.manifest(name).chunks)


def test_a_build_counts_what_it_pads(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = [row["input_ids"] for row in stored(home, "plain").to_pylist()]
    expected = sum(-len(ids) % 16 for ids in plain)
    for name in ("padded", "alone"):
        counters = ArtifactStore(home / "store").manifest(name).counters
        assert counters["tokens_padding"] == expected > 0
        assert counters["tokens_in"] + expected == counters["tokens_cut"] + sum(
            len(row["input_ids"]) for row in stored(home, name).to_pylist()
        )
        capsys.readouterr()
        assert build(home / f"{name}.yaml") == 0
        assert f"{expected:,} of padding in documents" in " ".join(capsys.readouterr().out.split())
    assert "tokens_padding" not in ArtifactStore(home / "store").manifest("plain").counters


def test_rows_people_see_and_rows_of_an_export_have_no_padding(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = {}
    for name in ("alone", "plain"):
        capsys.readouterr()
        options = ["preview", str(home / f"{name}.yaml"), "--row", "0", "1", "7", "9", "--store", str(home / "store")]
        assert main(options) == 0
        shown[name] = capsys.readouterr().out.replace(name, "NAME")
    assert "pad" not in shown["alone"] and shown["alone"] == shown["plain"]
    exported = {}
    for name in ("alone", "plain", "padded"):
        folder = tmp_path / name
        options = ["export", str(home / f"{name}.yaml"), str(folder), "--to", "parquet", "--store", str(home / "store")]
        assert main(options) == 0

        exported[name] = parquet.read_table(str(folder / "train")).to_pylist()
    assert exported["alone"] == exported["plain"]
    texts = []
    for row in exported["padded"]:
        assert len(row["input_ids"]) == sum(row["seq_lengths"])
        ends = np.cumsum(row["seq_lengths"])[:-1]
        texts += [ids.tolist() for ids in np.split(np.array(row["input_ids"]), ends)]
    assert sorted(texts) == sorted(row["input_ids"] for row in exported["plain"])


def test_rows_of_the_dataset_have_no_padding(home: Path) -> None:
    rows, plain = (open_dataset(name, store=home / "store") for name in ("alone", "plain"))
    assert [rows[n]["input_ids"].tolist() for n in range(len(rows))] == [
        plain[n]["input_ids"].tolist() for n in range(len(plain))
    ]
    assert rows.document_multiple == 16 and plain.document_multiple == 0
    assert all(length % 16 == 0 for length in rows.lengths(np.arange(len(rows))).tolist())


def crafted() -> list[tuple[str, str, Any]]:
    """Return what is wrong, the part of the message, and the new `padding` or documents of the first sequence."""
    return [
        ("negative", "does not fit", lambda lengths, padding: (lengths, [-1, *padding[1:]])),
        ("a whole multiple", "does not fit", lambda lengths, padding: (lengths, [16, *padding[1:]])),
        ("wild", "does not fit", lambda lengths, padding: (lengths, [(1 << 31) - 1, *padding[1:]])),
        ("one too many", "different numbers", lambda lengths, padding: (lengths, [*padding, 0])),
        ("none", "different numbers", lambda lengths, padding: (lengths, [])),
        (
            "not a multiple",
            "not padded to a multiple",
            lambda lengths, padding: ([lengths[0] - 1, lengths[1] + 1, *lengths[2:]], padding),
        ),
    ]


@pytest.mark.parametrize(("wrong", "message", "change"), crafted(), ids=[case[0] for case in crafted()])
def test_crafted_objects_are_refused(home: Path, wrong: str, message: str, change: Any) -> None:
    table = stored(home, "padded").combine_chunks()
    facts = SequenceFacts.of(ArtifactStore(home / "store").manifest("padded").facts)
    check_sequences(table, facts)
    number = next(n for n, row in enumerate(table.to_pylist()) if len(row["document_lengths"]) > 1)
    first = table.to_pylist()[number]
    lengths, padding = change(first["document_lengths"], first["padding"])
    made = table.slice(number, 1)
    for name, values in (("document_lengths", lengths), ("padding", padding)):
        column = list_array(np.array([0, len(values)]), np.array(values, np.int32))
        made = made.set_column(made.column_names.index(name), name, column)
    with pytest.raises(ValueError, match=message):
        check_sequences(made, facts)


def test_a_chunk_with_or_without_the_column_is_that_of_its_manifest(home: Path) -> None:
    manifest = ArtifactStore(home / "store").manifest("padded")
    facts = SequenceFacts.of(manifest.facts)
    with pytest.raises(ValueError, match="no column padding"):
        check_sequences(without_padding(stored(home, "padded")), facts)
    plain = {name: value for name, value in manifest.facts.items() if name != "document_multiple"}
    with pytest.raises(ValueError, match="unexpected column 'padding'"):
        check_sequences(stored(home, "padded"), SequenceFacts.of(plain))
    for wrong in (-8, 1, True, "8", 7, 1 << 40):
        with pytest.raises(ValueError, match="no valid document_multiple"):
            SequenceFacts.of({**manifest.facts, "document_multiple": wrong})
    with pytest.raises(ValueError, match="several documents"):
        check_sequences(stored(home, "padded"), SequenceFacts.of({**manifest.facts, "packed": False}))
