"""`tokenloom schema`: prints the JSON Schema of the YAML."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tokenloom.cli.options import add_command


def add_parser(commands: Any) -> None:
    """Add the command to the `tokenloom` parser."""
    add_command(commands, "schema", "print the JSON Schema of the YAML file", run)


def run(args: argparse.Namespace) -> int:
    """Print the JSON Schema of datasets and mixtures."""
    from pydantic import TypeAdapter

    from tokenloom.config import MixtureConfig, PipelineConfig
    from tokenloom.config.sections import describe_settings

    describe_settings()
    print(json.dumps(TypeAdapter(PipelineConfig | MixtureConfig).json_schema(), indent=2))
    return 0
