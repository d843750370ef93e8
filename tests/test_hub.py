"""Datasets and tokenizers from the hub, through its real clients, which a hub on this machine answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from conftest import WriteConfig
from datasets_on_disk import PROMPT, TOKENIZER, rows
from hub_server import HubServer

from tokenloom.assets.rejects import ROW
from tokenloom.resources.store import ArtifactStore

Row = dict[str, Any]

TOKENLOOM = Path(sys.executable).parent / "tokenloom"
TOKEN = "hf_secretSECRETsecretSECRETsecret"
TRAIN, TEST, BRANCH = rows(120), rows(20, seed=1), rows(30, seed=2)
SMALL, TINY = rows(20, seed=3), rows(10, seed=4)
SEVERAL = {
    "configs": [
        {"config_name": "small", "data_files": "small.jsonl"},
        {"config_name": "tiny", "data_files": [{"split": "test", "path": "parts/tiny.jsonl"}]},
    ]
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
CHAT = {"format_type": "chat", "train_on": "all"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Iterator[HubServer]:
    """A hub with datasets, one of them on two branches, one with subsets, one gated; and with tokenizers."""
    root = tmp_path_factory.mktemp("hub")
    found = root / "datasets" / "org"
    _write_rows(found / "rows" / "train.jsonl", TRAIN)
    _write_rows(found / "rows" / "test.jsonl", TEST)
    _write_rows(found / "rows@v1" / "train.jsonl", BRANCH)
    _write_rows(found / "several" / "small.jsonl", SMALL)
    _write_rows(found / "several" / "parts" / "tiny.jsonl", TINY)
    (found / "several" / "README.md").write_text(f"---\n{yaml.safe_dump(SEVERAL)}---\n# Two subsets\n")
    _write_rows(found / "gated" / "train.jsonl", SMALL)
    _write_rows(found / "broken" / "train.jsonl", SMALL, end='{"instruction": "half')
    for name in ("tok", "gated-tok"):
        _copy_tokenizer(tokenizer_folder, root / "models" / "org" / name)
    (root / "models" / "org" / "weights").mkdir()
    (root / "models" / "org" / "weights" / "model.safetensors").write_bytes(b"\0" * 64)
    with HubServer(root, TOKEN, gated=("org/gated", "org/gated-tok")) as server:
        yield server


def _write_rows(path: Path, found: list[dict[str, str]], end: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found) + end, encoding="utf-8")


def _copy_tokenizer(source: Path, folder: Path) -> Path:
    """A tokenizer with a chat template in its own file, and weights, which nobody needs."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    return folder


@pytest.fixture
def build(hub: HubServer, tmp_path: Path, write_config: WriteConfig) -> Any:
    """Runs `tokenloom build` with a cache of its own; sections replace those of a dataset that trains a tokenizer."""

    def run(*options: str, name: str = "data", url: str = "", env: Row | None = None, **sections: Any) -> Any:
        path = write_config(tmp_path, name, **{"tokenizer": TOKENIZER, "prompt_template": PROMPT, **sections})
        command = [str(TOKENLOOM), "build", path.name, "--store", "store", "--json", *options]
        kept = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        ours = {
            "HF_ENDPOINT": url or hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "COLUMNS": "200",
            **(env or {}),
        }
        return subprocess.run(command, cwd=tmp_path, env=kept | ours, capture_output=True, text=True, timeout=120)

    return run


def _raw_rows(store: Path, name: str = "data") -> dict[str, list[Row]]:
    """The rows of a built dataset as found, by split."""
    opened, found = ArtifactStore(store), {}
    for chunk in opened.manifest(name, "raw").chunks:
        found.setdefault(chunk.split, []).extend(opened.objects.get(chunk.output).drop_columns([ROW]).to_pylist())
    return found


def _stages(done: subprocess.CompletedProcess[str]) -> dict[str, Row]:
    """What `--json` tells of a build that came to its end."""
    assert done.returncode == 0, done.stderr
    return {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}


def _refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The last line of a build that ended with an error, which is one line and no traceback."""
    assert (done.returncode, "Traceback" in done.stderr, done.stdout) == (code, False, ""), done.stderr
    assert TOKEN not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_hub_dataset_has_the_rows_of_its_files_in_all_splits(build: Any, tmp_path: Path) -> None:
    stages = _stages(build(dataset={"name": "org/rows"}))
    assert (stages["sequences"]["rows_out"], stages["sequences"]["rejected"]) == (140, 0)
    assert _raw_rows(tmp_path / "store") == {"train": TRAIN, "test": TEST}
    _write_rows(tmp_path / "local.jsonl", TRAIN)
    _stages(build("--stage", "raw", name="local", dataset={"name": "local.jsonl"}))
    assert _raw_rows(tmp_path / "store", "local")["train"] == _raw_rows(tmp_path / "store")["train"]


def test_one_split_is_picked_and_another_is_missed_by_name(build: Any, tmp_path: Path) -> None:
    _stages(build("--stage", "raw", dataset={"name": "org/rows", "splits": ["test"]}))
    assert _raw_rows(tmp_path / "store") == {"test": TEST}
    told = _refused(build(dataset={"name": "org/rows", "splits": ["dev"]}), 2)
    assert told.endswith("data.yaml:8: dataset.splits: no dev; there are train, test") or "dataset.splits: no dev" in told
    assert "there are train, test" in told


def test_of_several_subsets_the_yaml_names_one(build: Any, tmp_path: Path) -> None:
    _stages(build("--stage", "raw", dataset={"name": "org/several", "config": "tiny"}))
    assert _raw_rows(tmp_path / "store") == {"test": TINY}


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"name": "org/several"}, "dataset.config: org/several has several: small, tiny; name one"),
        ({"name": "org/several", "config": "huge"}, "dataset.config: org/several has no huge; there are small, tiny"),
        ({"name": "org/rows", "config": "huge"}, "dataset.config: org/rows has no huge; there are default"),
        ({"name": "org/rows", "revision": "v2"}, "dataset.revision: org/rows has no revision v2 on the hub"),
        ({"name": "org/rows", "revision": "0" * 40}, f"dataset.revision: org/rows has no revision {'0' * 40} on the"),
        ({"name": "org/none"}, "dataset.name: org/none is no local file, and on the hub: Dataset 'org/none' doesn't"),
        ({"name": "org/gated"}, "You must be authenticated to access it; check its spelling, or HF_TOKEN where it"),
        ({"name": "org/a..b"}, "dataset.name: org/a..b is no local file, and on the hub: Cannot have -- or .."),
    ],
)
def test_what_the_hub_does_not_have_is_told_at_its_line(build: Any, dataset: Row, message: str) -> None:
    told = _refused(build(dataset={**dataset, "format": "hub"}), 2)
    key = message.partition(":")[0].partition(".")[2] if message.startswith("dataset.") else "name"
    line = list({"section": 0, **dataset}).index(key) + 1 if key in dataset else 1
    assert message in told
    assert "data.yaml:" in told and line
