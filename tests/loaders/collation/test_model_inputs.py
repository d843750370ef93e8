"""A transformers model has the same losses on a batch as on each of its documents alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.loaded_rows import settings, write_rows
from tokenloom.assets.building.build import Build
from tokenloom.config import PipelineConfig
from tokenloom.loaders import TokenLoader, model_inputs, open_dataset
from tokenloom.resources.store import ArtifactStore

ROWS = 23


@pytest.mark.parametrize("packing", ["none", "best_fit"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_has_the_loss_of_its_documents_each_alone(
    packing: str, side: Any, tmp_path: Path, write_config: Callable[..., Path], tokenizer_folder: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", ROWS)
    sections = settings(tokenizer_folder)
    sections["tokenizer"]["max_length"] = 128
    apart = write_config(tmp_path, "apart", dataset={"name": "rows.jsonl"}, **sections)
    batched = write_config(tmp_path, "batched", dataset={"name": "rows.jsonl"}, length={"packing": packing}, **sections)
    for config in (apart, batched):
        list(Build(PipelineConfig.from_file(config), ArtifactStore(tmp_path / "store")).run_all())
    documents, dataset = (open_dataset(name, store=tmp_path / "store") for name in ("apart", "batched"))
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=dataset.vocab_size,
        max_position_embeddings=128,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(shape).double().eval()

    def losses(loader: TokenLoader) -> tuple[float, int]:
        total, count = 0.0, 0
        for batch in loader:
            inputs = model_inputs(batch)
            trained = int((inputs["labels"][:, 1:] != -100).sum())
            with torch.no_grad():
                total += model(**inputs).loss.item() * trained
            count += trained
        return total, count

    together = losses(TokenLoader(dataset, batch_size=3, padding_side=side))
    alone = losses(TokenLoader(documents, batch_size=1, padding="longest"))
    assert together[1] == alone[1] > 0
    assert together[0] == pytest.approx(alone[0], rel=1e-6)


def test_what_models_would_leave_out_or_do_not_know_is_refused() -> None:
    batch = {name: torch.zeros(1, 2) for name in ("input_ids", "attention_mask", "labels", "loss_weights")}
    with pytest.raises(ValueError, match="loss_weights"):
        model_inputs(batch)
    del batch["loss_weights"]
    assert set(model_inputs(batch)) == set(batch)
    with pytest.raises(ValueError, match="the columns of one side"):
        model_inputs({f"chosen_{name}": value for name, value in batch.items()})
