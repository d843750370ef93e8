"""`tokenloom train`: trains a model on a dataset or mixture, as the YAML's `training:` says."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.build import build_target
from tokenloom.cli.options import add_command, add_compute, add_config, add_store, open_store, positive_integer


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    parser = add_command(commands, "train", "train a model on a dataset or mixture, and build what is missing", run)
    add_config(parser, "a dataset or a mixture, with training:")
    text = "continue after the last checkpoint, with the data of the run, and build nothing"
    parser.add_argument("--resume", action="store_true", help=text)
    text = "number of optimizer steps (default: training.steps, else training.epochs)"
    parser.add_argument("--steps", metavar="N", type=positive_integer, help=text)
    add_store(parser)
    add_compute(parser)
    parser.set_defaults(limit=None)


def run(args: argparse.Namespace) -> int:
    """Build the data, and train."""
    from rich.console import Console

    from tokenloom.config.dataset import load_config
    from tokenloom.trainer import train

    config = load_config(args.config)
    store = open_store(args, config.folder).address
    if config.training is not None and not args.resume:
        build_target(args, config, Console(stderr=True))
    trainer = train(config, store, args.resume, args.steps)
    print(
        f"step {trainer.state.global_step or trainer.args.max_steps} of {trainer.args.max_steps}: "
        f"{trainer.args.output_dir}/model"
    )
    return 0
