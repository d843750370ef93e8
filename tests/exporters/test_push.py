"""A push sends Parquet, the tokenizer and a card; a second one what changed; and `open_dataset` restores the build."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from support.datasets_on_disk import rows, write_dataset
from support.hub_uploads import UploadHub
from support.processes import Ended, run
from support.soak import machine, some, sweep
from tokenloom.cli import main
from tokenloom.errors import DatasetNotFoundError, StoreError
from tokenloom.exporters import hub_folder
from tokenloom.loaders import TokenLoader, batch_digest, open_dataset

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"dataset": {"name": "plain.jsonl", "val_split": 0.3, "keep_columns": ["input"]}},
    "packed": {"length": {"packing": "best_fit"}, "dataset": {"name": "packed.jsonl", "keep_columns": ["input"]}},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with YAMLs, built."""
    folder = tmp_path_factory.mktemp("pushed")
    for name, changes in KINDS.items():
        path = write_dataset(folder, 200, name, **changes)
        assert main(["build", str(path), "--store", str(folder / "store")]) == 0
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadHub]:
    """A hub that other processes use, through a cache of their own."""
    with UploadHub(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield server


def push(path: Path, *options: str, store: Path | None = None) -> Ended:
    """`tokenloom push` in a process of its own: the hub's address is read when huggingface_hub is imported."""
    command = [sys.executable, "-m", "tokenloom", "push", path, *options, "--store"]
    return run([*command, store or path.parent / "store"])


OPENED = """
import json, sys
from itertools import islice
from tokenloom.loaders import TokenLoader, batch_digest, open_dataset
found = {}
for split in sys.argv[2:]:
    dataset = open_dataset(sys.argv[1], split)
    loader = TokenLoader(dataset, batch_size=4, seed=3)
    batches = list(islice(loader, 5))
    kept = [batch["input"] for batch in batches]
    found[split] = [dataset.version, dataset.digest, dataset.name, kept, [*map(batch_digest, batches)]]
heavy = [name for name in ("datasets", "transformers", "dagster") if name in sys.modules]
print(json.dumps([found, heavy]))
"""


def opened(address: str, *splits: str) -> Ended:
    return run([sys.executable, "-c", OPENED, address, *splits])


@machine("hub")
@pytest.mark.parametrize("name", some(["packed", "plain"], 2))
def test_a_pushed_dataset_opens_as_it_was_built(
    home: Path, hub: UploadHub, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version, digests, batches, kept columns, in processes that import no other library; offline from the cache."""
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    assert push(home / f"{name}.yaml", "me/data", "--message", "first").returncode == 0
    assert hub.messages == ["first"]
    splits = ("train", "validation") if name == "plain" else ("train",)
    expected = {}
    for split in splits:
        dataset = open_dataset(name, split, store=home / "store")
        batches = list(islice(TokenLoader(dataset, batch_size=4, seed=3), 5))
        kept = [batch["input"] for batch in batches]
        expected[split] = [dataset.version, dataset.digest, name, kept, [*map(batch_digest, batches)]]
    commit = hub.snapshot("datasets", "me/data").commit
    assert json.loads(opened(f"hf://me/data@{commit}", *splits).stdout) == [expected, []]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert json.loads(opened(f"hf://me/data@{commit}", *splits).stdout) == [expected, []]


@sweep
def test_a_second_push_sends_what_changed(hub: UploadHub, tmp_path: Path, real_data: Path) -> None:
    """All bytes that the client sends by the Xet protocol and in the commit, after 1% more rows: at most 5% of the
    files."""
    pytest.importorskip("hf_xet")
    lines = [json.dumps(row) for row in json.loads((real_data / "instruct" / "alpaca_data.json").read_bytes())]
    tokenizer = {"name_or_path": str(real_data / "tokenizers" / "phi-2"), "max_length": 256}
    path = write_dataset(tmp_path, 0, tokenizer=tokenizer)
    sent = []
    for count in (int(len(lines) / 1.01), len(lines)):
        (tmp_path / "small.jsonl").write_text("\n".join(lines[:count]))
        before = hub.sent
        printed = push(path, "me/data", "--json")
        assert printed.returncode == 0, printed.stderr
        sent.append((hub.sent - before) / json.loads(printed.stdout)["bytes"])
    assert sent[0] > 0.5 and sent[1] <= 0.05


@machine("hub")
def test_a_branch_a_private_repository_and_files_that_are_gone(
    home: Path, hub: UploadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    assert push(home / "plain.yaml", "me/data", "--private").returncode == 0
    assert push(home / "packed.yaml", "me/data", "--branch", "packed").returncode == 0
    names = [hub.snapshot("datasets", "me/data", branch).files for branch in ("main", "packed")]
    assert "data/validation-00000.parquet" in names[0] and "data/validation-00000.parquet" not in names[1]
    assert json.loads(opened("hf://me/data@packed", "train").stdout)[0]["train"][2] == "packed"


def test_what_would_be_sent(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows for `datasets`, a valid card, and no path, secret, YAML or rejected row; a dry run lists the files."""
    folder = tmp_path / "sent"
    assert main(["push", str(home / "plain.yaml"), "--to", str(folder), "--store", str(home / "store")]) == 0
    loaded: Any = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert {*loaded} == {"train", "validation"}
    for split, found in loaded.items():
        known = open_dataset("plain", split, store=home / "store")
        assert found["input_ids"] == [known[row]["input_ids"].tolist() for row in range(len(known))]
        assert found["labels"] == [known[row]["labels"].tolist() for row in range(len(known))]
        assert found["input"] == [known[row]["input"] for row in range(len(known))]
    card: Any = DatasetCard.load(folder / "README.md")
    assert [each["name"] for each in card.data.to_dict()["dataset_info"]["splits"]] == ["train", "validation"]
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    tokenizer = {name for name in names if name.startswith("tokenizer/")}
    assert names - tokenizer == {
        *("README.md", "tokenloom.json", "tokenizer.arrow", "data/train-00000.parquet", "data/validation-00000.parquet")
    }
    for path in folder.rglob("*"):
        assert path.is_dir() or str(home).encode() not in path.read_bytes()
    assert main(["push", str(home / "plain.yaml"), "--to", str(folder), "--store", str(home / "store")]) == 2
    capsys.readouterr()
    assert main(["push", str(home / "plain.yaml"), "--dry-run", "--store", str(home / "store")]) == 0
    *listed, total = capsys.readouterr().out.splitlines()
    assert {*listed} == names and total.startswith(f"{len(names)} files, ") and total.endswith("; nothing was sent")
    again = ["push", str(home / "packed.yaml"), "--to", str(folder), "--overwrite", "--split", "train"]
    assert main([*again, "--store", str(home / "store")]) == 0


@pytest.mark.parametrize("packing", ["none", "tree"])
def test_chunks_with_and_without_rows_open_as_they_were_built(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one file, and from one per chunk with rows."""
    counts = (0, 8, 0, 0, 9, 10, 0)
    sections = {"validation": {"max_reject_fraction": 1}, "length": {"packing": packing}}
    path = write_dataset(tmp_path, 0, dataset={"name": "rows", "keep_columns": ["input"]}, **sections)
    (tmp_path / "rows").mkdir()
    for number, count in enumerate(counts):
        made = [row if count else row | {"output": ""} for row in rows(count or 3, number)]
        pq.write_table(pa.Table.from_pylist(made), tmp_path / "rows" / f"{number}.parquet")
    monkeypatch.setattr(hub_folder, "ENDS", 1)
    for file_bytes, files in ((hub_folder.FILE_BYTES, 1), (0, 3)):
        folder, store = tmp_path / f"sent{files}", tmp_path / "store"
        monkeypatch.setattr(hub_folder, "FILE_BYTES", file_bytes)
        assert main(["push", str(path), "--to", str(folder), "--store", str(store)]) == 0
        assert len([*(folder / "data").iterdir()]) == files
        monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / f"cache{files}"))
        monkeypatch.setattr("tokenloom.loaders.datasets.hub._downloaded", lambda *_, folder=folder: folder)
        built, found = open_dataset("small", store=store), open_dataset("hf://me/data")
        assert [chunk.table_rows > 0 for chunk in built.chunks] == [count > 0 for count in counts]
        assert (found.version, found.digest) == (built.version, built.digest)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain.yaml"], "ORG/NAME: is missing"),
        (["plain.yaml", "../data"], "ORG/NAME: '../data' is not a repository such as org/name"),
        (
            ["plain.yaml", "me/data", "--split", "tests", "--dry-run"],
            "--split: 'tests' is not one of train, validation",
        ),
        (["mix.yaml", "me/data"], "CONFIG: is a mixture; push its datasets"),
    ],
)
def test_mistakes_are_named(home: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mix.yaml").write_text(json.dumps({"mixture": [{"dataset": "plain"}, {"dataset": "packed"}]}))
    config, *others = arguments
    assert main(["push", str(home / config), *others, "--store", str(home / "store")]) == 2
    assert message in capsys.readouterr().err


@machine("hub")
def test_a_login_that_may_not_write(home: Path, hub: UploadHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    printed = push(home / "plain.yaml", "me/data")
    assert (
        printed.returncode == 2
        and "me/data cannot be written with this login; log in with `hf auth login`" in printed.stderr
    )
    assert "hf_other" not in printed.stderr + printed.stdout


def _cut(folder: Path) -> None:
    path = folder / "data" / "train-00000.parquet"
    path.write_bytes(path.read_bytes()[:-100])


def _swap(folder: Path) -> None:
    shutil.copy(folder / "data" / "validation-00000.parquet", folder / "data" / "train-00000.parquet")


def _huge(folder: Path) -> None:
    about = json.loads((folder / "tokenloom.json").read_text())
    (folder / "tokenloom.json").write_text(json.dumps(about | {"facts": {**about["facts"], "vocab_size": 1 << 70}}))


def _version(folder: Path) -> None:
    about = json.loads((folder / "tokenloom.json").read_text())
    (folder / "tokenloom.json").write_text(json.dumps(about | {"version": "0" * 64}))


def _tokenizer(folder: Path) -> None:
    (folder / "tokenizer.arrow").write_bytes((folder / "tokenizer.arrow").read_bytes()[:-1])


def _outside(folder: Path) -> None:
    about = json.loads((folder / "tokenloom.json").read_text())
    (folder / "tokenloom.json").write_text(json.dumps(about | {"dataset": "../../x", "tokenizer": {"../x": "0" * 64}}))


def _listed(folder: Path) -> None:
    about = json.loads((folder / "tokenloom.json").read_text())
    (folder / "tokenloom.json").write_text(json.dumps(about | {"tokenizer": ["tokenizer.json"]}))


def _deep(folder: Path) -> None:
    (folder / "tokenloom.json").write_text("[" * 100_000)


def _other_columns(folder: Path) -> None:
    """Text where ids are, with what the file says of its chunks."""
    path = folder / "data" / "train-00000.parquet"
    said = pq.read_schema(path).metadata
    table = pa.table({name: ["x"] for name in pq.read_schema(path).names})
    pq.write_table(table.replace_schema_metadata(said), path)


def _repeated(folder: Path) -> None:
    """More values than a chunk can have, in a few KiB."""
    path = folder / "data" / "train-00000.parquet"
    said = pq.read_schema(path).metadata
    zeros = pa.table({"input_ids": pa.array(np.zeros((1 << 28) + 1, np.int8))}).replace_schema_metadata(said)
    pq.write_table(zeros, path, row_group_size=1 << 29)


def _foreign(folder: Path) -> None:
    (folder / "tokenloom.json").unlink()


SPOILERS = [
    *(_cut, _swap, _huge, _version, _tokenizer, _outside, _listed, _deep, _other_columns, _repeated, _foreign),
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_spoiled_files_are_refused(home: Path, spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one sentence, and nothing of them can be opened later."""
    folder = tmp_path / "sent"
    assert main(["push", str(home / "plain.yaml"), "--to", str(folder), "--store", str(home / "store")]) == 0
    spoil(folder)
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenloom.loaders.datasets.hub._downloaded", lambda repository, revision: folder)
    for _ in range(2):
        with pytest.raises(
            (StoreError, DatasetNotFoundError), match=r"hf://me/data|not a valid dataset name"
        ) as caught:
            open_dataset("hf://me/data")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("address", ["hf://", "hf://one", "hf://a/b/c", "hf://a/../b", "hf://a/b@"])
def test_addresses_that_are_not_valid(address: str) -> None:
    with pytest.raises(DatasetNotFoundError, match="is not the address of a dataset; write hf://org/name"):
        open_dataset(address)
