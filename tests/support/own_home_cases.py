"""What tests see of a user's home folder and environment. `test_own_home.py` runs them as such a user."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from support.processes import run

VARIABLES = {
    "RAY_ADDRESS": "127.0.0.1:1",
    "RAY_AUTH_MODE": "token",
    "HF_TOKEN": "hf_secret",
    "HF_HUB_OFFLINE": "0",
    "AWS_PROFILE": "none",
    "GIT_DIR": "/nowhere",
    "TOKENLOOM_STORE": "elsewhere",
    "WORLD_SIZE": "8",
    "NO_COLOR": "1",
    "NO_PROXY": "example.com",
}
"""What the user has set."""

PROGRAM = "import os; from pathlib import Path; print(os.environ['HOME'], *os.listdir(Path.home()))"


@pytest.mark.parametrize("turn", range(2))
def test_each_test_has_an_empty_home_as_its_children_do(turn: int) -> None:
    home = Path.home()
    assert list(home.iterdir()) == []
    assert run([sys.executable, "-c", PROGRAM], check=True).stdout == f"{home}\n"
    (home / f"left by {turn}").touch()


def test_the_homes_are_not_that_of_the_user() -> None:
    user = Path(os.environ["HOME_OF_USER"])
    assert (user / ".ray" / "auth_token").exists()
    assert not Path.home().is_relative_to(user)


def test_ray_finds_no_token() -> None:
    loader = importlib.import_module("ray._raylet").AuthenticationTokenLoader
    assert not loader.instance().has_token(ignore_auth_mode=True)


def test_the_client_of_the_hub_finds_no_token() -> None:
    from huggingface_hub import get_token

    assert get_token() is None


def test_git_finds_no_settings() -> None:
    assert run(["git", "config", "--global", "user.name"]).stdout == ""


def test_no_variable_of_the_user_is_left() -> None:
    assert [name for name, value in VARIABLES.items() if os.environ.get(name) == value] == []
    assert os.environ["NO_PROXY"] == "example.com,localhost,127.0.0.1"
