"""Loads a YAML as what it declares: a dataset, or a mixture if it has `mixture:`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenloom.config.dataset import PipelineConfig
from tokenloom.config.mixture import MixtureConfig
from tokenloom.config.yaml_file import Origin, parse_yaml, read_yaml

Config = PipelineConfig | MixtureConfig


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and check one YAML file.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    return check_config(*read_yaml(Path(path)))


def parse_config(text: str, path: Path) -> Config:
    """Check the text of one YAML file.

    Args:
        path: the file, for error messages and the default name of the dataset.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    return check_config(*parse_yaml(text, path))


def check_config(settings: Mapping[str, Any], origin: Origin | None = None) -> Config:
    """Check settings.

    Args:
        origin: the file that they were read from.

    Raises:
        ConfigError: one fault per wrong setting, in file order.
    """
    kind: type[Config] = PipelineConfig if settings.get("mixture") is None else MixtureConfig
    return kind.checked(settings, origin)
