"""`python -m support.rank_evaluation STORE FOLDER`, or under `torchrun`: the loss of each trainer on a loader.

The store has the datasets `ragged`, `packed` and `dpo`. `FOLDER/<ranks>.json` has the metrics by trainer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer, Trainer, TrainingArguments
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.sft_config import SFTConfig

from support.example_scripts import example
from support.tiny_training import tiny_model
from tokenloom.config import TrainingConfig
from tokenloom.loaders import TokenLoader, open_dataset
from tokenloom.loaders.trainer import TokenLoaderMixin
from tokenloom.trainer import PreferenceTrainer, TokenTrainer


class PlainTrainer(TokenLoaderMixin, Trainer):
    pass


def metrics(store: str, folder: Path) -> dict[str, dict[str, float]]:
    datasets = {name: open_dataset(name, store=store) for name in ("ragged", "packed", "dpo")}

    def loader(name: str) -> TokenLoader:
        return TokenLoader(datasets[name], batch_size=4, shuffle="none", padding="longest")

    def arguments(kind: Any, name: str, **more: Any) -> Any:
        return kind(str(folder / name), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, **more)

    ragged, found = datasets["ragged"], {}
    tokenizer, model = AutoTokenizer.from_pretrained(ragged.tokenizer_path), tiny_model(ragged, 1)
    config = TrainingConfig(steps=1)
    trainer = TokenTrainer(model, config, loader("ragged"), output_dir=folder / "token")
    found["TokenTrainer"] = trainer.evaluate(loader("ragged"))
    found["TokenTrainer of two"] = trainer.evaluate({name: loader(name) for name in ("ragged", "packed")})
    plain = arguments(TrainingArguments, "plain", max_steps=1, eval_strategy="steps", eval_on_start=True)
    given = {"train_loader": loader("ragged"), "eval_dataset": loader("ragged")}
    found["Trainer"] = PlainTrainer(model, plain, **given).evaluate()
    found["Trainer of two"] = PlainTrainer(model, plain, **given).evaluate(
        {name: loader(name) for name in ("ragged", "packed")}
    )
    stand_in = Dataset.from_list([{name: ragged[0][name].tolist() for name in ("input_ids", "labels")}])
    settings = arguments(SFTConfig, "sft", max_steps=1, dataset_kwargs={"skip_prepare_dataset": True})
    trained = example("train_with_trl").TokenSFTTrainer(
        model, settings, train_dataset=stand_in, processing_class=tokenizer, **given
    )
    found["SFTTrainer"] = trained.evaluate()
    pairs, reference = tiny_model(datasets["dpo"], 1), tiny_model(datasets["dpo"], 2)
    config = TrainingConfig(loss="dpo", beta=0.3, steps=1)
    preference = PreferenceTrainer(pairs, config, loader("dpo"), output_dir=folder / "preference")
    preference._reference = reference.eval()
    found["PreferenceTrainer"] = preference.evaluate(loader("dpo"))
    row = {"prompt": "unused", "chosen": " text", "rejected": " texts"}
    settings = arguments(DPOConfig, "dpo", max_steps=1, beta=0.3, gradient_checkpointing=False)
    trained = example("train_dpo").TokenDPOTrainer(
        pairs,
        reference,
        settings,
        train_dataset=Dataset.from_list([row]),
        processing_class=AutoTokenizer.from_pretrained(datasets["dpo"].tokenizer_path),
        train_loader=loader("dpo"),
        eval_dataset=loader("dpo"),
    )
    found["DPOTrainer"] = trained.evaluate()
    return {name: {key: value for key, value in each.items() if "loss" in key} for name, each in found.items()}


if __name__ == "__main__":
    ranks, results = PartialState(cpu=True), metrics(sys.argv[1], Path(sys.argv[2]))
    if ranks.is_main_process:
        Path(sys.argv[2], f"{ranks.num_processes}.json").write_text(json.dumps(results))
