"""PreprocessedDataset: the rows of a build, encoded once and on access, in any process."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, load_dataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from support.loaded_rows import LONGEST
from support.on_the_fly_rows import LengthEngine, engine_of, good_rows, numbers, plain, plain_rows, rows_with_bad
from support.paths import TESTS
from support.processes import DEADLINE, run
from support.small_tokenizers import SaveTokenizer, WriteConfig, byte_level
from tokenloom import DataPipeline, PromptEngine
from tokenloom.errors import ConfigError, DataValidationError, Fault
from tokenloom.loaders import PreprocessedDataset, StreamingPreprocessedDataset, create_preprocessed_dataset

TALK = [
    [("user", "hello there"), ("assistant", "hi"), ("user", f"and {n}?"), ("assistant", "so " * (1 + n))]
    for n in range(8)
]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
FORMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "fields": (rows_with_bad(30, {0, 7, 29}), {}),
    "completion": (
        [{"prompt": f"p {n}", "completion": f"c {n} " * n} for n in range(1, 9)],
        {"format_type": "completion"},
    ),
    "chat": (
        [{"messages": [{"role": role, "content": text} for role, text in talk]} for talk in TALK],
        {"format_type": "chat"},
    ),
    "weighted": (
        [{"messages": [{"role": role, "content": text, "weight": 0.5} for role, text in talk]} for talk in TALK],
        {"format_type": "chat"},
    ),
    "preference": (
        [{"prompt": f"p {n}", "chosen": "yes " * n, "rejected": f"no {n}"} for n in range(1, 9)],
        {"format_type": "preference"},
    ),
    "kto": (
        [{"prompt": f"p {n}", "completion": f"c {n}", "label": n % 3 == 0} for n in range(8)],
        {"format_type": "kto"},
    ),
}


def chat_tokenizer(folder: Path) -> dict[str, Any]:
    return {"name_or_path": str(folder), "max_length": LONGEST, "chat_template": CHAT}


@pytest.fixture(params=FORMS)
def form(
    request: pytest.FixtureRequest, tmp_path: Path, write_config: Callable[..., Path], tokenizer_folder: Path
) -> tuple[list[dict[str, Any]], DataPipeline]:
    """Return rows, and the pipeline of a YAML over them."""
    rows, prompt = FORMS[request.param]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    config = write_config(
        tmp_path,
        dataset={"name": "rows.jsonl"},
        tokenizer=chat_tokenizer(tokenizer_folder),
        prompt_template=prompt or {"template": "{q}\n{a}", "label_column": "a"},
        validation={"max_reject_fraction": 1.0},
    )
    return rows, DataPipeline.from_config(config, store=tmp_path / "store").unwrap()


def test_rows_are_those_of_the_built_dataset(form: tuple[list[dict[str, Any]], DataPipeline]) -> None:
    rows, pipeline = form
    built = pipeline.get_dataset().unwrap()
    from_heads = pipeline.get_prompt_engine().unwrap()
    for engine in (from_heads, PromptEngine(pipeline.config), pickle.loads(pickle.dumps(from_heads))):
        for raw in (rows, Dataset.from_list(rows), pa.Table.from_pylist(rows)):
            dataset = PreprocessedDataset(hf_dataset=raw, prompt_engine=engine)
            assert len(dataset) == len(rows)
            usable = dataset.usable()
            assert len(usable) == len(built)
            for index in random.Random(0).sample(range(len(built)), len(built)):
                row = usable[index]
                assert plain(row) == plain(built[index])
                assert [value.dtype for value in row.values()] == [value.dtype for value in built[index].values()]
            assert len(dataset.skipped) == len(rows) - len(built)


@pytest.mark.parametrize("names", [{"eos_token": "</s>", "pad_token": "<|pad|>"}, {"eos_token": "</s>"}, {}])
def test_batches_are_padded_with_the_id_that_pads_the_built_dataset(
    names: dict[str, str], tmp_path: Path, write_config: WriteConfig, save_tokenizer: SaveTokenizer
) -> None:
    """The id of the pad token, else of EOS, else 0."""
    tokenizer = byte_level(["<unused>", "</s>", "<|pad|>"])
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in good_rows(4)), encoding="utf-8")
    config = write_config(
        tmp_path,
        dataset={"name": "rows.jsonl"},
        tokenizer={"name_or_path": str(save_tokenizer(tokenizer, tmp_path / "tokenizer", **names)), "max_length": 99},
        prompt_template={"template": "{q}\n{a}", "label_column": "a", "add_eos": bool(names)},
    )
    pipeline = DataPipeline.from_config(config, store=tmp_path / "store").unwrap()
    built = pipeline.get_dataset().unwrap()
    engine = pipeline.get_prompt_engine().unwrap()
    pads = names.get("pad_token", names.get("eos_token"))
    assert engine.pad_token_id == built.pad_token_id == (tokenizer.token_to_id(pads) if pads else 0)


@given(st.data())
def test_every_row_is_encoded_once_and_stays_as_it_is(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 700))
    engine, rows = LengthEngine(), numbers(count)
    dataset = PreprocessedDataset(rows, engine)
    asked = st.lists(st.integers(-count, max(count - 1, 0)), max_size=40)
    for batch in data.draw(st.lists(asked, max_size=12)) if count else []:
        calls = len(engine.tables)
        for number, row in zip(batch, dataset.__getitems__(batch), strict=True):
            expected = [rows[number]["n"]] * rows[number]["times"]
            assert row["input_ids"].tolist() == row["labels"].tolist() == expected
            assert row["attention_mask"].tolist() == [1] * len(expected)
            row["input_ids"].zero_()
            row["labels"].zero_()
        assert len(engine.tables) - calls <= 1
    seen = [n for table in engine.tables[1:] for n in table]  # the first table is the head
    assert len(seen) == len({*seen})


def test_a_cache_that_is_off_keeps_nothing() -> None:
    engine = LengthEngine()
    dataset = PreprocessedDataset(numbers(20), engine, cache_enabled=False)
    for _ in range(2):
        assert [row["input_ids"][0].item() for row in dataset.__getitems__([3, 17, 3])] == [3, 17, 3]
    assert engine.tables[1:] == [[3, 17], [3, 17]]
    assert len(dataset.usable()) == 20


def test_a_cache_holds_few_tables_however_it_was_filled() -> None:
    dataset = PreprocessedDataset(numbers(1000), LengthEngine())
    for number in np.random.default_rng(0).permutation(1000).tolist():
        assert dataset[number]["input_ids"][0].item() == number
    assert len(dataset._cache._tables) <= 11


def test_select_is_of_rows_of_the_dataset_and_shares_what_is_cached() -> None:
    engine = LengthEngine()
    dataset = PreprocessedDataset(numbers(1000), engine)
    odd = dataset.select(range(1, 1000, 2))
    some = odd.select(np.array([450, 0, -1, 0]))
    assert (len(odd), len(some)) == (500, 4)
    assert [some[i]["input_ids"][0].item() for i in range(4)] == [901, 1, 999, 1]
    assert dataset[901]["input_ids"][0].item() == 901
    assert [n for table in engine.tables[1:] for n in table] == [901, 1, 999]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"row {wrong} is out of range: the dataset has 4 rows"):
            some[wrong]
    with pytest.raises(IndexError, match="row 500 is out of range: the dataset has 500 rows"):
        odd.select([500])
    assert len(dataset.select([])) == 0


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_a_row_that_cannot_be_used_is_named_with_its_reason(tokenizer_folder: Path, cache_enabled: bool) -> None:
    bad = {3, 300}
    raw = rows_with_bad(320, bad)
    dataset = PreprocessedDataset(raw, engine_of(tokenizer_folder), cache_enabled)
    assert dataset[2]["labels"].max() > 0
    for number in (3, 300):
        with pytest.raises(DataValidationError, match=rf"^row {number}: \w+: .*\ba\b.*usable\(\)"):
            dataset[number]
    with pytest.raises(DataValidationError, match=r"^row 19: "):
        PreprocessedDataset(rows_with_bad(20, {19}), engine_of(tokenizer_folder)).select([18, 19]).__getitems__([0, 1])
    usable = create_preprocessed_dataset(raw, engine_of(tokenizer_folder), skip_errors=True)
    assert isinstance(usable, PreprocessedDataset)
    assert len(usable) == 318
    assert {row.row for row in usable.skipped} == bad
    whole = PreprocessedDataset(good_rows(320), engine_of(tokenizer_folder))
    kept = whole.__getitems__([number for number in range(320) if number not in bad])
    assert [*map(plain, usable.__getitems__(range(len(usable))))] == [*map(plain, kept)]


def test_rows_that_are_dropped_or_become_several_sequences_are_named(tokenizer_folder: Path) -> None:
    raw = [{"q": "q", "a": "short"}, {"q": "q", "a": "long " * 200}, {"q": "q", "a": "also short"}]
    for strategy, code in (("split", "several_sequences"), ("drop", "filtered")):
        dataset = PreprocessedDataset(raw, engine_of(tokenizer_folder, length={"strategy": strategy}))
        with pytest.raises(DataValidationError, match=f"^row 1: {code}: "):
            dataset.__getitems__([0, 1, 2])
        assert len(dataset.usable()) == 2
        assert plain(dataset.usable()[1]) == plain(dataset[2])
    few_shot = {"template": "{q}\n{a}", "label_column": "a", "few_shot": {"count": 1}}
    for sections in ({"length": {"packing": "concat"}}, {"prompt_template": few_shot}):
        with pytest.raises(ValueError, match="StreamingPreprocessedDataset"):
            PreprocessedDataset(raw, engine_of(tokenizer_folder, **sections))


@pytest.mark.parametrize(("method", "world"), [("fork", 2), ("forkserver", 1)])
def test_workers_and_ranks_see_every_row_once(tokenizer_folder: Path, method: str, world: int) -> None:
    dataset = PreprocessedDataset(Dataset.from_list(good_rows(301)), engine_of(tokenizer_folder))
    found = []
    for rank in range(world):
        sampler = DistributedSampler(dataset, world, rank, seed=3, drop_last=False)
        loader = DataLoader(
            dataset,
            8,
            sampler=sampler,
            num_workers=2,
            collate_fn=plain_rows,
            multiprocessing_context=method,
            timeout=DEADLINE,
        )
        found += [row for batch in loader for row in batch]
    assert len(found) == 300 + world  # the sampler pads to a multiple of the ranks
    assert {*found} == {plain(dataset[number]) for number in range(301)}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_error_in_a_worker_arrives_with_the_row(tokenizer_folder: Path, method: str) -> None:
    dataset = PreprocessedDataset(rows_with_bad(300, {290}), engine_of(tokenizer_folder))
    with pytest.raises(DataValidationError, match=r"row 290: \w+: "):
        list(DataLoader(dataset, 8, num_workers=2, collate_fn=list, multiprocessing_context=method, timeout=DEADLINE))


def test_workers_do_not_hang_where_the_tokenizer_has_started_threads(tokenizer_folder: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.on_the_fly_rows import engine_of, good_rows
from torch.utils.data import DataLoader
from tokenloom.loaders import PreprocessedDataset, StreamingPreprocessedDataset
engine = engine_of(Path({str(tokenizer_folder)!r}))
for kind in (PreprocessedDataset, StreamingPreprocessedDataset):
    dataset = kind(good_rows(2000), engine)
    loader = DataLoader(dataset, 50, num_workers=2, collate_fn=len, multiprocessing_context="fork")
    print(sum(loader))
"""
    command = ["env", "-u", "TOKENIZERS_PARALLELISM", sys.executable, "-c", program]
    done = run(command)
    assert done.stdout.split() == ["2000", "2000"], done.stderr


def test_a_saved_dataset_goes_on_with_what_it_has_cached() -> None:
    dataset = PreprocessedDataset(numbers(600, {7}), LengthEngine())
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[500]["input_ids"][0].item() == 500
    assert len(copy.usable()) == 599
    assert [row.row for row in copy.skipped] == [7]
    assert 500 not in [n for table in dataset._cache._encoder.engine.tables for n in table]  # type: ignore[attr-defined]


def test_an_engine_that_raises_costs_only_the_rows_that_make_it() -> None:
    bad = {0, 99, 256, 257, 511, 699}
    dataset = PreprocessedDataset(numbers(700, bad), LengthEngine())
    usable = dataset.usable()
    assert [row["input_ids"][0].item() for row in usable.__getitems__(range(len(usable)))] == [
        number for number in range(700) if number not in bad
    ]
    assert [row.row for row in dataset.skipped] == sorted(bad)
    assert {(row.code, row.message) for row in dataset.skipped} == {
        ("ValueError", "a negative number among these rows")
    }
    with pytest.raises(DataValidationError, match=r"^row 99: ValueError: a negative number"):
        dataset[99]


class MistakenEngine(LengthEngine):
    """Raises a ConfigError after the first rows."""

    def encode(self, table: pa.Table) -> pa.Table:
        if max(table["n"].to_pylist()) > 280:
            raise ConfigError([Fault("data.yaml:3", "length.strategy: wrong")])
        return super().encode(table)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_config_is_no_bad_row_and_keeps_its_sentence(workers: int) -> None:
    for dataset in (
        PreprocessedDataset(numbers(300), MistakenEngine()),
        StreamingPreprocessedDataset(numbers(300), MistakenEngine(), skip_errors=True),
    ):
        with pytest.raises(ConfigError, match=r"data\.yaml:3: length\.strategy: wrong"):
            list(DataLoader(dataset, 20, num_workers=workers, collate_fn=list))


def test_threads_may_share_a_dataset() -> None:
    engine = LengthEngine()
    dataset = PreprocessedDataset(numbers(600), engine)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(600).reshape(-1, 20).tolist()
        return all([int(row["input_ids"][0]) for row in dataset.__getitems__(rows)] == rows for rows in order)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    assert sorted(n for table in engine.tables[1:] for n in table) == list(range(600))


class TableEngine:
    """Returns a fixed table."""

    def __init__(self, made: Any):
        self.made = made

    def encode(self, table: pa.Table) -> Any:
        return self.made


def test_an_own_engine_may_say_what_is_trained_and_pairs() -> None:
    rows = [{"x": 1}, {"x": 2}]
    labels = PreprocessedDataset(rows, TableEngine(pa.table({"input_ids": [[5, 6], [7]], "labels": [[-100, 6], [7]]})))
    assert [row["labels"].tolist() for row in labels.__getitems__([0, 1])] == [[-100, 6], [7]]
    pairs = {f"{side}_input_ids": [[n, 1], [n]] for n, side in enumerate(("chosen", "rejected"), 3)}
    pairs["rejected_trained"] = [[0, 1], [1]]
    row = PreprocessedDataset(rows, TableEngine(pa.table(pairs))).__getitems__([0, 1])[0]
    assert row["chosen_labels"].tolist() == [3, 1]
    assert row["rejected_labels"].tolist() == [-100, 1]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"input_ids": [[1]]}, "got a dict"),
        (pa.table({"ids": [[1], [2]]}), "no column input_ids, only ids"),
        (pa.table({"input_ids": [[1]]}), "1 sequences for 2 rows: .* column rows"),
        (pa.table({"input_ids": [[1], [2]], "rows": [[0], [2]]}), "outside the 2 rows"),
        (pa.table({"input_ids": [[1], [2]], "trained": [[1], [1, 1]]}), "trained differs in length"),
        (pa.table({"input_ids": [[1], [None]]}), "input_ids has nulls"),
        (pa.table({"input_ids": [[1], [2]], "labels": [[2], [2]]}), "must be -100 or equal to input_ids"),
    ],
)
def test_an_engine_that_makes_no_sequences_is_told_what_is_wrong(made: Any, told: str) -> None:
    with pytest.raises(DataValidationError, match=told):
        PreprocessedDataset([{"x": 1}, {"x": 2}], TableEngine(made))


def test_what_is_no_dataset_or_no_engine_is_refused(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder)
    with pytest.raises(ValueError, match="pass one of 'train', 'test'"):
        PreprocessedDataset({"train": [], "test": []}, engine)
    with pytest.raises(ValueError, match="StreamingPreprocessedDataset"):
        PreprocessedDataset(Dataset.from_list(good_rows(3)).to_iterable_dataset(), engine)
    with pytest.raises(ValueError, match="a method encode"):
        PreprocessedDataset(good_rows(3), good_rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no column \{a\}.* the data has q, b"):
        PreprocessedDataset([{"q": "x", "b": "y"}], engine)


def test_weights_that_come_late_are_asked_for_not_lost(tokenizer_folder: Path) -> None:
    def talk(weight: float) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": weight}]}

    raw = [*(talk(1.0) for _ in range(300)), talk(0.25)]
    chat = {"prompt_template": {"format_type": "chat"}, "tokenizer": chat_tokenizer(tokenizer_folder)}
    engine = engine_of(tokenizer_folder, **chat)
    with pytest.raises(DataValidationError, match=r"rows from 300 on .* loss_weights=True"):
        PreprocessedDataset(raw, engine)[300]
    dataset = PreprocessedDataset(raw, engine, loss_weights=True)
    first, last = dataset.__getitems__([0, 300])
    assert {*first["loss_weights"].tolist()} == {0.0, 1.0}
    assert {*last["loss_weights"].tolist()} == {0.0, 0.25}
    assert torch.equal(first["labels"], last["labels"])


def test_transforms_of_a_dataset_are_kept(tokenizer_folder: Path) -> None:
    raw = Dataset.from_list(good_rows(4)).with_transform(lambda rows: {**rows, "q": [q.upper() for q in rows["q"]]})
    upper = [{**row, "q": row["q"].upper()} for row in good_rows(4)]
    engine = engine_of(tokenizer_folder)
    found, expected = PreprocessedDataset(raw, engine), PreprocessedDataset(upper, engine)
    assert [plain(found[n]) for n in range(4)] == [plain(expected[n]) for n in range(4)]


def test_a_file_that_datasets_loads(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in good_rows(9)), encoding="utf-8")
    raw: Any = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path))
    engine = engine_of(tokenizer_folder)
    found, expected = PreprocessedDataset(raw, engine), PreprocessedDataset(good_rows(9), engine)
    assert [plain(found[n]) for n in range(9)] == [plain(expected[n]) for n in range(9)]


def test_an_engine_keeps_no_rejects_of_earlier_calls(tokenizer_folder: Path) -> None:
    engine = engine_of(tokenizer_folder)
    for number in range(5):
        engine.encode(pa.Table.from_pylist(rows_with_bad(10, {number, 9})))
        assert engine.rejects["_row"].to_pylist() == [number, 9]
    engine.encode(pa.Table.from_pylist(good_rows(10)))
    assert engine.rejects.num_rows == 0


def test_an_engine_reads_later_tables_as_the_first_also_in_another_process(tokenizer_folder: Path) -> None:
    """Alone, the second table would be read with other columns."""
    first = pa.Table.from_pylist([{"prompt": "p", "completion": "c", "response": None}])
    second = pa.Table.from_pylist([{"prompt": "p", "completion": "c", "response": "another answer"}])
    engine = engine_of(tokenizer_folder, prompt_template={"format_type": "completion"})
    engine.encode(first)
    assert pickle.loads(pickle.dumps(engine)).encode(second).equals(engine.encode(second))
