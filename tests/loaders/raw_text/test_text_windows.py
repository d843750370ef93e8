"""Small texts: windows over one stream of tokens, with labels shifted by one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.foreign_datasets import CodePoints
from tokenloom.errors import SourceError
from tokenloom.loaders import MapLoader, TransformerDataset, create_dataloaders

TEXTS = ["the first text", " a second, with spaces ", "grüße aus Köln", "你好世界", "and one more that is longer", "x"]


def write(folder: Path, texts: list[str], name: str = "train.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = texts if path.suffix == ".txt" else [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def stream(texts: list[str]) -> list[int]:
    return [ord(character) for text in texts for character in text]


@pytest.mark.parametrize("returns", ["ids", "array", "dict", "nested", "encoding"])
@pytest.mark.parametrize("name", ["train.jsonl", "train.txt"])
@pytest.mark.parametrize("length", [1, 5, 16])
def test_windows_are_cut_from_one_stream_with_targets_one_ahead(
    tmp_path: Path, returns: str, name: str, length: int
) -> None:
    data = TransformerDataset(write(tmp_path, TEXTS, name), CodePoints(returns), length)
    tokens = stream(TEXTS)
    assert len(data) == (len(tokens) - 1) // length
    for number in range(len(data)):
        begin = number * length
        window = data[number]
        assert window["input_ids"].tolist() == tokens[begin : begin + length]
        assert window["labels"].tolist() == tokens[begin + 1 : begin + length + 1]
        assert {value.dtype for value in window.values()} == {torch.int64}
    with pytest.raises(IndexError):
        data[len(data)]


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1), min_size=1))
def test_no_token_is_lost_or_doubled(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("windows")
    tokens = stream(texts)
    for name in ("train.jsonl", "train.txt"):
        if len(tokens) > 1:
            data = TransformerDataset(write(folder, texts, name), CodePoints(), 1)
            assert [int(data[n]["input_ids"]) for n in range(len(data))] == tokens[:-1]
            assert [int(data[n]["labels"]) for n in range(len(data))] == tokens[1:]


def test_libraries_that_encode_many_texts_at_once_give_what_they_give_one_by_one(
    tmp_path: Path, bos_tokenizer_folder: Path
) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    path = write(tmp_path, TEXTS * 300)
    hub = AutoTokenizer.from_pretrained(bos_tokenizer_folder)
    bare = Tokenizer.from_file(str(bos_tokenizer_folder / "tokenizer.json"))
    expected = [token for text in TEXTS * 300 for token in hub.encode(text)]
    assert expected[0] == hub.bos_token_id
    for tokenizer in (hub, bare):
        assert TransformerDataset(path, tokenizer, 32).tokens.tolist() == expected


def test_the_stream_is_kept_small(tmp_path: Path) -> None:
    assert TransformerDataset(write(tmp_path, TEXTS), CodePoints(), 4).tokens.dtype == np.uint16
    rare = write(tmp_path, [*TEXTS, "😀"], "rare.jsonl")
    assert TransformerDataset(rare, CodePoints(), 4).tokens.dtype == np.uint32


def test_the_ending_says_what_a_file_is_unless_told(tmp_path: Path) -> None:
    text = '{"text": "not an object here"}'
    plain = write(tmp_path, [text], "plain.txt")
    assert TransformerDataset(plain, CodePoints(), 2).tokens.tolist() == stream([text])
    assert TransformerDataset(plain, CodePoints(), 2, is_jsonl=True).tokens.tolist() == stream(["not an object here"])


def test_blank_lines_are_left_out_and_a_lines_end_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes("\ufeffone\r\n\r\n  \ntwo".encode())
    assert TransformerDataset(path, CodePoints(), 2).tokens.tolist() == stream(["one", "two"])


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('{"text": "a"}\n{"text": 3}\n', r"train.jsonl:2: .*'text'"),
        ('{"text": "a"}\n\n{"body": "b"}\n', r"train.jsonl:3: .*got an object with 'body'"),
        ('{"text": "a"}\nplain\n', r"train.jsonl:2: not valid JSON.*is_jsonl=False"),
        ('["text"]\n', r"train.jsonl:1: .*got a list"),
        ('{"text": "too short"}\n', r"seq_length 9 needs 10 tokens, but the file has only 9"),
        ("", r"the file has only 0"),
    ],
)
def test_a_wrong_line_is_placed(tmp_path: Path, lines: str, named: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(lines)
    with pytest.raises(SourceError, match=named):
        TransformerDataset(path, CodePoints(), 9)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    for name in ("latin.txt", "missing.txt"):
        with pytest.raises(SourceError, match=name):
            TransformerDataset(tmp_path / name, CodePoints(), 4)
    with pytest.raises(ValueError, match="seq_length must be an integer of at least 1, got 0"):
        TransformerDataset(tmp_path / "latin.txt", CodePoints(), 0)
    with pytest.raises(TypeError, match="got a str"):
        TransformerDataset(write(tmp_path, TEXTS), Words(), 4)


class Words:
    """A tokenizer that returns text."""

    def encode(self, text: str) -> str:
        return text


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return write(folder, TEXTS * 9), write(folder, TEXTS[:4], "val.txt")


def windows(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch["input_ids"].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_is_shuffled_and_full_validation_is_in_order_and_whole(paths: tuple[Path, Path], workers: int) -> None:
    make: Callable[..., tuple[MapLoader, MapLoader]] = create_dataloaders
    train, validation = make(*paths, CodePoints(), batch_size=8, seq_length=10, num_workers=workers)
    whole = TransformerDataset(paths[0], CodePoints(), 10)
    in_order = [tuple(whole[number]["input_ids"].tolist()) for number in range(len(whole))]
    assert len(in_order) % 8 != 0
    epochs = [list(train), list(train)]
    for batches in epochs:
        assert len(batches) == len(train) == len(in_order) // 8
        assert {tuple(batch[name].shape) for batch in batches for name in batch} == {(8, 10)}
        assert set(windows(batches)) <= set(in_order)
        assert windows(batches) != in_order[: len(windows(batches))]
    assert windows(epochs[0]) != windows(epochs[1])
    held = TransformerDataset(paths[1], CodePoints(), 10)
    for _ in range(2):
        assert windows(validation) == [tuple(held[number]["input_ids"].tolist()) for number in range(len(held))]
    again, _ = make(*paths, CodePoints(), batch_size=8, seq_length=10)
    assert windows(again) == windows(epochs[0])


def test_a_loader_of_windows_resumes_and_knows_its_tokens(paths: tuple[Path, Path]) -> None:
    train, _ = create_dataloaders(*paths, CodePoints(), 4, 10)
    expected = windows(train)
    stopped, other = create_dataloaders(*paths, CodePoints(), 4, 10)
    batches = iter(stopped)
    begun = [next(batches), next(batches)]
    resumed, _ = create_dataloaders(*paths, CodePoints(), 4, 10)
    resumed.load_state_dict(stopped.state_dict())
    assert windows(begun) + windows(resumed) == expected
    assert other.state_dict()["data"] != stopped.state_dict()["data"]


def test_a_pickled_dataset_is_the_same_dataset(paths: tuple[Path, Path]) -> None:
    data = TransformerDataset(paths[0], CodePoints(), 10)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.digest == data.digest and len(copy) == len(data)
    assert torch.equal(copy[3]["labels"], data[3]["labels"])


def test_too_few_windows_for_a_batch_are_told(paths: tuple[Path, Path]) -> None:
    with pytest.raises(SourceError, match="do not fill a batch of 500"):
        create_dataloaders(*paths, CodePoints(), 500, 10)
