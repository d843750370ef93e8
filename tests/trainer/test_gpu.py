"""What only a GPU shows: bf16, Liger's kernel, batches that arrive on the device, and its utilization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.tiny_training import built, tiny_model, trainer_on
from tokenloom.config import TrainingConfig
from tokenloom.config.dataset import load_config
from tokenloom.loaders import TokenDataset, TokenLoader, open_dataset
from tokenloom.trainer import CrossEntropy, TokenTrainer, train
from tokenloom.trainer.log import read_log

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture
def dataset(tmp_path: Path, tokenizer_folder: Path) -> TokenDataset:
    built(tmp_path, "weighted", tokenizer_folder, rows=120)
    return open_dataset("weighted", store=tmp_path / "store")


def losses(trainer: Any) -> list[float]:
    return [line["loss"] for line in read_log(Path(trainer.args.output_dir) / "log.jsonl") if "loss" in line]


def test_bf16_has_the_losses_of_fp32(dataset: TokenDataset, tmp_path: Path) -> None:
    found = []
    for precision in ("fp32", "bf16"):
        trainer = trainer_on(dataset, tmp_path / precision, tiny_model(dataset), steps=12, precision=precision)
        trainer.train()
        assert trainer.model is not None and next(trainer.model.parameters()).dtype == torch.float32
        found.append(losses(trainer))
    assert found[0] == pytest.approx(found[1], rel=0.02) and found[0] != found[1]


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(z_loss=1e-3, label_smoothing=0.1)])
def test_ligers_loss_is_that_of_torch_in_less_memory(loss: CrossEntropy) -> None:
    pytest.importorskip("liger_kernel")
    tokens, width, vocabulary = 8192, 256, 32_000
    torch.manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False, device="cuda")
    hidden, targets = torch.randn(tokens, width, device="cuda"), torch.randint(vocabulary, (tokens,), device="cuda")
    found = []
    for fused in (False, True):
        given = hidden.clone().requires_grad_()
        head.weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        losses = loss.of_hidden(given, head, targets) if fused else loss.of_logits(head(given), targets)
        assert len(losses) == (1 if fused else tokens)  # Liger's kernel returns the sum
        losses.sum().backward()
        assert given.grad is not None and head.weight.grad is not None
        peak = torch.cuda.max_memory_allocated() - before
        found.append((losses.sum().detach(), given.grad, head.weight.grad.clone(), peak))
    for torchs, ligers in zip(*(each[:3] for each in found), strict=True):
        torch.testing.assert_close(ligers, torchs, rtol=1e-3, atol=1e-3)
    assert found[1][3] < found[0][3] / 2


def test_batches_that_are_on_the_device_train_the_same(dataset: TokenDataset, tmp_path: Path) -> None:
    found = []
    for device in (None, "cuda"):
        loader = TokenLoader(dataset, batch_size=4, seed=0, padding="longest", prefetch_to_device=device)
        trainer = TokenTrainer(tiny_model(dataset), TrainingConfig(steps=8), loader, output_dir=tmp_path / f"{device}")
        trainer.train()
        found.append(losses(trainer))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_utilization_of_a_large_model_is_logged(tmp_path: Path, tokenizer_folder: Path) -> None:
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    training = {"model": {"model_type": "llama", **sizes}, "precision": "bf16", "batch_size": 256, "steps": 20}
    training |= {"logging_steps": 10, "peak_tflops": 1000.0, "output_dir": str(tmp_path / "run")}
    config = built(tmp_path, "packed", tokenizer_folder, rows=4000, training=training)
    trainer: Any = train(load_config(config), str(tmp_path / "store"))
    assert trainer.model.num_parameters() > 100e6
    rates = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "mfu" in line]
    assert len(rates) == 2 and 0 < rates[-1]["mfu"] < 1
    print(f"{torch.cuda.get_device_name()}: {rates[-1]}")
