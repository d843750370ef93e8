"""Evaluations: loss and perplexity as a plain loop computes them, by dataset in a mixture, and generated answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.soak import machine
from support.tiny_training import TINY, built, summed_loss
from tokenloom.config.dataset import load_config
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.pipeline import DataPipeline
from tokenloom.trainer import train
from tokenloom.trainer.log import read_log

pytestmark = machine("trainer")


def test_a_mixture_is_evaluated_by_dataset(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for shape in ("ragged", "weighted"):
        built(tmp_path, shape, tokenizer_folder, rows=60)
        config = yaml.safe_load((tmp_path / f"{shape}.yaml").read_text())
        config["dataset"]["val_split"] = 0.3
        (tmp_path / f"{shape}.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    training = {"model": TINY, "batch_size": 4, "steps": 6, "eval_steps": 3, "learning_rate": 0.01}
    training |= {"output_dir": str(tmp_path / "run"), "eval_samples": 1}
    mixed = {"name": "mix", "mixture": [{"dataset": "ragged"}, {"dataset": "weighted"}], "training": training}
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(mixed, sort_keys=False), encoding="utf-8")
    loaded = load_config(tmp_path / "mix.yaml")
    DataPipeline.from_config(loaded, store).unwrap().build().unwrap()
    trainer = train(loaded, str(store))

    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "eval_loss" in line]
    assert [line["step"] for line in lines] == [0, 3, 6]
    model, total, weight = trainer.model, 0.0, 0.0
    for name in ("ragged", "weighted"):
        loader = TokenLoader(open_dataset(name, "validation", store), 4, shuffle="none", padding="longest")
        loss, tokens = summed_loss(model, loader)
        mean = float(loss.detach()) / tokens
        assert lines[-1][f"eval_loss/{name}"] == pytest.approx(mean, rel=1e-5)
        assert lines[-1][f"eval_perplexity/{name}"] == pytest.approx(math.exp(mean), rel=1e-4)
        total, weight = total + float(loss.detach()), weight + tokens
    assert lines[-1]["eval_loss"] == pytest.approx(total / weight, rel=1e-5)
    assert lines[-1]["eval_trained_tokens"] == weight
    assert lines[-1]["eval_loss"] < lines[0]["eval_loss"]


def test_samples_are_the_models_answers(tmp_path: Path, tokenizer_folder: Path) -> None:
    training = {"model": TINY, "batch_size": 4, "steps": 4, "eval_steps": 2, "save_steps": 2}
    training |= {"output_dir": str(tmp_path / "run"), "eval_samples": 2}
    config = built(tmp_path, "weighted", tokenizer_folder, training=training)
    declared = yaml.safe_load(config.read_text())
    declared["dataset"]["val_split"] = 0.3
    config.write_text(yaml.safe_dump(declared, sort_keys=False), encoding="utf-8")
    store = tmp_path / "store"
    DataPipeline.from_config(config, store).unwrap().build().unwrap()
    train(load_config(config), str(store))
    lines = read_log(tmp_path / "run" / "samples.jsonl")
    assert [line["step"] for line in lines] == [0, 0, 2, 2, 4, 4]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    dataset = open_dataset("weighted", "validation", store)
    for number, line in enumerate(lines[-2:]):
        row = dataset[number]
        begin = int((row["labels"] != -100).int().argmax())
        assert line["prompt"] == tokenizer.decode(row["input_ids"][:begin])
        assert line["expected"] and tokenizer.decode(row["input_ids"][begin:]).startswith(line["expected"])
        ids = row["input_ids"][:begin].tolist()
        for _ in range(64):  # greedy, without a cache, token by token
            scores = model(input_ids=row["input_ids"].new_tensor([ids])).logits[0, -1]
            ids.append(int(scores.argmax()))
            if ids[-1] in (tokenizer.eos_token_id, int(row["input_ids"][-1])):
                break
        assert tokenizer.decode(ids[begin:]).startswith(line["generated"][:20])
