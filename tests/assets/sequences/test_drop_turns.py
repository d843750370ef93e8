"""drop_turns: the result equals the rendered shorter conversation, token for token."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from support.canonical_tables import CHATML, config_of, said
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.on_the_fly import PromptEngine
from tokenloom.assets.prompts.truncation_order import check_length_settings
from tokenloom.assets.sequences.truncation import drop_turns
from tokenloom.assets.stage.definition import ChunkOutput
from tokenloom.assets.stage.forms import MESSAGES
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.errors import ConfigError, StoreError
from tokenloom.resources.store import ArtifactStore, Manifest

Row = dict[str, Any]

BRACKETS = (
    "{% if messages[0].role == 'system' %}{% set system = '<<SYS>>' + messages[0].content + '<</SYS>> ' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
COUNTED = "{% for m in messages %}{{ loop.index | string + ' ' + m.role + ': ' + m.content + eos_token }}{% endfor %}"
OWN = {"chatml": CHATML, "brackets": BRACKETS, "counted": COUNTED}
REAL = [
    *("alpaca", "chatml", "gemma-it", "llama-2-chat", "llama-3-instruct"),
    *("mistral-instruct", "qwen2.5-instruct", "qwen2_5_training", "zephyr"),
]

words = st.text(st.sampled_from("ab cé你\n. "), min_size=1, max_size=30).map(lambda text: f"{text}x")
TALKS = st.lists(
    st.builds(
        lambda system, turns: [
            *([said("system", system)] if system else []),
            *(said(role, text) for pair in turns for role, text in zip(("user", "assistant"), pair, strict=True)),
        ],
        st.one_of(st.none(), words),
        st.lists(st.tuples(words, words), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


def plain(talk: list[Row]) -> list[Row]:
    return [{"role": message["role"], "content": message["content"]} for message in talk]


def shorter(talk: list[Row]) -> list[list[Row]]:
    """Return the conversation, the conversation without its first turn, without its first two, ..."""
    opening = talk[:1] if talk[0]["role"] == "system" else []
    users = [index for index, message in enumerate(talk) if message["role"] == "user"]
    return [talk, *(opening + talk[index:] for index in users[1:])]


@cache
def reference(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


def tokens_of(folder: Path, template: str, talk: list[Row]) -> list[int]:
    """Return the ids that `transformers` gives a conversation."""
    made: Any = reference(folder).apply_chat_template(plain(talk), chat_template=template, return_dict=False)
    return made


def check_template(folder: Path, template: str, talks: list[list[Row]], longest: int) -> None:
    config = config_of(
        folder,
        {"add_bos": False, "add_eos": False},
        template,
        tokenizer={"max_length": longest},
        length={"strategy": "drop_turns"},
    )
    engine = PromptEngine(config)
    made = engine.encode(pa.table({"messages": pa.array([plain(talk) for talk in talks])}))
    expected = {}
    for number, talk in enumerate(talks):
        left = [tokens_of(folder, template, found) for found in shorter(talk)]
        fitting = [ids for ids in left if len(ids) <= longest]
        if fitting:
            expected[number] = fitting[0]
    assert {row["rows"][0]: row["input_ids"] for row in made.to_pylist()} == expected
    assert engine.rejects[ROW].to_pylist() == [number for number in range(len(talks)) if number not in expected]
    assert set(engine.rejects["code"].to_pylist()) <= {"too_long"}


@pytest.mark.parametrize("name", OWN)
@given(talks=TALKS, longest=st.integers(20, 160))
@settings(max_examples=25)
def test_the_rest_is_the_shorter_conversation(
    tokenizer_folder: Path, name: str, talks: list[list[Row]], longest: int
) -> None:
    check_template(tokenizer_folder, OWN[name], talks, longest)


@pytest.mark.parametrize("name", REAL)
@given(talks=TALKS, longest=st.integers(20, 160))
@settings(max_examples=10)
def test_the_rest_is_the_shorter_conversation_of_real_templates(
    tokenizer_folder: Path, real_data: Path, name: str, talks: list[list[Row]], longest: int
) -> None:
    template = (real_data / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    check_template(tokenizer_folder, template, talks, longest)


def kept_of(folder: Path, row: Row, longest: int, prompt: Row | None = None) -> tuple[list[Row], list[str]]:
    config = config_of(folder, prompt, tokenizer={"max_length": longest}, length={"strategy": "drop_turns"})
    engine = PromptEngine(config)
    made = engine.encode(pa.Table.from_pylist([row])).to_pylist()
    return made, engine.rejects["code"].to_pylist()


def test_tool_messages_belong_to_their_turn_and_an_open_question_to_the_last(tokenizer_folder: Path) -> None:
    talk = [
        said("system", "s"),
        said("assistant", "greeting"),
        said("user", "first question"),
        said("assistant", "call"),
        said("tool", "result"),
        said("assistant", "first answer"),
        said("user", "second question"),
        said("assistant", "second answer"),
        said("user", "and then?"),
    ]
    rest = [talk[0], *talk[6:]]
    longest = len(tokens_of(tokenizer_folder, CHATML, rest))
    (made,), _ = kept_of(tokenizer_folder, {"messages": plain(talk)}, longest)
    assert made["input_ids"] == tokens_of(tokenizer_folder, CHATML, rest)
    assert kept_of(tokenizer_folder, {"messages": plain(talk)}, longest - 1) == ([], ["too_long"])
    without_greeting = len(tokens_of(tokenizer_folder, CHATML, [talk[0], *talk[2:]]))
    (made,), _ = kept_of(tokenizer_folder, {"messages": plain(talk)}, without_greeting)
    assert made["input_ids"] == tokens_of(tokenizer_folder, CHATML, rest)


def test_pairs_drop_the_same_turns(tokenizer_folder: Path) -> None:
    prompt = [
        said("user", "one two three"),
        said("assistant", "four"),
        said("user", "five six"),
        said("assistant", "7"),
    ]
    prompt += [said("user", "last question")]
    row = {"prompt": prompt, "chosen": [said("assistant", "a")], "rejected": [said("assistant", "b " * 20 + "c")]}
    longest = len(tokens_of(tokenizer_folder, CHATML, [*prompt[2:], *row["rejected"]]))
    (made,), _ = kept_of(tokenizer_folder, row, longest, {"format_type": "preference"})
    for side in ("chosen", "rejected"):
        assert made[f"{side}_input_ids"] == tokens_of(tokenizer_folder, CHATML, [*prompt[2:], *row[side]])


def dataset(folder: Path, tokenizer: Path, template: str, longest: int) -> PipelineConfig:
    talks = [
        [said(role, f"{number} {turn} " + "word " * turn) for turn in range(5) for role in ("user", "assistant")]
        for number in range(40)
    ]
    lines = [json.dumps({"messages": plain(talk)}) for talk in talks]
    (folder / "talks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return PipelineConfig.from_mapping(
        {
            "name": "talks",
            "dataset": {"name": str(folder / "talks.jsonl")},
            "tokenizer": {"name_or_path": str(tokenizer), "max_length": longest, "chat_template": template},
            "length": {"strategy": "drop_turns"},
        }
    )


def test_a_build_drops_turns_and_reuses_the_result(tokenizer_folder: Path, tmp_path: Path) -> None:
    config = dataset(tmp_path, tokenizer_folder, CHATML, 60)
    store = ArtifactStore(tmp_path / "store")
    *_, report = Build(config, store).run_all()
    counts = report.counters
    talks = [json.loads(line)["messages"] for line in (tmp_path / "talks.jsonl").read_text().splitlines()]
    lengths = [[len(tokens_of(tokenizer_folder, CHATML, left)) for left in shorter(talk)] for talk in talks]
    assert counts["turns_dropped"] == sum(next(k for k, size in enumerate(row) if size <= 60) for row in lengths) >= 40
    assert report.rows_out == 40
    assert counts["tokens_in"] == report.tokens + counts["tokens_cut"] + counts["tokens_rejected"]
    ids = store.objects.get(store.manifest("talks").chunks[0].output)["input_ids"].to_pylist()
    assert max(map(len, ids)) <= 60
    *_, again = Build(config, store).run_all()
    assert (again.chunks_reused, again.digest, again.counters) == (again.chunks, report.digest, counts)


def test_stages_of_different_builds_are_refused(tokenizer_folder: Path, tmp_path: Path) -> None:
    config = dataset(tmp_path, tokenizer_folder, CHATML, 60)
    store = ArtifactStore(tmp_path / "store")
    list(Build(config, store).run_all())
    columns = store.manifest("talks", "columns")
    store.put_manifest(Manifest("talks", "columns", (*columns.chunks, *columns.chunks), columns.facts))
    with pytest.raises(StoreError, match="different builds"):
        Build(config, store).run("sequences")


@pytest.mark.parametrize("form", ["text", "completion", "fields", "kto", "preference", "messages"])
def test_drop_turns_is_refused_without_conversations(form: str) -> None:
    config = PipelineConfig.from_mapping({"dataset": {"name": "x"}, "length": {"strategy": "drop_turns"}})
    if form in ("messages", "kto", "preference"):
        check_length_settings(config, {"form": form})
        return
    with pytest.raises(ConfigError, match=f"drop_turns needs conversations.*{form}"):
        check_length_settings(config, {"form": form})


def test_shortened_conversations_keep_the_engine_of_their_tokens() -> None:
    def encode(rows: pa.Table) -> ChunkOutput:
        ids = [[1] * len(talk) for talk in rows["messages"].to_pylist()]
        table = pa.table({ROW: rows[ROW], "input_ids": pa.array(ids, pa.list_(pa.uint16()))})
        return ChunkOutput(table, rows.num_rows, engine="certificate")

    turn = [said("user", "q"), said("assistant", "a")]
    columns = pa.table({ROW: pa.array([0, 1], pa.int32()), "messages": pa.array([turn * 3, turn], MESSAGES)})
    tokens = encode(columns).table
    made = drop_turns(columns, tokens, encode, 4)
    assert [len(ids) for ids in made.table["input_ids"].to_pylist()] == [4, 2]
    assert made.engine == "certificate"
    assert drop_turns(columns, tokens, encode, 6).engine == ""
