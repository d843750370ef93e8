"""Trainers of other libraries accept an export unchanged, and train on the labels that a loader returns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from support.array_rows import rows_of
from support.datasets_on_disk import write_dataset
from tokenloom.cli import main
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset

pytest.importorskip("accelerate")

STEPS = 3


@pytest.fixture(scope="module", params=["none", "best_fit"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TokenDataset]:
    """A folder, and the dataset that was exported to it."""
    folder = tmp_path_factory.mktemp("trained")
    path = write_dataset(folder, 40, length={"packing": request.param})
    command = ["export", str(path), "--to", "hf", str(folder / "hf"), "--store", str(folder / "store")]
    assert main(command) == 0
    return folder / "hf", open_dataset("small", store=folder / "store")


def model_of(dataset: TokenDataset) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=dataset.vocab_size, num_attention_heads=2, **sizes))


def batches_of(kind: Any, *given: Any, **named: Any) -> list[dict[str, Any]]:
    """What a trainer of this kind trains on."""
    seen: list[dict[str, Any]] = []

    class Watched(kind):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *more: Any, **others: Any) -> Any:
            seen.append(dict(inputs))
            return super().compute_loss(model, inputs, *more, **others)

    Watched(*given, **named).train()
    assert len(seen) == STEPS
    return seen


def arguments(kind: Any, folder: Path, **more: Any) -> Any:
    return kind(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )


def test_transformers_trains_on_it(exported: tuple[Path, TokenDataset], tmp_path: Path) -> None:
    """Packed rows, one per batch, which needs no padding."""
    folder, dataset = exported
    rows: Any = datasets.load_from_disk(folder)
    padded = DataCollatorForSeq2Seq(AutoTokenizer.from_pretrained(dataset.tokenizer_path))
    settings = arguments(TrainingArguments, tmp_path)
    settings.per_device_train_batch_size = 1 if dataset.packed else 4
    collator = default_data_collator if dataset.packed else padded
    batches = batches_of(Trainer, model_of(dataset), settings, collator, rows["train"])
    written = list(rows_of(TokenLoader(dataset, shuffle=False)))
    found = list(rows_of(batches))
    assert len(found) == STEPS * settings.per_device_train_batch_size and all(row in written for row in found)
    assert all(("position_ids" in batch) == dataset.packed for batch in batches)


def test_trl_trains_on_it(exported: tuple[Path, TokenDataset], tmp_path: Path) -> None:
    """Of packed rows, without padding, each document by itself."""
    trl = pytest.importorskip("trl")
    folder, dataset = exported
    rows: Any = datasets.load_from_disk(folder)
    settings = arguments(trl.SFTConfig, tmp_path, max_length=None, padding_free=dataset.packed, bf16=False)
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    batches = batches_of(
        trl.SFTTrainer, model_of(dataset), settings, train_dataset=rows["train"], processing_class=tokenizer
    )
    if not dataset.packed:
        written = list(rows_of(TokenLoader(dataset, shuffle=False)))
        found = list(rows_of(batches))
        assert len(found) == STEPS * 4 and all(row in written for row in found)
        return
    known = {document for row in rows["train"] for document in documents(row, row["position_ids"])}
    for batch in batches:
        flat = {name: batch[name].reshape(-1).tolist() for name in ("input_ids", "labels", "position_ids")}
        found = list(documents(flat, flat["position_ids"]))
        assert len(found) > 4 and all(document in known for document in found)


def documents(row: dict[str, Any], positions: list[int]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the input_ids and labels between two positions 0."""
    begins = [at for at, position in enumerate(positions) if position == 0]
    bounds = list(pairwise([*begins, len(positions)]))
    return [tuple(tuple(row[name][begin:end]) for name in ("input_ids", "labels")) for begin, end in bounds]
