"""Alpaca through phi-2's tokenizer, from YAML to batches: what is trained is exactly the answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.datasets_on_disk import DESIGN
from support.processes import run
from tokenloom import DataPipeline, open_dataset
from tokenloom.loaders import TokenLoader

TOKENLOOM = Path(sys.executable).parent / "tokenloom"
EOS = 50256


@pytest.fixture(scope="module")
def alpaca(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documented YAML, its names replaced by local paths, built by the command line."""
    folder = tmp_path_factory.mktemp("alpaca")
    settings = yaml.safe_load(DESIGN)
    settings["dataset"]["name"] = str(real_data / "instruct" / "alpaca_data.json")
    settings["tokenizer"]["name_or_path"] = str(real_data / "tokenizers" / "phi-2")
    settings["dataloader"]["num_workers"] = 0
    (folder / "alpaca.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert _build(folder)["stages"][-1]["rows_out"] > 51_900
    return folder


def _build(folder: Path) -> dict[str, list[dict[str, Any]]]:
    command = [TOKENLOOM, "build", "alpaca.yaml", "--json"]
    env = {**os.environ, "TOKENLOOM_STORE": str(folder / "store")}
    return json.loads(run(command, cwd=folder, env=env, check=True).stdout)


def test_every_row_is_a_sequence_or_a_reject(alpaca: Path) -> None:
    stages = {str(stage["name"]): stage for stage in _build(alpaca)["stages"]}
    assert stages["raw"]["rows_in"] == 52_002
    assert stages["columns"]["rejected"] == 28
    assert stages["sequences"]["rows_out"] == 52_002 - 28


def test_a_second_build_computes_nothing(alpaca: Path) -> None:
    assert all(stage["chunks_reused"] == stage["chunks"] for stage in _build(alpaca)["stages"])


def test_batches_have_the_documented_shape(alpaca: Path) -> None:
    pipeline = DataPipeline.from_config(alpaca / "alpaca.yaml", store=alpaca / "store").unwrap()
    batch = next(iter(pipeline.get_dataloader("train", shuffle=True).unwrap()))
    for name in ("input_ids", "attention_mask", "labels"):
        assert (batch[name].shape, batch[name].dtype) == ((4, 2048), torch.int64)


def test_the_trained_tokens_are_the_answers_and_one_eos(alpaca: Path, real_data: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(real_data / "tokenizers" / "phi-2" / "tokenizer.json"))
    source = json.loads((real_data / "instruct" / "alpaca_data.json").read_text())
    answers = [row["output"] for row in source if row["output"].strip()]
    loader = TokenLoader(
        open_dataset("alpaca", store=alpaca / "store"), batch_size=8, shuffle="none", padding="longest"
    )
    seen = 0
    for batch in loader:
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            trained = labels[labels != -100]
            assert torch.equal(trained, ids[labels != -100])
            assert trained[-1] == EOS and (trained == EOS).sum() == 1
            assert tokenizer.decode(trained[:-1]) == answers[seen]
            whole = str(tokenizer.decode(ids[mask == 1]))
            assert whole.endswith(f"### Response:\n{answers[seen]}<|endoftext|>")
            seen += 1
        if seen >= 1000:
            break
    assert seen >= 1000


def test_ids_are_those_of_the_whole_text(alpaca: Path, real_data: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(real_data / "tokenizers" / "phi-2" / "tokenizer.json"))
    dataset = open_dataset("alpaca", store=alpaca / "store")
    source = [
        row for row in json.loads((real_data / "instruct" / "alpaca_data.json").read_text()) if row["output"].strip()
    ]
    template = yaml.safe_load(DESIGN)["prompt_template"]["template"].removesuffix("\n")
    for row in range(0, 52_000 - 28, 97):
        assert dataset[row]["input_ids"].tolist() == [*tokenizer.encode(template.format(**source[row])).ids, EOS]
