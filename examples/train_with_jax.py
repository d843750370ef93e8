"""Train a tiny model with JAX. The same command resumes from the last checkpoint.

python examples/train_with_jax.py quickstart --store .tokenloom --steps 30 --checkpoints run/
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tokenloom import open_dataset
from tokenloom.loaders import TokenDataset, TokenLoader

Parameters = dict[str, jax.Array]
WIDTH = 64


def tiny_model(dataset: TokenDataset) -> Parameters:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {
        "tokens": (dataset.vocab_size, WIDTH),
        "positions": (dataset.max_length, WIDTH),
        "attention": (WIDTH, 3 * WIDTH),
        "head": (WIDTH, dataset.vocab_size),
    }
    return {name: 0.1 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def loss_of(parameters: Parameters, input_ids: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean loss of the trained tokens, for int32 [rows, length] tokens and labels."""
    hidden = parameters["tokens"][input_ids] + parameters["positions"][: input_ids.shape[1]]
    query, key, value = jnp.split(hidden @ parameters["attention"], 3, axis=-1)
    hidden += jax.nn.dot_product_attention(query[:, :, None], key[:, :, None], value[:, :, None], is_causal=True)[
        :, :, 0
    ]
    predicted = jax.nn.log_softmax((hidden @ parameters["head"])[:, :-1])
    trained = labels[:, 1:] != -100
    log_probabilities = jnp.take_along_axis(predicted, jnp.where(trained, labels[:, 1:], 0)[..., None], axis=-1)[..., 0]
    return -jnp.where(trained, log_probabilities, 0).sum() / jnp.maximum(trained.sum(), 1)


@jax.jit
def train_step(parameters: Parameters, input_ids: jax.Array, labels: jax.Array) -> tuple[Parameters, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(parameters, input_ids, labels)
    return jax.tree.map(lambda value, gradient: value - 5.0 * gradient, parameters, gradients), loss


def save(folder: Path, step: int, parameters: Parameters, loader: TokenLoader) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial"
    with partial.open("wb") as file:
        arrays = {name: np.asarray(value) for name, value in parameters.items()}
        state = json.dumps({"step": step, "loader": loader.state_dict()})
        np.savez(file, allow_pickle=False, state=np.array(state), **arrays)
    partial.replace(folder / f"step-{step:08d}.npz")


def train(parameters: Parameters, dataset: TokenDataset, folder: Path, steps: int, save_steps: int = 10) -> Parameters:
    rank, world_size = jax.process_index(), jax.process_count()
    loader = TokenLoader(dataset, batch_size=8, seed=0, rank=rank, world_size=world_size)  # one shape: one compile
    step = 0
    if saved := sorted(folder.glob("step-*.npz")):
        arrays = dict(np.load(saved[-1]))
        state: dict[str, Any] = json.loads(arrays.pop("state").item())
        parameters, step = jax.tree.map(jnp.asarray, arrays), state["step"]
        loader.load_state_dict(state["loader"])
    while step < steps:
        for batch in loader:
            input_ids, labels = (jnp.asarray(batch[name].numpy(), jnp.int32) for name in ("input_ids", "labels"))
            parameters, loss = train_step(parameters, input_ids, labels)
            step += 1
            if step % 10 == 0:
                print(f"step {step:4d}  loss {loss:.3f}")
            if step % save_steps == 0:
                save(folder, step, parameters, loader)
            if step == steps:
                break
    return parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a built dataset")
    parser.add_argument("--store", default=None, help="default: $TOKENLOOM_STORE, else .tokenloom")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder for checkpoints")
    options = parser.parse_args()
    dataset = open_dataset(options.dataset, store=options.store)
    train(tiny_model(dataset), dataset, options.checkpoints, options.steps)


if __name__ == "__main__":
    main()
