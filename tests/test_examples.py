"""The examples run as a user would run them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from support.paths import QUICKSTART, ROOT
from support.processes import run
from support.soak import machine
from tokenloom import DataPipeline

pytestmark = machine("programs")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the quickstart built."""
    folder = tmp_path_factory.mktemp("quickstart")
    pipeline = DataPipeline.from_config(QUICKSTART, store=folder).unwrap()
    reports = {report.name: report for report in pipeline.build().unwrap()}
    assert reports["sequences"].rows_out >= 500
    return folder


def test_a_tiny_model_learns_from_the_quickstart(store: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "train.py", "quickstart", "--store", store, "--steps", "15"]
    printed = run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout
    assert "tokens/s" in printed
    losses = re.search(r"loss fell from ([\d.]+) to ([\d.]+)", printed)
    assert losses and float(losses[2]) < float(losses[1]) - 0.5


def test_the_trained_tokenizer_loads_with_transformers(store: Path) -> None:
    pipeline = DataPipeline.from_config(QUICKSTART, store=store).unwrap()
    tokenizer = pipeline.get_tokenizer().unwrap()
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    dataset = pipeline.get_dataset("validation").unwrap()
    shown = tokenizer.decode(dataset[0]["input_ids"])
    assert shown.startswith(("<|user|>", "<|system|>")) and shown.endswith("<|end|>")
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|user|>2 + 2?<|assistant|>4<|end|>"
