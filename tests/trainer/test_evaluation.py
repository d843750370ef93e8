"""Evaluations: loss and perplexity as a plain loop computes them, by dataset in a mixture, and generated answers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.soak import machine
from support.tiny_training import TINY, built, summed_loss, tiny_model
from support.training_runs import finish
from tokenloom.cli import main
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


def test_the_loss_on_a_loader_is_that_of_all_rows_on_any_ranks(tmp_path: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    for shape, rows in (("ragged", 29), ("packed", 41)):
        built(tmp_path, shape, tokenizer_folder, rows=rows, keep="all")
    pairs = [
        {"prompt": f"Question {row}?", "chosen": f"Yes, {row}." * (1 + row % 3), "rejected": "No."} for row in range(21)
    ]
    (tmp_path / "dpo.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    more = ["--tokenizer", str(tokenizer_folder), "--out", str(tmp_path / "dpo.yaml"), "--store", str(store)]
    assert main(["inspect", str(tmp_path / "dpo.jsonl"), *more]) == 0
    assert main(["build", str(tmp_path / "dpo.yaml"), "--store", str(store)]) == 0
    for ranks in (1, 2, 3):
        finish(["support.rank_evaluation", str(store), str(tmp_path)], tmp_path / f"{ranks}.txt", ranks=ranks)
    one, *others = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2, 3))
    for other in others:
        assert other.keys() == one.keys()
        for trainer, metrics in one.items():
            assert other[trainer] == pytest.approx(metrics, rel=1e-6), trainer
    means, weights = {}, {}
    for name in ("ragged", "packed"):
        dataset = open_dataset(name, store=store)
        model = tiny_model(open_dataset("ragged", store=store), 1)
        loader = TokenLoader(dataset, 5, shuffle="none", padding="longest")
        loss, weights[name] = summed_loss(model, loader)
        means[name] = float(loss.detach()) / weights[name]
    for trainer in ("TokenTrainer", "Trainer", "SFTTrainer"):
        assert one[trainer]["eval_loss"] == pytest.approx(means["ragged"], rel=1e-5), trainer
    for name, key in (("TokenTrainer of two", "eval_loss/"), ("Trainer of two", "eval_")):
        for shape, mean in means.items():
            assert one[name][key + shape + ("_loss" if key == "eval_" else "")] == pytest.approx(mean, rel=1e-5)
    both = sum(means[name] * weights[name] for name in means) / sum(weights.values())
    assert one["TokenTrainer of two"]["eval_loss"] == pytest.approx(both, rel=1e-5)
    assert one["PreferenceTrainer"]["eval_loss"] == pytest.approx(one["DPOTrainer"]["eval_loss"], rel=1e-5)
