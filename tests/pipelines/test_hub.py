"""Datasets and tokenizers from the hub, loaded by its real clients from a local server."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pytest
import yaml

from support.datasets_on_disk import PROMPT, TOKENIZER, rows
from support.forked_programs import ForkedPrograms
from support.hub_server import HubServer
from support.paths import TOKENIZER_MODELS
from support.processes import Ended
from support.small_tokenizers import WriteConfig
from support.soak import machine, smoke
from support.terminal import CommandProcess
from tokenloom import open_dataset
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store import ArtifactStore

pytestmark = machine("hub")

Row = dict[str, Any]
BuildCommand = Callable[..., Ended]

TOKEN = "hf_secretSECRETsecretSECRETsecret"
SAVE = "AutoTokenizer.from_pretrained(…).save_pretrained(…) writes a tokenizer.json"
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
SPELLING = f"check its spelling; if it is private, {LOG_IN}"
TRAIN, TEST, BRANCH = rows(120), rows(20, seed=1), rows(30, seed=2)
SMALL, TINY = rows(20, seed=3), rows(10, seed=4)
SEVERAL = {
    "configs": [
        {"config_name": "small", "data_files": "small.jsonl"},
        {"config_name": "tiny", "data_files": [{"split": "test", "path": "parts/tiny.jsonl"}]},
    ]
}
SECTIONS: dict[str, Any] = {"tokenizer": TOKENIZER, "prompt_template": PROMPT}
ONE_IS_DEFAULT = {
    "configs": [
        {"config_name": "small", "data_files": "small.jsonl"},
        {"config_name": "usual", "data_files": "usual.jsonl", "default": True},
    ]
}
STREAM = """
import json
from tokenloom import DataPipeline
loader = DataPipeline.from_config("streamed.yaml").unwrap().get_dataloader("train", shuffle=False).unwrap()
rows = ((ids, kept) for batch in loader for ids, kept in zip(batch["input_ids"], batch["attention_mask"]))
found = [ids[kept == 1].tolist() for ids, kept in rows if kept.any()]
print(json.dumps(found))
"""
_TENFOLD = [(number, ", ".join([f"*a{number - 1}"] * 10)) for number in range(1, 9)]
CARDS = {
    "bomb": "x: '---'\n"
    + "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{inner}]" for n, inner in _TENFOLD), "configs: *a8"]),
    "merges": "\n".join(["a0: &a0 {k: 1}", *(f"a{n}: &a{n}\n  <<: [{inner}]" for n, inner in _TENFOLD)]),
    "aliases": "license: &license mit\nlicense_name: *license",
}
"""Cards of datasets, of which the last is harmless."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Iterator[HubServer]:
    """A hub with tokenizers and datasets: one with two branches, one with subsets, one gated."""
    root = tmp_path_factory.mktemp("hub")
    found = root / "datasets" / "org"
    _write_rows(found / "rows" / "train.jsonl", TRAIN)
    _write_rows(found / "rows" / "test.jsonl", TEST)
    _write_rows(found / "rows@v1" / "train.jsonl", BRANCH)
    _write_rows(found / "several" / "small.jsonl", SMALL)
    _write_rows(found / "several" / "parts" / "tiny.jsonl", TINY)
    (found / "several" / "README.md").write_text(f"---\n{yaml.safe_dump(SEVERAL)}---\n# Two subsets\n")
    _write_rows(found / "chosen" / "small.jsonl", SMALL)
    _write_rows(found / "chosen" / "usual.jsonl", BRANCH)
    (found / "chosen" / "README.md").write_text(f"---\n{yaml.safe_dump(ONE_IS_DEFAULT)}---\n# One is the default\n")
    _write_rows(found / "gated" / "train.jsonl", SMALL)
    _write_rows(found / "broken" / "train.jsonl", SMALL, end='{"instruction": "half')
    for name in ("tok", "gated-tok"):
        _copy_tokenizer(tokenizer_folder, root / "models" / "org" / name)
    (root / "models" / "org" / "pieces").mkdir()
    shutil.copy(
        TOKENIZER_MODELS / "bpe.model",
        root / "models/org/pieces/tokenizer.model",
    )
    (root / "models/org/pieces/special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    (root / "models/org/pieces/model.safetensors").write_bytes(b"\0" * 64)
    (root / "models" / "org" / "weights").mkdir()
    (root / "models" / "org" / "weights" / "model.safetensors").write_bytes(b"\0" * 64)
    for name, card in CARDS.items():
        _write_rows(found / name / "train.jsonl", TINY)
        (found / name / "README.md").write_text(f"---\n{card}\n---\n# Aliases\n")
    with HubServer(root, TOKEN, gated=("org/gated", "org/gated-tok")) as server:
        yield server


def _write_rows(path: Path, found: list[dict[str, str]], end: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found) + end, encoding="utf-8")


def _copy_tokenizer(source: Path, folder: Path) -> Path:
    """Write a tokenizer with a chat template in a separate file, and weights, which are not needed."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    return folder


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    """Processes that import the hub's clients themselves, which read the environment when they are imported."""
    with ForkedPrograms("torch", "tokenloom.loaders", "tokenloom.pipeline", "tokenloom.cli.build") as programs:
        yield programs


@pytest.fixture
def build(hub: HubServer, programs: ForkedPrograms, tmp_path: Path, write_config: WriteConfig) -> BuildCommand:
    """Runs `tokenloom build NAME.yaml` in its own process, with the hub at `url`; the other arguments are sections."""

    def run(*options: str, name: str = "data", url: str = hub.url, env: Row | None = None, **sections: Any) -> Ended:
        path = write_config(tmp_path, name, **{"dataset": {"name": "org/rows"}} | SECTIONS | sections)
        program = (
            f"import sys; from tokenloom.cli import main; sys.exit(main({['build', path.name, '--json', *options]}))"
        )
        return programs.run(program, tmp_path, _environment(url, tmp_path) | (env or {}))

    return run


@pytest.fixture(scope="module")
def builds(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandProcess]:
    """One process for many builds, with the hub's clients as `build` has them."""
    with CommandProcess(_environment(hub.url, tmp_path_factory.mktemp("builds"))) as process:
        yield process


@pytest.fixture
def build_next(builds: CommandProcess, tmp_path: Path, write_config: WriteConfig) -> BuildCommand:
    """The same as `build`, in the process that the tests before it used."""

    def run(*options: str, **sections: Any) -> Ended:
        write_config(tmp_path, "data", **{"dataset": {"name": "org/rows"}} | SECTIONS | sections)
        return builds.run("build", "data.yaml", "--json", *options, folder=tmp_path)

    return run


def _environment(url: str, folder: Path) -> dict[str, str]:
    """The environment variables of a build with the hub at `url`, whose clients keep their files in the folder."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    ours = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    return kept | ours | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "TOKENLOOM_STORE": "store"}


def _raw_rows(store: Path, name: str = "data") -> dict[str, list[Row]]:
    """Return the raw rows of a built dataset by split."""
    opened = ArtifactStore(store)
    found: dict[str, list[Row]] = {}
    for chunk in opened.manifest(name, "raw").chunks:
        found.setdefault(chunk.split, []).extend(opened.objects.get(chunk.output).drop_columns([ROW]).to_pylist())
    return found


def _stages(done: Ended) -> dict[str, Row]:
    """Return what `--json` prints for a successful build, by stage."""
    assert done.returncode == 0, done.stderr
    return {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}


def _error(done: Ended, code: int) -> str:
    """Return the one error line of a failed build."""
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (code, "", False), done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_hub_dataset_has_the_rows_of_its_files_in_all_splits(build: BuildCommand, tmp_path: Path) -> None:
    stages = _stages(build(dataset={"name": "org/rows"}))
    assert (stages["sequences"]["rows_out"], stages["sequences"]["rejected"]) == (140, 0)
    _write_rows(tmp_path / "local.jsonl", TRAIN)
    _stages(build("--stage", "raw", name="local", dataset={"name": "local.jsonl"}))
    local = _raw_rows(tmp_path / "store", "local")
    assert _raw_rows(tmp_path / "store") == local | {"test": TEST} == {"train": TRAIN, "test": TEST}


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        ({"name": "org/rows", "splits": ["test"]}, {"test": TEST}),
        ({"name": "org/rows", "revision": "v1"}, {"train": BRANCH}),
        ({"name": "org/rows", "revision": "COMMIT"}, {"train": BRANCH}),
        ({"name": "org/several", "config": "small"}, {"train": SMALL}),
        ({"name": "org/several", "config": "tiny"}, {"test": TINY}),
        ({"name": "org/chosen"}, {"train": BRANCH}),
    ],
)
def test_splits_revisions_and_subsets_are_selected(
    build_next: BuildCommand, hub: HubServer, tmp_path: Path, dataset: Row, found: dict[str, list[Row]]
) -> None:
    if dataset.get("revision") == "COMMIT":
        dataset = dataset | {"revision": hub.snapshot("datasets", "org/rows", "v1").commit}
    _stages(build_next("--stage", "raw", dataset=dataset))
    assert _raw_rows(tmp_path / "store") == found
    commit = hub.snapshot("datasets", dataset["name"], "v1" if "revision" in dataset else "main").commit
    assert ArtifactStore(tmp_path / "store").manifest("data", "raw").notes["commit"] == commit


def test_a_hub_dataset_streams_the_rows_of_a_build(
    build: BuildCommand, hub: HubServer, programs: ForkedPrograms, tmp_path: Path, write_config: WriteConfig
) -> None:
    sections = SECTIONS | {"tokenizer": {"name_or_path": "org/tok"}}
    _stages(build(**sections))
    write_config(tmp_path, "streamed", dataset={"name": "org/rows", "streaming": True}, **sections)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "streaming"), "HF_HUB_DISABLE_XET": "1"}
    done = programs.run(STREAM, tmp_path, env)
    assert done.returncode == 0, done.stderr
    built = [row["input_ids"].tolist() for row in open_dataset("data", store=tmp_path / "store")]
    assert json.loads(done.stdout.splitlines()[-1]) == built and len(built) == len(TRAIN)
    assert not list((tmp_path / "streaming").rglob("*.arrow"))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"splits": ["test", "dev"]}, "3: dataset.splits: no split dev; the dataset has train, test"),
        ({"name": "org/several"}, "1: dataset.config: org/several has several subsets; set it to one of small, tiny"),
        (
            {"name": "org/several", "config": "a"},
            "3: dataset.config: org/several has no subset 'a' (subsets: small, tiny)",
        ),
        ({"config": "a"}, "3: dataset.config: org/rows has no subset 'a' (subsets: default)"),
        ({"revision": "v2"}, "3: dataset.revision: org/rows has no revision v2 on the hub"),
        ({"revision": "0" * 40}, f"3: dataset.revision: org/rows has no revision {'0' * 40} on the hub"),
        (
            {"name": "org/none"},
            "2: dataset.name: org/none is not a local file, and not found on the hub: Dataset 'org/none' "
            f"doesn't exist on the Hub or cannot be accessed; {SPELLING}",
        ),
        (
            {"name": "org/gated"},
            "2: dataset.name: org/gated is gated on the hub; accept its terms at HUB/datasets/org/gated, then "
            + LOG_IN,
        ),
        (
            {"name": "org/a..b"},
            "2: dataset.name: org/a..b is not a local file, and not found on the hub: Cannot have -- or .. "
            "in repo_id: 'org/a..b'",
        ),
    ],
)
def test_missing_datasets_revisions_and_subsets_are_reported_with_the_line(
    build_next: BuildCommand, hub: HubServer, dataset: Row, message: str
) -> None:
    error = _error(build_next("--stage", "raw", dataset={"name": "org/rows"} | dataset), 2)
    assert error == f"data.yaml:{message.replace('HUB', hub.url)}"


def test_broken_files_are_reported_as_a_data_error(build_next: BuildCommand) -> None:
    error = _error(build_next("--stage", "raw", dataset={"name": "org/broken"}), 3)
    assert error.startswith("error: org/broken: `datasets` cannot load it: JSON parse error")
    assert error.endswith("; download its files and use them as dataset.name, so that only bad rows are rejected")


def test_a_card_whose_aliases_expand_without_end_is_refused(build_next: BuildCommand) -> None:
    for name in ("org/bomb", "org/merges"):
        error = _error(build_next("--stage", "raw", dataset={"name": name}), 3)
        assert error.startswith(f"error: {name}: its card: README.md:"), error
        assert "values, counting those of aliases; download its files and use them as dataset.name" in error
    _stages(build_next("--stage", "raw", dataset={"name": "org/aliases"}))


def test_a_refused_or_disabled_hub_is_not_reported_as_a_wrong_name(build: BuildCommand, hub: HubServer) -> None:
    refused = build("--stage", "raw", dataset={"name": "org/rows"}, env={"HF_TOKEN": "hf_wrong"})
    assert _error(refused, 1) == (
        f"error: org/rows is not available locally, and the hub at {hub.url} returned 401; "
        "log in again with `hf auth login`, or correct HF_TOKEN, or use a local copy"
    )
    offline = build("--stage", "raw", dataset={"name": "org/rows"}, env={"HF_HUB_OFFLINE": "1"})
    assert _error(offline, 1) == (
        "error: org/rows is not available locally, and HF_HUB_OFFLINE is set; unset it, or use a local copy"
    )


def test_an_unreachable_hub_is_reported(build: BuildCommand, tmp_path: Path) -> None:
    _write_rows(tmp_path / "data.jsonl", SMALL)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    done = build(url=url, dataset={"name": "data.jsonl"}, tokenizer={"name_or_path": "org/tok"})
    assert _error(done, 1) == (
        f"error: org/tok is not available locally, and the hub at {url} is unreachable; try again, or use a local copy"
    )


def test_a_hub_tokenizer_gives_the_ids_of_its_files(build: BuildCommand, hub: HubServer, tmp_path: Path) -> None:
    _write_rows(tmp_path / "data.jsonl", SMALL)
    dataset = {"name": "data.jsonl", "column_mapping": {"prompt": "instruction", "completion": "output"}}
    sections = {"dataset": dataset, "prompt_template": {"format_type": "chat"}}
    before = len(hub.requests)
    there = _stages(build(tokenizer={"name_or_path": "org/tok"}, **sections))
    downloads = [request for request in hub.requests[before:] if request.startswith("GET /org/tok/resolve/")]
    files = {request.rpartition("/")[2] for request in downloads}
    assert files == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    folder = str(hub.root / "models" / "org" / "tok")
    here = _stages(build("--store", "elsewhere", tokenizer={"name_or_path": folder}, **sections))
    assert here["sequences"]["rows_out"] == len(SMALL)
    assert {name: stage["digest"] for name, stage in there.items()} == {
        name: stage["digest"] for name, stage in here.items()
    }


def test_a_hub_tokenizer_without_tokenizer_json_downloads_its_model_at_one_commit(
    build: BuildCommand, hub: HubServer, tmp_path: Path
) -> None:
    _write_rows(tmp_path / "data.jsonl", SMALL)
    sections = {"dataset": {"name": "data.jsonl"}, "tokenizer": {"name_or_path": "org/pieces"}}
    before = len(hub.requests)
    found = _stages(build(**sections))
    assert found["sequences"]["rows_out"] == len(SMALL)
    downloads = [
        request.split("/resolve/")[1] for request in hub.requests[before:] if "GET /org/pieces/resolve/" in request
    ]
    commit = hub.snapshot("models", "org/pieces").commit
    assert sorted(downloads) == [f"{commit}/special_tokens_map.json", f"{commit}/tokenizer.model"]
    offline = _stages(build(env={"HF_HUB_OFFLINE": "1"}, **sections))
    assert all(stage["chunks_reused"] == stage["chunks"] for stage in offline.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/none", f"is not a local folder, and not found on the hub; {SPELLING}"),
        ("org/a..b", f"is not a local folder, and not found on the hub; {SPELLING}"),
        ("org/gated-tok", f"is gated on the hub; accept its terms at HUB/org/gated-tok, then {LOG_IN}"),
        (
            "org/weights",
            f"contains no tokenizer.json, SentencePiece model or tiktoken ranks; if transformers can load it, {SAVE}",
        ),
    ],
)
def test_a_missing_tokenizer_is_reported_with_the_line(
    build_next: BuildCommand, hub: HubServer, tmp_path: Path, name: str, message: str
) -> None:
    _write_rows(tmp_path / "data.jsonl", SMALL)
    error = _error(build_next(dataset={"name": "data.jsonl"}, tokenizer={"name_or_path": name}), 2)
    assert error == f"data.yaml:4: tokenizer.name_or_path: {name} {message.replace('HUB', hub.url)}"


def test_terms_that_nobody_accepted_name_the_page_also_with_a_token(build: BuildCommand, hub: HubServer) -> None:
    with mock.patch.object(hub, "closed", ("org/gated",)):
        refused = build("--stage", "raw", dataset={"name": "org/gated"}, env={"HF_TOKEN": TOKEN})
    assert f"accept its terms at {hub.url}/datasets/org/gated, then log in" in _error(refused, 2)


@smoke
def test_a_busy_hub_is_asked_again_without_noise(build: BuildCommand, hub: HubServer, tmp_path: Path) -> None:
    _write_rows(tmp_path / "data.jsonl", SMALL)
    with mock.patch.object(hub, "busy", 2):
        done = build(dataset={"name": "data.jsonl"}, tokenizer={"name_or_path": "org/tok"})
        assert (done.returncode, hub.busy) == (0, 0)
    assert "Retrying" not in done.stderr and "503" not in done.stderr


def test_a_second_build_computes_nothing_and_no_secret_is_stored(build: BuildCommand, tmp_path: Path) -> None:
    sections = {"dataset": {"name": "org/gated"}, "tokenizer": {"name_or_path": "org/gated-tok"}}
    cold = build(env={"HF_TOKEN": TOKEN}, **sections)
    warm = build(env={"HF_TOKEN": TOKEN}, **sections)
    assert all(stage["chunks_reused"] == stage["chunks"] > 0 for stage in _stages(warm).values())
    assert [stage["digest"] for stage in _stages(warm).values()] == [
        stage["digest"] for stage in _stages(cold).values()
    ]
    output = "".join(done.stdout + done.stderr for done in (cold, warm))
    kept = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert kept and not any(TOKEN.encode() in content for content in [output.encode(), *kept])


@pytest.mark.parametrize("several", [False, True], ids=["Dataset", "DatasetDict"])
def test_a_folder_that_save_to_disk_wrote_has_the_same_rows(build: BuildCommand, tmp_path: Path, several: bool) -> None:
    train, test = datasets.Dataset.from_list(TRAIN), datasets.Dataset.from_list(TEST)
    saved = datasets.DatasetDict({"train": train, "test": test}) if several else train
    saved.save_to_disk(tmp_path / "saved")
    _stages(build("--stage", "raw", dataset={"name": "saved"}, env={"HF_HUB_OFFLINE": "1"}))
    assert _raw_rows(tmp_path / "store") == {"train": TRAIN} | ({"test": TEST} if several else {})
