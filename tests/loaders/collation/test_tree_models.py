"""What models make of a batch of trees is what they make of its texts, one by one: logits, loss and gradients."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from support.soak import SOAK
from support.tiny_causal_models import VOCABULARY, tiny_causal_model
from support.tree_oracle import Row, Text, batch_of, cut, difference, drawn_texts, laid_out, of_tree, separate
from tokenloom.loaders import model_inputs
from tokenloom.loaders.collation.context import ATTENTIONS, TAKES_TREES, TreeMasks, tree_mask

FAMILIES = ("llama", "qwen2", "gemma", "gemma3_text", "mistral")


class _Named:
    """A config of which only the family is known."""

    _attn_implementation = "sdpa"

    def __init__(self, kind: str):
        self.model_type = kind

    def get_text_config(self, decoder: bool = False) -> _Named:
        return self


def drawn(seed: int, longest: int = 14) -> tuple[list[Row], list[Text]]:
    """Return three rows of trees, the last one of a tree cut in two, and their texts."""
    draw = random.Random(seed)
    trees = [drawn_texts(draw, VOCABULARY, longest=longest) for _ in range(4)]
    return [laid_out(trees[:2]), laid_out(trees[2:3]), laid_out(cut(trees[3]))], [
        text for tree in trees for text in tree
    ]


def logits_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    given = {name: value for name, value in batch.items() if name != "loss_weights"}
    inputs = model_inputs(given, model=model)
    assert inputs.keys() == {"input_ids", "labels", "position_ids", "attention_mask", "use_cache"}
    del inputs["labels"]
    return model(**inputs).logits


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_trees_are_trained_as_their_texts(kind: str, attention: str, side: str) -> None:
    """In float64; only the softmax of eager attention is one of float32."""
    rows, texts = drawn(len(kind))
    batch = batch_of(rows, side)
    model = tiny_causal_model(kind, attention, dtype=torch.float64)
    expected, known = separate(model, texts)
    logits = logits_of(model, batch)
    loss = of_tree(logits, batch)
    assert difference(logits, rows, batch, known) < (1e-5 if attention == "eager" else 1e-12)
    assert float(loss) == pytest.approx(float(expected), rel=1e-7)
    wanted = gradients(model, expected)
    assert max(float(value.abs().max()) for value in wanted.values()) > 1
    for name, found in gradients(model, loss).items():
        torch.testing.assert_close(found, wanted[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", FAMILIES)
def test_flex_attention_computes_the_same(kind: str) -> None:
    """Rows are longer than a block of 128 tokens. It has no gradients on CPUs: those of its rule are compared above.
    Compiled, it skips blocks; otherwise, it evaluates the rule everywhere."""
    torch.compiler.reset()  # or another width is compiled with sizes that vary, which torch 2.13 cannot on CPUs
    rows, texts = drawn(0, 80)
    batch = batch_of(rows, more=200)
    model = tiny_causal_model(kind, "flex_attention")
    masks = TreeMasks.of(model)(batch["attention_ends"], batch["position_ids"])
    of, every = torch.arange(batch["input_ids"].shape[1]), torch.arange(len(rows))[:, None, None]
    for layer, block in masks.items() if isinstance(masks, dict) else [("full_attention", masks)]:
        window = 5 if kind == "mistral" or layer != "full_attention" else None
        dense: Any = block.mask_mod(every, torch.tensor(0), of[:, None], of)
        assert torch.equal(dense[:, None], tree_mask(batch["attention_ends"], batch["position_ids"], window))
    with torch.no_grad():
        expected, known = separate(tiny_causal_model(kind, "sdpa"), texts)
        with torch.compiler.set_stance("default" if SOAK or kind == "llama" else "force_eager"):
            logits = logits_of(model, batch)
    assert difference(logits, rows, batch, known) < 1e-4
    assert float(of_tree(logits, batch)) == pytest.approx(float(expected), rel=1e-5)


def test_a_family_is_accepted_or_refused_by_name() -> None:
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert known >= TAKES_TREES
    accepted = set[str]()
    for kind in sorted(known):
        model = SimpleNamespace(config=_Named(kind), dtype=torch.float32)
        try:
            accepted.add(kind if TreeMasks.of(model).windows == {"": None} else "")
        except ValueError as error:
            assert str(error).startswith(f"{kind} ") and "; build the dataset with another length.packing" in str(error)
    assert accepted == TAKES_TREES


@pytest.mark.parametrize("kind", sorted(TAKES_TREES) if SOAK else ["gpt2", "opt", "qwen3_moe"])
def test_every_accepted_family_computes_trees_as_texts(kind: str) -> None:
    """With each attention that transformers builds it with."""
    rows, texts = drawn(1)
    with torch.no_grad():
        _, known = separate(tiny_causal_model(kind, "eager"), texts)
    for attention in ATTENTIONS:
        try:
            model = tiny_causal_model(kind, attention)
        except ValueError as error:
            assert "does not support an attention implementation" in str(error)
            continue
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                for side in ("left", "right"):
                    batch = batch_of(rows, side)
                    assert difference(logits_of(model, batch), rows, batch, known) < 1e-4, (attention, side)
        except ValueError as error:
            assert "Attention sinks cannot be run on CPU with flex attention" in str(error)


def test_masks_that_are_wrong_are_noticed() -> None:
    """The comparison is sharp: a mask that shows one token too much changes logits."""
    rows, texts = drawn(2)
    batch = batch_of(rows)
    model = tiny_causal_model("llama", "sdpa", dtype=torch.float64)
    _, known = separate(model, texts)
    inner = int((batch["attention_ends"][0] < len(rows[0].ids)).nonzero()[0])
    batch["attention_ends"][0, inner] += 1
    assert difference(logits_of(model, batch), rows, batch, known) > 1e-3
