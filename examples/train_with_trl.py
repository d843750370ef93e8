"""Train with TRL's SFTTrainer on tokenized sequences. The same command resumes from the last checkpoint.

python examples/train_with_trl.py quickstart --store .tokenloom --steps 30 --checkpoints run/
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader
from tokenloom.loaders.trainer import TokenLoaderMixin


class TokenSFTTrainer(TokenLoaderMixin, SFTTrainer):
    """SFTTrainer on the batches of a TokenLoader, which are already tokenized and masked."""


def tiny_model(dataset: TokenDataset) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=dataset.vocab_size,
        max_position_embeddings=dataset.max_length,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def train(model: PreTrainedModel, dataset: TokenDataset, folder: Path, steps: int, save_steps: int = 10) -> None:
    arguments = SFTConfig(
        str(folder),
        max_steps=steps,
        save_steps=save_steps,
        logging_steps=10,
        learning_rate=2e-3,
        per_device_train_batch_size=4,  # the same as the loader's; Trainer only reports it
        gradient_accumulation_steps=2,
        bf16=False,
        report_to="none",
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    loader = TokenLoader(dataset, batch_size=4, seed=0, padding="longest")  # under torchrun: this rank's rows
    row = {name: dataset[0][name].tolist() for name in ("input_ids", "labels")}
    trainer = TokenSFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list([row]),  # SFTTrainer inspects this row; batches come from the loader
        processing_class=AutoTokenizer.from_pretrained(dataset.tokenizer_path),
        train_loader=loader,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.exists() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    set_seed(0)
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
