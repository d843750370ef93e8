"""Preference and KTO files reach a right batch and a trainer by `inspect` and `build`, with no edit of the YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from support.example_scripts import example
from support.soak import sweep
from tokenloom.cli import main
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset

ASKED = ["What is the capital of France?", "Name a prime number.", "Who wrote Hamlet, please?"]
WANTED = ["Paris is the capital.", "Seven is one of them.", "Shakespeare wrote it."]
UNWANTED = ["I do not know that.", "Ten, I believe.", "Nobody knows who did."]
ROWS = 6

Row = Callable[[str, str, str], dict[str, Any]]


def spoken(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def said(speaker: str, value: str) -> dict[str, str]:
    return {"from": speaker, "value": value}


def transcript(question: str, answer: str) -> str:
    return f"\n\nHuman: Hello.\n\nAssistant: How can I help?\n\nHuman: {question}\n\nAssistant: {answer}"


def talk(question: str, answer: str) -> list[dict[str, str]]:
    return [spoken("user", question), spoken("assistant", answer)]


def talks(question: str, wanted: str, unwanted: str) -> dict[str, Any]:
    return {"chosen": talk(question, wanted), "rejected": talk(question, unwanted)}


PAIRS: dict[str, Row] = {
    "transcripts": lambda q, w, u: {"chosen": transcript(q, w), "rejected": transcript(q, u)},
    "prompt_and_texts": lambda q, w, u: {"prompt": q, "chosen": w, "rejected": u},
    "instruction_and_texts": lambda q, w, u: {"instruction": q, "input": "", "chosen": w, "rejected": u},
    "one_message": lambda q, w, u: {
        "prompt": q,
        "chosen": spoken("assistant", w),
        "rejected": spoken("assistant", u),
    },
    "sharegpt": lambda q, w, u: {
        "conversations": [said("human", q)],
        "chosen": said("gpt", w),
        "rejected": said("gpt", u),
    },
    "conversations": talks,
    "prompt_and_messages": lambda q, w, u: {
        "prompt": [spoken("user", q)],
        "chosen": [spoken("assistant", w)],
        "rejected": [spoken("assistant", u)],
    },
    "prompt_and_conversations": lambda q, w, u: {"prompt": q} | talks(q, w, u),
    "messages_and_texts": lambda q, w, u: {"prompt": [spoken("user", q)], "chosen": w, "rejected": u},
    "ultrafeedback": lambda q, w, u: {
        "prompt": q,
        "prompt_id": f"id {q}",
        **talks(q, w, u),
        "messages": talk(q, w),
        "score_chosen": 8.5,
        "score_rejected": 2.0,
    },
    "argilla": lambda q, w, u: {
        "source": "evol",
        "prompt": q,
        **talks(q, w, u),
        "chosen-rating": 5.0,
        "rejected-rating": 2.0,
        "rejected-model": "small",
    },
    "orca": lambda q, w, u: {
        "question": q,
        "chosen": w,
        "rejected": u,
        "generations": [w, u],
        "rating": [9.0, 2.0],
        "status": "done",
    },
    "openai": lambda q, w, u: {
        "input": {"messages": [spoken("user", q)], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [spoken("assistant", w)],
        "non_preferred_output": [spoken("assistant", u)],
    },
}

RATED: dict[str, Row] = {
    "texts": lambda q, w, _: {"prompt": q, "completion": w, "label": "Name" in q},
    "messages": lambda q, w, _: {"messages": talk(q, w), "label": "Name" in q},
    "kto_tag": lambda q, w, _: {"messages": talk(q, w), "kto_tag": "Name" in q},
    "sharegpt": lambda q, w, _: {"conversations": [said("human", q), said("gpt", w)], "kto_tag": "Name" in q},
    "instructions": lambda q, w, _: {"instruction": q, "input": "", "output": w, "kto_tag": "Name" in q},
}


def rows() -> list[tuple[str, str, str]]:
    return [(f"{ASKED[at % 3]} {at}", f"{WANTED[at % 3]} {at}", f"{UNWANTED[at % 3]} {at}") for at in range(ROWS)]


def built(source: Path, folder: Path, tokenizer: Path, *more: str) -> TokenDataset:
    """The dataset of the YAML that `inspect` writes."""
    config, store = str(folder / "data.yaml"), ["--store", str(folder / "store")]
    assert main(["inspect", str(source), "--tokenizer", str(tokenizer), "--out", config, *store, *more]) == 0
    assert main(["build", config, *store]) == 0
    return open_dataset("data", store=folder / "store")


def written(folder: Path, layout: Row) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(layout(*row)) + "\n" for row in rows()))
    return path


def texts(row: dict[str, Any], tokenizer: Tokenizer, side: str = "") -> tuple[str, str]:
    """The text of a row that is masked, and the text that is trained."""
    ids, labels = row[f"{side}input_ids"].tolist(), row[f"{side}labels"].tolist()
    masked = [token for token, label in zip(ids, labels, strict=True) if label == -100]
    return tokenizer.decode(masked), tokenizer.decode([label for label in labels if label != -100])


@pytest.mark.parametrize("layout", PAIRS)
def test_pairs(layout: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    dataset = built(written(tmp_path, PAIRS[layout]), tmp_path, tokenizer_folder)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    assert len(dataset) == ROWS
    for row, (question, *answers) in zip(map(dataset.__getitem__, range(ROWS)), rows(), strict=True):
        for side, answer in zip(("chosen_", "rejected_"), answers, strict=True):
            prompt, trained = texts(row, tokenizer, side)
            assert trained == answer and question in prompt and answer not in prompt
    batch = next(iter(TokenLoader(dataset, batch_size=ROWS)))
    assert len(batch["chosen_input_ids"]) == len(batch["rejected_input_ids"]) == ROWS


@pytest.mark.parametrize("layout", RATED)
def test_rated_answers(layout: str, tmp_path: Path, tokenizer_folder: Path) -> None:
    dataset = built(written(tmp_path, RATED[layout]), tmp_path, tokenizer_folder)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    assert len(dataset) == ROWS
    for row, (question, answer, _) in zip(map(dataset.__getitem__, range(ROWS)), rows(), strict=True):
        prompt, trained = texts(row, tokenizer)
        assert trained == answer and question in prompt and bool(row["label"]) == ("Name" in question)
    assert next(iter(TokenLoader(dataset, batch_size=ROWS)))["label"].sum() == ROWS // 3


def steps(dataset: TokenDataset, folder: Path) -> None:
    """One step of the trainer of examples/train_dpo.py: it gets the ids and masks that the loader returns."""
    script = example("train_dpo")
    trainer = script.train(script.tiny_model(dataset), dataset, folder / "run", 1)
    assert trainer.state.global_step == 1 and trainer.state.log_history[0]["grad_norm"] > 0
    batch = next(iter(TokenLoader(dataset, batch_size=4, seed=0, padding="longest")))
    inputs = trainer.model_inputs(batch)
    sides = ("chosen_", "rejected_") if "chosen_labels" in batch else ("",)
    expected = [(batch[f"{side}input_ids"][at], batch[f"{side}labels"][at]) for side in sides for at in range(4)]
    for at, (ids, labels) in enumerate(expected):
        assert inputs["input_ids"][at].tolist()[: len(ids)] == ids.tolist()
        found = inputs["input_ids"][at][inputs["completion_mask"][at].bool()]
        assert found.tolist() == labels[labels != -100].tolist()


@pytest.mark.parametrize("layout", [PAIRS["transcripts"], RATED["texts"]], ids=["DPO", "KTO"])
def test_trl_trains_on_the_rows_as_they_are(layout: Row, tmp_path: Path, tokenizer_folder: Path) -> None:
    pytest.importorskip("trl")
    steps(built(written(tmp_path, layout), tmp_path, tokenizer_folder), tmp_path)


@sweep
@pytest.mark.parametrize("file", ["hh-rlhf_harmless-base_test.jsonl.gz", "v1_dpo_demo.jsonl"])
def test_shared_files_reach_a_step(file: str, tmp_path: Path, real_data: Path) -> None:
    pytest.importorskip("trl")
    source, tokenizer = real_data / "preference" / file, real_data / "tokenizers" / "phi-2"
    steps(built(source, tmp_path, tokenizer, "--limit", "40"), tmp_path)
