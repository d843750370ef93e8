"""An empty home folder for tests, and an environment without the user's settings.

Libraries keep tokens, settings and caches in the home folder, which change what tests see: with a token of Ray there,
clusters ask for it.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

DROPPED = (
    *("ACCELERATE_", "AWS_", "DAGSTER_", "FSDP_", "GIT_", "HF_", "HUGGING_FACE_", "MLFLOW_", "OMPI_", "PIP_", "PMI"),
    *("RAY_", "SLURM_", "TORCHELASTIC_", "TRANSFORMERS_", "WANDB_", "XDG_"),
    *("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_", "NODE_RANK", "RANK", "ROLE_", "WORLD_SIZE"),
    *("COLUMNS", "CLICOLOR", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_"),
    *("TOKENLOOM_CACHE", "TOKENLOOM_IMAGE_CACHE", "TOKENLOOM_PIPELINES", "TOKENLOOM_STORE", "TOKENLOOM_TOKENIZER"),
)
"""Variables, or the starts of their names, that configure tokenloom, its libraries and the programs that tests run."""

ADDED = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""Lets Git read a checkout of another user, which settings in the home folder otherwise allow."""

LOOPBACK = ("localhost", "127.0.0.1")


def move_in() -> None:
    """Drop the user's settings from the environment of this process, and give it an empty home folder.

    To be called before libraries are imported that read them.
    """
    for name in [name for name in os.environ if name.startswith(DROPPED)]:
        del os.environ[name]
    os.environ.update(ADDED)
    for name in ("NO_PROXY", "no_proxy"):
        direct = os.environ.get(name, "").split(",")
        os.environ[name] = ",".join(dict.fromkeys([*filter(None, direct), *LOOPBACK]))
    _make_home()


def empty_home() -> None:
    """Give this process another home folder if something is in its own, or if it has that of its parent."""
    home = Path(os.environ["HOME"])
    if home.parent != homes() or any(home.iterdir()):
        _make_home()


def homes() -> Path:
    """The folder with all homes of this process, for `tie_to_this_process` to remove."""
    return _homes(os.getpid())


def _make_home() -> None:
    os.environ["HOME"] = tempfile.mkdtemp(dir=homes())


@cache
def _homes(process: int) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"home-{process}-"))
