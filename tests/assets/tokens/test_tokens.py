"""Tokens: ids against `transformers`, label masks against per-row offsets, control strings, trained tokenizers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from support.processes import run
from support.soak import sweep
from support.tokenizer_kits import (
    FAST,
    FILLED,
    LINES,
    NAMES,
    REAL,
    SPECIAL,
    WORDS,
    Kit,
    Piece,
    expected,
    kit_of,
    labels_of,
    made,
    prompts,
    rows_for,
)
from tokenloom.assets.building.build import Build
from tokenloom.assets.prompts.segments import segments
from tokenloom.assets.stage.rejects import ROW
from tokenloom.assets.tokens.stage import ControlPolicy, count_control
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.store.actions import CertificateStore
from tokenloom.resources.store.blobs.folder import Folder

KITS = [*NAMES, *(f"gigatoken {name}" for name in FAST)]


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=sweep) if name.endswith(REAL) else name for name in KITS]
)
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    name = request.param.removeprefix("gigatoken ")
    folder = tmp_path_factory.mktemp("kit")
    certificates = CertificateStore(Folder(folder)) if name != request.param else None
    if name in REAL:
        return kit_of(request.getfixturevalue("real_data") / "tokenizers" / name / "tokenizer.json", certificates)
    made(name).save(str(folder / "tokenizer.json"))
    return kit_of(folder / "tokenizer.json", certificates)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    file = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    made("bpe").save(str(file))
    return kit_of(file)


@given(texts=st.lists(FILLED, max_size=6))
@example(texts=["  leading", "a      b", "tab\tand\nline", "\u00a0", "x</s>y", "<s>"])
def test_ids_of_content_equal_transformers(kit: Kit, texts: list[str]) -> None:
    out = kit.run([[(text, True, False)] for text in texts])
    assert out.rejects.num_rows == 0
    reference = [kit.transformers.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]
    assert out.table["input_ids"].to_pylist() == reference
    assert out.tokens == sum(map(len, reference))


@given(data=st.data())
def test_ids_of_a_whole_row_equal_transformers(kit: Kit, data: st.DataObject) -> None:
    rows = data.draw(rows_for(kit))
    texts = ["".join(text for text, _, _ in pieces) for pieces in rows]
    reference = [kit.transformers.encode(text, add_special_tokens=False) for text in texts]
    assert kit.run(rows).table["input_ids"].to_pylist() == reference


@given(data=st.data())
def test_a_token_that_overlaps_a_trained_byte_is_trained(kit: Kit, data: st.DataObject) -> None:
    rows = data.draw(rows_for(kit))
    out = kit.run(rows)
    found = out.table.to_pylist()
    reference = [expected(kit, pieces) for pieces in rows]
    assert [row["input_ids"] for row in found] == [ids for ids, _, _ in reference]
    assert [labels_of(row) for row in found] == [flags for _, flags, _ in reference]
    assert out.counters["straddles"] == sum(straddles for _, _, straddles in reference)


def test_rows_are_tokenized_the_same_alone_and_together(bpe: Kit) -> None:
    rows = [[(word, index % 2 == 0, False), ("</s>", True, True)] for index, word in enumerate(WORDS)]
    together = bpe.run(rows).table.drop_columns([ROW]).to_pylist()
    alone = [bpe.run([pieces]).table.drop_columns([ROW]).to_pylist()[0] for pieces in rows]
    assert together == alone


STRAY: list[list[Piece]] = [
    [("say </s> now", False, False), ("</s>", True, True)],
    [("plain", False, False), ("</s>", True, True)],
    [("</", False, False), ("s> over the border", True, False), ("</s>", True, True)],
]


def test_split_treats_control_tokens_in_content_as_plain_text(bpe: Kit) -> None:
    out = bpe.run(STRAY, "split")
    stop = Tokenizer.from_str(bpe.content.decode()).token_to_id("</s>")
    assert [row.count(stop) for row in out.table["input_ids"].to_pylist()] == [1, 1, 1]
    text = "".join(piece[0] for piece in STRAY[0][:1])
    assert bpe.transformers.decode(out.table["input_ids"][0].as_py()[:-1], clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("policy", ["split", "keep", "reject"])
def test_control_tokens_in_content_are_counted(bpe: Kit, policy: ControlPolicy) -> None:
    rows = [*STRAY, [("</s></s> <s>", False, False), ("<s", True, False)]]
    counted = bpe.run(rows, policy).counters["control_tokens_in_content"]
    contents = ["".join(text for text, _, control in row if not control) for row in rows]
    found = sum(content.count(token) for content in contents for token in ("</s>", "<s>"))
    assert counted == (0 if policy == "reject" else found)


CONTROLS = (("<s>",), ("</s>", "<s>"), ("x<", "<s>", "s>x"), ("<s>", "<s><s>"), ("xx", "x"), ("é", "<s>"), ())
"""Control tokens that contain each other, that overlap, and that do neither."""


@given(st.sampled_from(CONTROLS), st.data())
@example(("x<", "<s>", "s>x"), None)
def test_control_tokens_are_counted_segment_by_segment(control: tuple[str, ...], data: st.DataObject | None) -> None:
    pieces: Any = [(("x", False, False), ("<s>", False, True), ("x<", False, False))]
    if data is not None:
        content = st.tuples(st.text("x<s>/é", min_size=1, max_size=8), st.booleans(), st.just(False))
        token = st.tuples(st.sampled_from([*control, "<other>"]), st.booleans(), st.just(True))
        pieces = data.draw(st.lists(st.lists(content | token, min_size=1, max_size=6), max_size=6))
    cut = segments(prompts([list(row) for row in pieces]))
    any_of = re.compile("|".join(map(re.escape, control)) or r"(?!)")
    contents = cut.text.filter(pa.array(~cut.control)).to_pylist()
    assert count_control(cut, control) == sum(len(any_of.findall(text)) for text in contents)


def test_reject_rejects_rows_with_control_tokens_in_content(bpe: Kit) -> None:
    out = bpe.run(STRAY, "reject")
    assert out.table[ROW].to_pylist() == [1]
    assert out.table["input_ids"].to_pylist() == bpe.run([STRAY[1]]).table["input_ids"].to_pylist()
    found = out.rejects.select([ROW, "stage", "code"]).to_pylist()
    assert found == [{ROW: row, "stage": "tokens", "code": "control_token_in_content"} for row in (0, 2)]
    assert out.rows_in == 3


def test_keep_keeps_control_tokens_in_content(bpe: Kit) -> None:
    out = bpe.run(STRAY, "keep")
    whole = ["".join(text for text, _, _ in pieces) for pieces in STRAY]
    assert out.table["input_ids"].to_pylist() == [
        bpe.transformers.encode(text, add_special_tokens=False) for text in whole
    ]
    assert labels_of(out.table.to_pylist()[2])[0] is True


@pytest.mark.parametrize("special", [True, False])
def test_split_covers_control_tokens_that_the_yaml_adds(tmp_path: Path, special: bool) -> None:
    tokenizer = made("bpe")
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(["<|turn|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    kit = kit_of(tmp_path / "tokenizer.json")
    kit = Kit(kit.content, (*SPECIAL, "<|turn|>"), kit.transformers)
    out = kit.run([[("<|turn|>", False, True), ("say <|turn|> twice <|turn|>", True, False)]])
    assert out.table["input_ids"][0].as_py().count(tokenizer.token_to_id("<|turn|>")) == 1


def test_control_tokens_that_swallow_white_space_do_as_in_transformers(tmp_path: Path) -> None:
    tokenizer = made("bpe")
    tokenizer.add_special_tokens([AddedToken("<|turn|>", special=True, rstrip=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    kit = kit_of(tmp_path / "tokenizer.json")
    out = kit.run([[("<|turn|>", False, True), ("\n hello", True, False)]])
    reference = kit.transformers.encode("<|turn|>\n hello", add_special_tokens=False)
    assert out.table["input_ids"].to_pylist() == [reference]


@pytest.mark.parametrize(("size", "width"), [(1 << 16, pa.uint16()), ((1 << 16) + 1, pa.uint32())])
def test_ids_are_stored_in_the_smallest_type_that_holds_them(tmp_path: Path, size: int, width: pa.DataType) -> None:
    tokenizer = made("bpe")
    tokenizer.add_special_tokens([f"<{index}>" for index in range(size - tokenizer.get_vocab_size())])
    kit = Kit(tokenizer.to_str().encode(), ("</s>",), None)
    out = kit.run([[("hello", True, False), (f"<{size - 401}>", True, True)]])
    assert out.table["input_ids"].type.value_type == width
    assert out.table["input_ids"][0].as_py()[-1] == tokenizer.token_to_id(f"<{size - 401}>")
    assert tokenizer.get_vocab_size() == size


TRAIN = {
    "train": {"vocab_size": 320, "min_frequency": 1},
    "max_length": 64,
    "special_tokens": {"bos": "<s>", "eos": "</s>", "pad": "<|pad|>", "additional": ["<|im_start|>", "<|im_end|>"]},
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}",
}
SCRIPT = """
import sys
from tokenloom import DataPipeline
pipeline = DataPipeline.from_config(sys.argv[1], store=sys.argv[2]).unwrap()
pipeline.build().unwrap()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, write_config: Callable[..., Path]) -> tuple[Path, list[Path]]:
    """Return a YAML that trains a tokenizer, and the stores of two processes that built it."""
    folder = tmp_path_factory.mktemp("trained")
    talk = [
        [{"role": "user", "content": line}, {"role": "assistant", "content": f"{n} {line[::-1]}"}]
        for n, line in enumerate(LINES)
    ]
    rows = "".join(json.dumps({"messages": messages}) + "\n" for messages in talk)
    (folder / "rows.jsonl").write_text(rows)
    config = write_config(folder, dataset={"name": "rows.jsonl"}, tokenizer=TRAIN)
    stores = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": seed,
            "TOKENIZERS_PARALLELISM": "true",
        }
        stores.append(folder / f"store{seed}")
        run([sys.executable, "-c", SCRIPT, config, stores[-1]], check=True, env=environment, cwd=folder)
    return config, stores


def test_training_gives_the_same_bytes_in_two_processes(trained: tuple[Path, list[Path]]) -> None:
    _, stores = trained
    digests = []
    for store in stores:
        files = sorted((store / "tokenizers").rglob("*.*"))
        assert {file.name for file in files} >= {"tokenizer.json", "tokenizer_config.json"}
        digests.append(
            [(str(file.relative_to(store)), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
        )
    assert digests[0] == digests[1]


def test_a_trained_tokenizer_starts_with_its_control_tokens_and_learns_none(
    trained: tuple[Path, list[Path]],
) -> None:
    _, (store, _) = trained
    (file,) = (store / "tokenizers").rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    names = ["<s>", "</s>", "<|pad|>", "<|im_end|>", "<|im_start|>"]
    assert {tokenizer.token_to_id(name) for name in names} == set(range(len(names)))
    assert tokenizer.get_vocab_size() <= 320
    learned = set(tokenizer.get_vocab()) - set(names)
    assert not any("im_" in token or "|>" in token for token in learned)


def reference_ids(reference: Any, talks: list[list[dict[str, str]]]) -> list[list[int]]:
    texts = [reference.apply_chat_template(talk, tokenize=False) for talk in talks]
    return [reference.encode(text, add_special_tokens=False) for text in texts]


def test_transformers_loads_the_published_tokenizer(trained: tuple[Path, list[Path]]) -> None:
    config, (folder, _) = trained
    store = ArtifactStore(folder)
    build = Build(PipelineConfig.from_file(config), store)
    facts = build.manifest("tokenizer").facts
    reference = AutoTokenizer.from_pretrained(str(store.tokenizer_folder(facts["digest"])))
    assert (reference.bos_token, reference.eos_token, reference.pad_token) == ("<s>", "</s>", "<|pad|>")
    assert facts["ids"] == {
        "bos_token": reference.bos_token_id,
        "eos_token": reference.eos_token_id,
        "pad_token": reference.pad_token_id,
    }
    assert reference.chat_template == TRAIN["chat_template"]
    talks = [json.loads(line)["messages"] for line in (config.parent / "rows.jsonl").read_text().splitlines()]
    found = [
        row
        for chunk in build.manifest("tokens").chunks
        for row in store.objects.get(chunk.output)["input_ids"].to_pylist()
    ]
    assert [row[1:] for row in found] == reference_ids(reference, talks)
    assert {row[0] for row in found} == {reference.bos_token_id}


def test_transformers_loads_a_published_real_tokenizer(
    tmp_path: Path, real_data: Path, write_config: Callable[..., Path]
) -> None:
    lines = [json.dumps({"prompt": f"ask {line}", "completion": line}) for line in LINES]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    tokenizer = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "chat_template": TRAIN["chat_template"]}
    config = write_config(
        tmp_path, dataset={"name": "rows.jsonl"}, tokenizer=tokenizer, prompt_template={"format_type": "chat"}
    )
    store = ArtifactStore(tmp_path / "store")
    build = Build(PipelineConfig.from_file(config), store)
    list(build.run_all())
    reference = AutoTokenizer.from_pretrained(str(store.tokenizer_folder(build.manifest("tokenizer").facts["digest"])))
    assert (reference.eos_token, reference.eos_token_id) == ("<|endoftext|>", 50256)
    assert reference.chat_template == TRAIN["chat_template"]
    talks = [[{"role": "user", "content": f"ask {line}"}, {"role": "assistant", "content": line}] for line in LINES]
    found = [
        row
        for chunk in build.manifest("tokens").chunks
        for row in store.objects.get(chunk.output)["input_ids"].to_pylist()
    ]
    assert found == reference_ids(reference, talks)
