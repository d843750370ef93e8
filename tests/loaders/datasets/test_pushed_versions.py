"""A version of a pushed dataset covers all that is opened: whoever may write the repository can replace none of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.datasets_on_disk import write_dataset
from tokenloom.cli import main
from tokenloom.errors import DatasetNotFoundError, StoreError
from tokenloom.loaders import open_dataset
from tokenloom.resources.digest import digest_bytes


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a push sends of a dataset with a kept column, `kept`, and of one without, `plain`."""
    home = tmp_path_factory.mktemp("pushed")
    for name, changes in (("kept", {"keep_columns": ["input"]}), ("plain", {})):
        path = write_dataset(home, 30, name, dataset={"name": f"{name}.jsonl", **changes})
        assert main(["push", str(path), "--to", str(home / f"{name}-sent"), "--store", str(home / "store")]) == 0
    return home


@pytest.fixture
def at(pushed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A copy of what was sent, which `hf://me/data` opens."""

    def copied(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(pushed / f"{name}-sent", folder)
        monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("tokenloom.loaders.datasets.hub._downloaded", lambda *_: folder)
        return folder

    return copied


def about(folder: Path, **changes: Any) -> dict[str, Any]:
    content = {**json.loads((folder / "tokenloom.json").read_text()), **changes}
    (folder / "tokenloom.json").write_text(json.dumps({key: value for key, value in content.items() if value != "-"}))
    return content


def older(folder: Path) -> None:
    """Make it a push of tokenloom 1.0."""
    (folder / "tokenizer.arrow").unlink()
    about(folder, kept="-")


def replaced(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of the tokenizer, with all digests that do not depend on the version."""
    (folder / "tokenizer" / name).write_bytes(content)
    files = {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}
    about(folder, tokenizer={name: digest_bytes(content) for name, content in files.items()})
    if (folder / "tokenizer.arrow").exists():
        table = pa.table({"file": pa.array([*files]), "content": pa.array([*files.values()], pa.binary())})
        with pa.ipc.new_file(folder / "tokenizer.arrow", table.schema) as file:
            file.write_table(table)


def other_ids(folder: Path) -> bytes:
    """tokenizer.json with two tokens in each other's place."""
    content = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    one, other = [*vocabulary][10:12]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return json.dumps(content).encode()


@pytest.mark.parametrize("form", ["new", "old"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_another_tokenizer_is_refused(at: Callable[[str], Path], form: str, name: str) -> None:
    folder = at("plain")
    version = about(folder)["version"]
    if form == "old":
        older(folder)
    assert open_dataset("hf://me/data", version=version).version == version
    shutil.rmtree(folder.parent / "cache")
    replaced(folder, name, other_ids(folder) if name == "tokenizer.json" else b'{"eos_token": "<evil>"}')
    for named in (version, None):
        with pytest.raises(StoreError, match=r"^hf://me/data: its tokenizer is not that of version .*push it again"):
            open_dataset("hf://me/data", version=named)


def test_other_files_are_not_published(at: Callable[[str], Path]) -> None:
    """Neither those that the description lists, nor those that an earlier tokenloom wrote into its cache."""
    folder = at("plain")
    known = {path.name: path.read_bytes() for path in (folder / "tokenizer").iterdir()}
    for name in ("added_tokens.json", "tokenizer.py"):
        (folder / "tokenizer" / name).write_text("{}")
    files = {path.name: digest_bytes(path.read_bytes()) for path in (folder / "tokenizer").iterdir()}
    opened = Path(open_dataset("hf://me/data", version=about(folder, tokenizer=files)["version"]).tokenizer_path)
    assert {path.name: path.read_bytes() for path in opened.iterdir()} == known
    (opened / "added_tokens.json").write_text("{}")
    (opened / "tokenizer.json").write_text("{}")
    for path in (folder.parent / "cache").rglob(f"{opened.name}.arrow"):
        path.unlink()
    opened = Path(open_dataset("hf://me/data").tokenizer_path)
    assert {path.name: path.read_bytes() for path in opened.iterdir()} == known


def test_counts_are_those_of_the_rows(at: Callable[[str], Path]) -> None:
    """Not those of the description, which would have all tokens trained, or weights ignored."""
    folder = at("plain")
    known = open_dataset("hf://me/data")
    labels = [known[row]["labels"].tolist() for row in range(len(known))]
    assert any(-100 in each for each in labels)
    shutil.rmtree(folder.parent / "cache")
    about(folder, counters={"tokens_trained": known.tokens, "weighted_chunks": -1})
    found = open_dataset("hf://me/data")
    assert [found[row]["labels"].tolist() for row in range(len(found))] == labels


def test_kept_columns_are_part_of_the_version(at: Callable[[str], Path]) -> None:
    folder = at("kept")
    version, kept = (about(folder)[name] for name in ("version", "kept"))
    for named in (None, f"{version}+{kept}", f"{version[:8]}+{kept[:8].upper()}"):
        assert open_dataset("hf://me/data", version=named).version == version
    with pytest.raises(DatasetNotFoundError, match=f"does not cover the kept columns input.*{version}.{kept}'$"):
        open_dataset("hf://me/data", version=version)
    for wrong in (
        f"{version}+{'0' * 64}",
        f"{version}+",
        f"{version[:3]}+{kept}",
        f"+{kept}",
        "",
        f"{version}+{kept}+",
    ):
        with pytest.raises(DatasetNotFoundError, match="has version"):
            open_dataset("hf://me/data", version=wrong)
    path = folder / "data" / "train-00000.parquet"
    table, said = pq.read_table(path), {b"tokenloom": pq.read_metadata(path).metadata[b"tokenloom"]}
    table = table.set_column(table.column_names.index("input"), "input", pa.array(["evil"] * len(table)))
    pq.write_table(table.replace_schema_metadata(said), path)
    shutil.rmtree(folder.parent / "cache")
    with pytest.raises(StoreError, match="its kept columns are not those of its description"):
        open_dataset("hf://me/data", version=f"{version}+{kept}")
    older(folder)
    assert open_dataset("hf://me/data")[0]["input"] == "evil"  # the user named no version
    with pytest.raises(
        DatasetNotFoundError, match=r"pushed by an earlier tokenloom.*; push it again, or name a commit"
    ):
        open_dataset("hf://me/data", version=version)


def test_other_kept_columns_of_the_same_rows_are_opened(at: Callable[[str], Path]) -> None:
    """A revision with the same rows and other kept values is not served from what was restored before."""
    folder = at("kept")
    known = about(folder)
    before = open_dataset("hf://me/data")[0]["input"]
    shutil.rmtree(folder)
    assert about(at("plain"), dataset="kept")["version"] == known["version"]
    assert "input" not in open_dataset("hf://me/data")[0]
    at("kept")
    assert open_dataset("hf://me/data")[0]["input"] == before
