"""Tests do not read the machine: not the user's home folder, and no settings from the environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support.own_home import DROPPED
from support.own_home_cases import VARIABLES
from support.paths import ROOT, TESTS
from support.processes import run
from support.waiting import until

FILES = {
    ".ray/auth_token": "a" * 32,
    ".cache/huggingface/token": "hf_secret",
    ".gitconfig": "[user]\nname = someone\n",
    ".config/dg.toml": "not TOML",
    ".aws/credentials": "[default]\naws_access_key_id = a\naws_secret_access_key = b\n",
}


def test_a_users_home_and_environment_change_no_test(tmp_path: Path) -> None:
    """In a pytest process of such a user, whose temporary folders are in `tmp_path`."""
    home, temporary = tmp_path / "user", tmp_path / "temporary"
    temporary.mkdir()
    for name, content in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    before = sorted(home.rglob("*"))
    environment = {**os.environ, **VARIABLES, "HOME": str(home), "HOME_OF_USER": str(home), "TMPDIR": str(temporary)}
    cases = TESTS / "support" / "own_home_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "cases", cases]
    done = run(command, cwd=ROOT, env=environment)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout
    assert sorted(home.rglob("*")) == before
    until(lambda: not [*temporary.glob("home-*")])


def test_every_setting_of_tokenloom_is_dropped() -> None:
    folders = (ROOT / name for name in ("assets", "loaders", "resources", "tokenloom", "trainer"))
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\bTOKENLOOM_[A-Z_]+", text)}
    assert {name for name in named if not name.startswith(DROPPED)} == {"TOKENLOOM_CHECK_BOUNDS"}
