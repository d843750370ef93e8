"""Trees hold the texts of their rows: what a trained token sees is the start of its text, and weights add up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builds import build
from support.small_tokenizers import WriteConfig
from support.tree_contexts import Contexts, contexts_of_batch, contexts_of_row, contexts_of_texts, rows_of
from tokenloom.assets.prompts.spans import SPAN_ROLES, span_lists
from tokenloom.assets.sequences.answers import Documents
from tokenloom.assets.sequences.packing import to_sequences
from tokenloom.assets.sequences.shown import dropped_tokens, row_hashes
from tokenloom.assets.sequences.stage import CONTRACT
from tokenloom.assets.sequences.trees import grow, unfolded
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.cli.main import main
from tokenloom.config import LengthConfig, PipelineConfig
from tokenloom.errors import ConfigError
from tokenloom.loaders import MixedDataset, TokenLoader, open_dataset
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.tables.ragged import list_array, offsets_of
from tokenloom.resources.tables.sequence_schema import SequenceFacts, check_sequences

Text = tuple[int, list[int], list[float]]
"""The raw row of a text, its ids, and the weight of each."""

LONGEST = 24
TEXTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.0, 1.0, 0.5])), min_size=1, max_size=LONGEST),
    ),
    max_size=9,
).map(lambda drawn: [(row, [i for i, _ in ids], [w for _, w in ids]) for row, ids in sorted(drawn, key=lambda t: t[0])])


def documents(texts: list[Text], values: list[list[float]] | None = None) -> Documents:
    ids = [number for _, of_text, _ in texts for number in of_text]
    weights = [number for _, _, of_text in texts for number in of_text]
    numbers = (
        {}
        if values is None
        else {"token:logprob": np.array([number for text in values for number in text], np.float32)}
    )
    return Documents(
        np.array(ids, np.uint16),
        np.array(weights, np.float32),
        np.array([len(text[1]) for text in texts], np.int64),
        np.array([text[0] for text in texts], np.int32),
        values=numbers,
    )


def tokens_table(texts: list[Text], prompts: list[int]) -> pa.Table:
    """Return a chunk of tokens: each text is a prompt of some tokens, then an answer with its weights."""
    spans: list[list[Any]] = [[] for _ in range(6)]
    counts = []
    for (_, ids, weights), prompt in zip(texts, prompts, strict=True):
        bounds = [*range(prompt, len(ids) + 1)]
        pieces = [(0, prompt, "user", 0.0)] if prompt else []
        pieces += [(a, b, "assistant", weights[a]) for a, b in pairwise(bounds)]
        counts.append(len(pieces))
        for start, end, role, weight in pieces:
            given_span = (start, end, SPAN_ROLES.index(role), 1 if role == "assistant" else 0, weight, False)
            for column, value in zip(spans, given_span, strict=True):
                column.append(value)
    types = (np.int64, np.int64, np.uint8, np.int32, np.float32, bool)
    flat = [np.array(column, kind) for column, kind in zip(spans, types, strict=True)]
    ids = np.array([number for text in texts for number in text[1]], np.uint16)
    lengths = np.array([len(text[1]) for text in texts], np.int64)
    columns = {"_row": pa.array([text[0] for text in texts], pa.int32())}
    columns |= {"input_ids": list_array(offsets_of(lengths), ids), "spans": span_lists(np.array(counts), *flat)}
    return pa.table(columns)


@given(texts=TEXTS)
def test_trees_hold_what_their_texts_train(texts: list[Text]) -> None:
    trees = grow(documents(texts), np.array([row for row, _, _ in texts], np.int64), LONGEST)
    assert sum(trees.counts) == len(trees.nodes.lengths)
    assert (trees.lengths <= LONGEST).all()
    ends, positions, place = list[int](), list[int](), 0
    for length, position, reach in zip(trees.nodes.lengths, trees.positions, trees.reach, strict=True):
        ends += [place + reach] * length
        positions += range(position, position + length)
        place += length
    weights = trees.nodes.weights.tolist()
    assert contexts_of_row(trees.nodes.ids.tolist(), weights, ends) == contexts_of_texts(
        [ids for _, ids, _ in texts], [weights for _, _, weights in texts]
    )
    for query, weight in enumerate(weights):
        seen = [key for key in range(query + 1) if query < ends[key]]
        assert [positions[key] for key in seen] == [*range(len(seen))]
        if weight and len(seen) > 1:  # shifted labels are right: the token before it is the one before it in its text
            assert seen[-2] == query - 1


@given(texts=TEXTS)
def test_no_smaller_trees_have_these_texts(texts: list[Text]) -> None:
    """A trie has a node for each beginning of a text; a branch adds a copy, and texts that share less than two tokens
    do not branch."""
    trees = grow(documents(texts), np.array([row for row, _, _ in texts], np.int64), LONGEST * len(texts) + 1)
    beginnings = {(row, tuple(ids[: place + 1])) for row, ids, _ in texts for place in range(len(ids))}
    branches = len(texts) - len(trees.lengths)
    roots = sum(1 for begin in beginnings if len(begin[1]) == 1)
    assert len(trees.nodes.ids) == len(beginnings) + branches + len(trees.lengths) - roots


@given(texts=TEXTS)
def test_texts_can_be_read_back(texts: list[Text]) -> None:
    trees = grow(documents(texts), np.array([row for row, _, _ in texts], np.int64), LONGEST)
    kinds = {"rows": pa.int32(), "document_lengths": pa.int32(), "positions": pa.int32(), "input_ids": pa.uint16()}
    nodes = trees.nodes
    columns = {
        "rows": nodes.rows,
        "document_lengths": nodes.lengths,
        "positions": trees.positions,
        "input_ids": nodes.ids,
    }
    half = int(np.searchsorted(np.cumsum(trees.counts), len(nodes.rows) // 2))
    at = {name: int(trees.counts[:half].sum()) for name in columns} | {"input_ids": int(trees.lengths[:half].sum())}
    table = pa.table(
        {
            name: pa.array([values[: at[name]].tolist(), values[at[name] :].tolist()], pa.list_(kinds[name]))
            for name, values in columns.items()
        }
    )
    found = list[tuple[int, list[int]]]()
    for row in unfolded(table).to_pylist():
        begin = 0
        for raw, length in zip(row["rows"], row["document_lengths"], strict=True):
            found.append((raw, row["input_ids"][begin : begin + length]))
            begin += length
        assert begin == len(row["input_ids"])
    assert sorted(found) == sorted((row, ids) for row, ids, _ in texts)


@given(texts=TEXTS, data=st.data(), packed=st.integers(LONGEST, 60))
def test_a_chunk_of_tokens_becomes_sequences_of_whole_trees(texts: list[Text], data: Any, packed: int) -> None:
    prompts = [data.draw(st.integers(0, len(ids))) for _, ids, _ in texts]
    texts = [
        (row, ids, [0.0] * prompt + weights[prompt:])
        for (row, ids, weights), prompt in zip(texts, prompts, strict=True)
    ]
    output = to_sequences(tokens_table(texts, prompts), LengthConfig(packing="tree", strategy="drop"), packed)
    facts = SequenceFacts(0, 2, packed, True, "sequence", "", trees=True)
    check_sequences(output.table, facts)
    assert CONTRACT.problems(output.table) == []
    kept = [text for text in texts if any(text[2])]
    found = sum((contexts_of_row(row["ids"], row["weights"], row["ends"]) for row in rows_of(output.table)), Contexts())
    assert found == contexts_of_texts([ids for _, ids, _ in kept], [weights for _, _, weights in kept])
    counters, stored = output.counters, sum(len(row["ids"]) for row in rows_of(output.table))
    assert counters["tokens_in"] == stored + counters["tokens_rejected"] + counters["tokens_shared"]
    assert output.tokens == stored


def test_a_number_per_token_is_shared_only_where_it_is_the_same() -> None:
    texts: list[Text] = [(0, [1, 2, 3, 4], [0, 1, 1, 1]), (0, [1, 2, 3, 5], [0, 1, 1, 1])]
    values = [[0.0, -1.0, -2.0, -3.0], [0.0, -1.0, -2.5, -4.0]]
    trees = grow(documents(texts, values), np.zeros(2, np.int64), 16)
    assert trees.nodes.ids.tolist() == [1, 2, 3, 4, 2, 3, 5]
    assert trees.nodes.values["token:logprob"].tolist() == [0, -1, -2, -3, -1, -2.5, -4]
    assert trees.nodes.weights.tolist() == [0, 2, 1, 1, 0, 1, 1]


def test_rows_with_the_same_prompt_share_it_and_others_do_not() -> None:
    same = [(row, [7, 8, 9, 10 + row], [0.0, 0.0, 0.0, 1.0]) for row in range(3)]
    other = [(3, [7, 8, 1, 5], [0.0, 0.0, 0.0, 1.0])]
    output = to_sequences(tokens_table([*same, *other], [3] * 4), LengthConfig(packing="tree"), 64)
    assert output.table.to_pylist() == [
        {
            "input_ids": [7, 8, 9, 10, 9, 11, 9, 12, 7, 8, 1, 5],
            "trained": [0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1],
            "rows": [0, 0, 1, 2, 3],
            "document_lengths": [2, 2, 2, 2, 4],
            "positions": [0, 2, 2, 2, 0],
            "reach": [8, 2, 2, 2, 4],
        }
    ]


def test_a_tree_that_is_too_long_is_cut_where_a_text_branches_off() -> None:
    texts: list[Text] = [(0, [1] * 6 + [2 + n] * 4, [0.0] * 6 + [1.0] * 4) for n in range(6)]
    output = to_sequences(tokens_table(texts, [6] * 6), LengthConfig(packing="tree"), 21)
    rows = [*rows_of(output.table)]
    assert [len(row["ids"]) for row in rows] == [20, 20]
    assert [row["positions"].count(0) for row in rows] == [1, 1]
    assert output.counters["tokens_shared"] == 20


THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.thinking and loop.last %}{{ '(' + m.thinking + ')' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def talk(number: int, turns: int) -> list[dict[str, str]]:
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {number % 5} {turn} " * 3})
        messages.append({"role": "assistant", "content": f"answer {turn}", "thinking": f"thought {number} " * 3})
    return messages


@pytest.fixture
def declare(tmp_path: Path, write_config: WriteConfig, tokenizer_folder: Path) -> Any:
    rows = [{"messages": talk(number, 1 + number % 4), "id": number} for number in range(24)]
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def declared(name: str, packing: str, **sections: Any) -> Path:
        tokenizer = {"name_or_path": str(tokenizer_folder), "chat_template": THINKS, "max_length": 512}
        dataset = {"name": str(tmp_path / "talks.jsonl"), **sections.pop("dataset", {})}
        length = {"packing": packing, **sections.pop("length", {})}
        prompt = {"format_type": "chat", "turns": "exact"}
        parts = {"dataset": dataset, "tokenizer": tokenizer, "prompt_template": prompt, "length": length, **sections}
        return write_config(tmp_path, name, **parts)

    return declared


def trained_of(dataset: Any, **options: Any) -> Contexts:
    batches = TokenLoader(dataset, 3, shuffle="none", padding="longest", **options)
    return sum(map(contexts_of_batch, batches), Contexts())


def trained_of_texts(store: Path, name: str) -> Contexts:
    rows = [*open_dataset(name, store=store)]
    texts = [row["input_ids"].tolist() for row in rows]
    return contexts_of_texts(texts, [(row["labels"] != -100).float().tolist() for row in rows])


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_train_what_separate_texts_train(declare: Any, tmp_path: Path, side: str) -> None:
    store = tmp_path / "store"
    trees, texts = (build(declare(name, name), store) for name in ("tree", "none"))
    assert trees["sequences"].rows_out == texts["sequences"].rows_out == 24
    assert trees["sequences"].tokens < 0.8 * texts["sequences"].tokens
    assert trained_of(open_dataset("tree", store=store), padding_side=side) == trained_of_texts(store, "none")


def test_any_number_of_workers_makes_the_same_trees(declare: Any, tmp_path: Path) -> None:
    path, stores = declare("tree", "tree"), [tmp_path / f"store{workers}" for workers in (1, 3)]
    for workers, store in zip((1, 3), stores, strict=True):
        build(path, store, workers, ChunkSize(2_000, 4_000))
    one, other = (ArtifactStore(store).manifest("tree", "sequences") for store in stores)
    assert len(one.chunks) > 1
    assert one.digest == other.digest


def test_trace_preview_and_kept_columns_know_trees(
    declare: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    build(declare("tree", "tree", dataset={"keep_columns": ["id"], "name": str(tmp_path / "talks.jsonl")}), store)
    dataset = open_dataset("tree", store=store)
    assert dataset.trees and dataset.packed
    for number, batch in enumerate(TokenLoader(dataset, 1, shuffle="none")):
        places = dataset.trace(number).places
        assert [f"talks.jsonl:{value + 1}" for value in batch["id"][0]] == [*places]
    assert main(["preview", str(tmp_path / "tree.yaml"), "--store", str(store), "--row", "3"]) == 0
    shown = capsys.readouterr().out
    assert "talks.jsonl:4, after its first" in shown


def test_a_mixture_mixes_trees_with_trees_only(declare: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for name, packing in (("tree", "tree"), ("more", "tree"), ("packed", "best_fit")):
        build(declare(name, packing), store)
    opened = {name: open_dataset(name, store=store) for name in ("tree", "more", "packed")}
    mixed = MixedDataset({name: opened[name] for name in ("tree", "more")}, {"tree": 0.5, "more": 0.5})
    assert mixed.trees
    assert "attention_ends" in next(iter(TokenLoader(mixed, 2)))
    with pytest.raises(ValueError, match="of tree and packed, only tree has trees; set the same"):
        MixedDataset({name: opened[name] for name in ("tree", "packed")}, {"tree": 0.5, "packed": 0.5})


def test_tokens_that_a_tree_lost_at_its_start_count_as_dropped() -> None:
    texts: list[Text] = [(row, [row + n for n in range(9)], [0.0] * 6 + [1.0] * 3) for row in (0, 20)]
    tokens = tokens_table(texts, [6, 6])
    settings = {"length.strategy": "truncate_left", "length.packing": "tree", "tokenizer.max_length": 7}
    output = to_sequences(tokens, LengthConfig(strategy="truncate_left", packing="tree"), 7)
    found = dropped_tokens(tokens, output.table, settings)[""]
    gaps = {number: [gap.ids.tolist() for gap in of_row] for number, of_row in found.items()}
    assert gaps == {0: [[0, 1]], 1: [[20, 21]]}


def test_rows_of_two_splits_are_compared_as_whole_texts() -> None:
    alone = to_sequences(tokens_table([(0, [7, 8, 9, 11], [0, 0, 0, 1])], [3]), LengthConfig(packing="tree"), 64)
    pair = [(0, [7, 8, 9, 10], [0.0, 0, 0, 1]), (1, [7, 8, 9, 11], [0.0, 0, 0, 1])]
    joined = to_sequences(tokens_table(pair, [3, 3]), LengthConfig(packing="tree"), 64)
    assert row_hashes(joined.table)[1][1] == row_hashes(alone.table)[1][0] != row_hashes(joined.table)[1][0]


def test_no_shared_token_counts_as_dropped() -> None:
    texts: list[Text] = [(0, [1, 2, 3, 4, 5, 6, n, n + 1], [0.0] * 6 + [1.0, 1.0]) for n in (10, 20)]
    tokens = tokens_table(texts, [6, 6])
    settings = {"length.strategy": "truncate_right", "length.packing": "tree", "tokenizer.max_length": 7}
    output = to_sequences(tokens, LengthConfig(strategy="truncate_right", packing="tree"), 7)
    assert [row["input_ids"] for row in output.table.to_pylist()] == [[1, 2, 3, 4, 5, 6, 10], [1, 2, 3, 4, 5, 6, 20]]
    found = dropped_tokens(tokens, output.table, settings)[""]
    gaps = {number: [gap.ids.tolist() for gap in of_row] for number, of_row in found.items()}
    assert gaps == {0: [[11]], 1: [[21]]}
    settings["tokenizer.max_length"] = 32
    whole = to_sequences(tokens, LengthConfig(strategy="truncate_right", packing="tree"), 32)
    assert whole.table.num_rows == 1
    assert dropped_tokens(tokens, whole.table, settings) == {}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"dataset": {"name": "x.jsonl", "streaming": True}},
            "length.packing: tree needs a build, but dataset.streaming",
        ),
        ({"length": {"packing": "tree", "document_multiple": 8}}, "length.document_multiple: "),
    ],
)
def test_settings_that_do_not_go_with_trees_are_refused(sections: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"dataset": {"name": "x.jsonl"}, "length": {"packing": "tree"}, **sections}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps({"tokenizer": {"name_or_path": "gpt2"}, **settings}))
    with pytest.raises(ConfigError, match=message):
        PipelineConfig.from_file(path)


def test_a_build_of_exact_turns_says_that_trees_store_less(
    declare: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for packing in ("none", "tree"):
        assert main(["build", str(declare(packing, packing)), "--store", str(tmp_path / "store")]) == 0
        printed[packing] = capsys.readouterr().out
    assert "length.packing: tree stores what they share once" in " ".join(printed["none"].split())
    assert "length.packing: tree" not in printed["tree"]
    assert "shared by texts, stored once" in " ".join(printed["tree"].split())
