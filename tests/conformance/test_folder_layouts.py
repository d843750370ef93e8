"""Local folders have the splits and configs that `datasets.load_dataset(folder)` reads in them, or are refused."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.raw_rows import ROW
from tokenloom.assets.raw.chunks import SourceNotes, source_chunks
from tokenloom.config import DatasetConfig, PipelineConfig
from tokenloom.config.schema import ReaderConfig
from tokenloom.errors import ConfigError
from tokenloom.resources.sources.data_folder import _READ, _UNREAD, CARDS  # pyright: ignore[reportPrivateUsage]
from tokenloom.resources.sources.hub import HubDataset, TfdsDataset
from tokenloom.resources.sources.resolve import DataSource, DiskDataset, locate, without_effect
from tokenloom.resources.sources.source_file import SourceFile, SourceFiles, format_of

Splits = dict[str, list[str]]


def write(folder: Path, *names: str, card: str | None = None) -> Path:
    """Write files of two rows each, which name their file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"{name} {row}"} for row in range(2)]
        ending = name.removesuffix(".gz").rpartition(".")[2]
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif ending == "arrow":
            table = pa.Table.from_pylist(rows)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        elif ending in ("csv", "tsv"):
            with path.open("w", newline="") as file:
                lines = csv.DictWriter(file, ["text"])
                lines.writeheader()
                lines.writerows(rows)
        else:
            text = json.dumps(rows) if ending == "json" else "".join(json.dumps(row) + "\n" for row in rows)
            text = "".join(row["text"] + "\n" for row in rows) if ending in ("txt", "md", "py", "tar") else text
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    if card is not None:
        (folder / CARDS[0]).write_text(f"---\n{card}\n---\n# A dataset\n")
    return folder


def read(folder: Path, notes: SourceNotes | None = None, **dataset: Any) -> Splits:
    config = PipelineConfig.from_mapping({"dataset": {"name": str(folder), **dataset}})
    splits: Splits = {}
    for chunk in source_chunks(config, notes=notes):
        splits.setdefault(chunk.split, []).extend(chunk.load().table.drop_columns([ROW])["text"].to_pylist())
    return splits


def oracle(folder: Path, cache: Path, config: str | None = None) -> Splits:
    import datasets

    datasets.disable_progress_bars()
    loaded: Any = datasets.load_dataset(str(folder), config, cache_dir=str(cache))
    return {str(split): list(rows["text"]) for split, rows in loaded.items()}


LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "one file": ("rows.jsonl",),
    "train and test": ("train.jsonl", "test.jsonl"),
    "three splits of csv": ("train.csv", "validation.csv", "test.csv"),
    "synonyms": ("training.jsonl", "dev.jsonl", "evaluation.jsonl"),
    "other synonyms": ("my_train.jsonl", "my_valid.jsonl", "my_eval.jsonl"),
    "numbers": ("train1.jsonl", "train2.jsonl", "test1.jsonl"),
    "spaces": ("my train.jsonl", "my test.jsonl"),
    "words inside of words": ("trainset.jsonl", "testset.jsonl", "latest.jsonl"),
    "capitals": ("Train.jsonl", "test.jsonl"),
    "a name without a split": ("data.jsonl", "test.jsonl"),
    "folders": ("train/a.jsonl", "train/b.jsonl", "test/a.jsonl"),
    "nested folders": ("x/y/train/deep/a.jsonl", "x/dev/b.jsonl"),
    "folders with more in their names": ("train-v2/a.jsonl", "en_test/b.jsonl", "other/c.jsonl"),
    "folders go before files": ("train/test.jsonl", "valid/train.jsonl"),
    "files outside of the folders": ("train/a.jsonl", "test/b.jsonl", "test.jsonl", "extra.jsonl"),
    "files in data": ("data/train.jsonl", "data/test.jsonl"),
    "shards": (
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001.parquet",
    ),
    "shards of any name": (
        "data/zeta-00000-of-00001.jsonl",
        "data/alpha-00000-of-00001.jsonl",
        "data/train-00000-of-00001.jsonl",
    ),
    "shards go before all": ("data/odd-00000-of-00001.jsonl", "test.jsonl", "train/a.jsonl"),
    "shards outside of data": ("odd-00000-of-00001.jsonl", "even-00000-of-00001.jsonl"),
    "shards with hashes": ("data/train-00000-of-00001-a1b2.parquet", "data/dev-00000-of-00001-c3d4.parquet"),
    "the order of files": ("a/x.jsonl", "a-b/x.jsonl", "a.jsonl", "a10.jsonl", "a2.jsonl", "B.jsonl"),
    "the order of synonyms": ("val.jsonl", "a_valid_b.jsonl", "valid.2.jsonl", "dev.jsonl", "x/validation.jsonl"),
    "the order of folders": ("val/a.jsonl", "valid/b.jsonl", "valid-1/a.jsonl", "dev/c.jsonl"),
    "compressed": ("train.jsonl.gz", "test.jsonl.gz"),
    "a file in another format": ("a.jsonl", "b.jsonl", "c.csv"),
    "as many files in two formats": ("a.csv", "b.parquet"),
    "two endings of one format": ("a.json", "b.jsonl", "c.csv"),
    "metadata": ("a.csv", "metadata.jsonl"),
    "hidden files": ("a.jsonl", ".b.jsonl", ".cache/c.jsonl"),
    "special folders": ("a.jsonl", "__pycache__/b.jsonl", "x/__more__/c.jsonl"),
    "files of settings": ("a.jsonl", "config.json", "dataset_info.json"),
    "upper-case endings": ("a.jsonl", "b.JSONL"),
    "code beside data": ("rows.jsonl", "load.py", "prepare.py"),
    "plain text": ("a.txt", "sub/b.txt", "test.txt"),
    "arrow": ("train/a.arrow", "test/b.arrow"),
    "an archive": ("train.txt", "validation.txt", "raw.py"),
}


def files(*names: str, config: str | None = None) -> SourceFiles:
    return SourceFiles([SourceFile(name, name, format_of(name) or "") for name in names], config)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_has_the_splits_of_load_dataset(layout: str, tmp_path: Path, cache: Path) -> None:
    folder = write(tmp_path / "rows", *LAYOUTS[layout])
    assert [*read(folder).items()] == [*oracle(folder, cache).items()]


def one(files: str) -> str:
    return f"configs:\n- config_name: a\n  data_files: {files}"


SPLIT = "[{split: train, path: [x.jsonl, d/*.jsonl]}, {split: odd.one, path: y.jsonl}]"
TWO = "configs:\n- config_name: a\n  data_files: x.jsonl\n- config_name: b\n  data_dir: d"
FILES = ("x.jsonl", "y.jsonl", "d/x.jsonl", "d/train.jsonl", "d/e/test.jsonl", "d/.h/z.jsonl", "d/__s__/z.jsonl")

CARDS_OF: Mapping[str, tuple[str, str | None]] = {
    "no configs": ("license: mit", None),
    "a file": (one("x.jsonl"), None),
    "a file with ./": (one("./x.jsonl"), None),
    "a list": (one("[y.jsonl, x.jsonl]"), None),
    "splits": (one(SPLIT), None),
    "a star": (one("'*.jsonl'"), None),
    "stars of folders": (one("'d/**'"), None),
    "stars between": (one("'**/*[st].jsonl'"), None),
    "a question mark": (one("'?.jsonl'"), None),
    "a hidden folder": (one("'d/.h/*.jsonl'"), None),
    "a special folder": (one("'d/__s__/*.jsonl'"), None),
    "a pattern without files beside one with": (one("['q*.jsonl', x.jsonl]"), None),
    "a folder": ("configs:\n- config_name: a\n  data_dir: d", None),
    "a folder and files": ("configs:\n- config_name: a\n  data_dir: d\n  data_files: x.jsonl", None),
    "neither": ("configs:\n- config_name: a\n  drop_labels: true", None),
    "the first of two": (TWO, "a"),
    "the second of two": (TWO, "b"),
    "a default": (TWO + "\n  default: true", None),
    "not the default": (TWO + "\n  default: true", "a"),
    "one that is named default": (TWO.replace("name: b", "name: default"), None),
    "infos": ("dataset_info:\n  features:\n  - {name: text, dtype: string}", None),
}


@pytest.mark.parametrize("case", CARDS_OF)
def test_a_folder_has_the_configs_of_its_card(case: str, tmp_path: Path, cache: Path) -> None:
    card, config = CARDS_OF[case]
    folder = write(tmp_path / "rows", *FILES, card=card)
    assert [*read(folder, config=config).items()] == [*oracle(folder, cache, config).items()]


def test_a_card_without_a_readme(tmp_path: Path, cache: Path) -> None:
    folder = write(tmp_path / "rows", *FILES)
    (folder / ".huggingface.yaml").write_text(one("y.jsonl"))
    assert read(folder) == oracle(folder, cache) == {"train": ["y.jsonl 0", "y.jsonl 1"]}


REFUSED: Mapping[str, tuple[tuple[str, ...], str | None, dict[str, Any], str]] = {
    "several configs": (FILES, TWO, {}, "dataset.config: README.md declares several configs; set it to one of a, b"),
    "an unknown config": (FILES, TWO, {"config": "c"}, "no config 'c'; README.md declares a, b"),
    "two defaults": (
        FILES,
        TWO + "\n  default: true\n- config_name: default\n  data_files: y.jsonl",
        {},
        "several default configs: b, default",
    ),
    "an unknown split": (
        ("train.jsonl", "test.jsonl"),
        None,
        {"splits": ["tset"]},
        "no split tset; the dataset has train, test; did you mean test?",
    ),
    "a file of two splits": (
        ("train_test.jsonl", "a.jsonl"),
        None,
        {},
        "train_test.jsonl: its name says train and test",
    ),
    "a file twice in a split": (
        ("test-eval.jsonl", "train.jsonl"),
        None,
        {},
        "test-eval.jsonl: its name says test in two ways",
    ),
    "a folder twice in a split": (("train_v1/train/a.jsonl",), None, {}, "its name says train in two ways"),
    "formats that differ": (
        ("train.jsonl", "test.csv"),
        None,
        {},
        "splits have different formats (train: json, test: csv)",
    ),
    "a split that is no data": (
        ("rows.jsonl", "test/conftest.py"),
        None,
        {},
        "no file of a known format in the splits that its names declare: test",
    ),
    "only archives": (
        ("a.tar", "b.zip"),
        None,
        {},
        "format; not read: a.tar, b.zip (archives, which are not unpacked)",
    ),
    "mostly images": (("a.png", "b.png", "rows.jsonl"), None, {}, "most of its data are .png files"),
    "logs": (("x.eval", "rows.jsonl"), None, {}, "most of its data are .eval files"),
    "a split's name": (("data/my-x-00000-of-00001.jsonl",), None, {}, "'my-x' is not a valid name of a split"),
    "a mapping of files": (FILES, one("{train: x.jsonl}"), {}, "data_files must be a path, a list of paths"),
    "a list of both": (FILES, one("[x.jsonl, {split: test, path: y.jsonl}]"), {}, "data_files must be"),
    "a split twice": (FILES, one("[{split: a, path: x.jsonl}, {split: a, path: y.jsonl}]"), {}, "data_files must be"),
    "a name of a split in a card": (FILES, one("[{split: a-b, path: x.jsonl}]"), {}, "data_files must be"),
    "no files": (FILES, one("[]"), {}, "data_files must be"),
    "no such file": (FILES, one("z.jsonl"), {}, "no file z.jsonl"),
    "no match": (FILES, one("'z*.jsonl'"), {}, "no file matches z*.jsonl"),
    "a file twice": (FILES, one("[x.jsonl, '*.jsonl']"), {}, "lists x.jsonl twice"),
    "a file in two splits": (
        FILES,
        one("[{split: a, path: x.jsonl}, {split: b, path: '*.jsonl'}]"),
        {},
        "lists x.jsonl in a and b",
    ),
    "a file outside": (FILES, one("../x.jsonl"), {}, "../x.jsonl is not in the folder"),
    "a URL": (FILES, one("https://example.org/x.jsonl"), {}, "is not in the folder"),
    "stars within a name": (FILES, one("'**.jsonl'"), {}, "**.jsonl: "),
    "no folder": (FILES, "configs:\n- config_name: a\n  data_dir: q", {}, "no folder q"),
    "no name": (FILES, "configs:\n- data_files: x.jsonl", {}, "must have a config_name"),
    "not a list": (FILES, "configs: {a: x.jsonl}", {}, "configs must be a list"),
    "not YAML": (FILES, "configs: [", {}, "its README.md: "),
    "a separator": (("x.csv",), one("x.csv\n  sep: ';'"), {}, "sets sep: ';'; set dataset.reader.delimiter: ';'"),
    "a parameter": (("x.csv",), one("x.csv\n  skiprows: 3"), {}, "sets skiprows, which is not supported"),
    "a field": (("x.json",), one("x.json\n  field: data"), {}, "set dataset.reader.root: 'data[]'"),
    "val_split beside validation": (
        ("train.jsonl", "dev.jsonl"),
        None,
        {"val_split": 0.5},
        "has a split validation of its own",
    ),
    "val_split without train": (("test.jsonl",), None, {"val_split": 0.5}, "has no effect: it moves rows of train"),
    "config without configs": (("x.jsonl",), None, {"config": "en"}, "dataset.config: has no effect"),
    "revision of a folder": (("x.jsonl",), None, {"revision": "main"}, "dataset.revision: has no effect"),
    "encoding of Parquet": (("x.parquet",), None, {"encoding": "latin-1"}, "dataset.encoding: has no effect"),
    "delimiter of JSON": (
        ("x.jsonl",),
        None,
        {"reader": {"delimiter": ";"}},
        "dataset.reader.delimiter: has no effect: it is for csv and tsv",
    ),
    "header of text": (("x.txt",), None, {"reader": {"header": False}}, "dataset.reader.header: has no effect"),
    "lines_per_row of CSV": (
        ("x.csv",),
        None,
        {"reader": {"lines_per_row": "file"}},
        "dataset.reader.lines_per_row: has no effect",
    ),
    "root of CSV": (("x.csv",), None, {"reader": {"root": "data[]"}}, "dataset.reader.root: has no effect"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_clear_or_has_no_effect_is_refused(case: str, tmp_path: Path) -> None:
    names, card, settings, message = REFUSED[case]
    folder = write(tmp_path / "rows", *names, card=card)
    with pytest.raises(ConfigError) as caught:
        read(folder, **settings)
    assert message in str(caught.value)


def test_declared_settings_stand_for_those_of_the_card(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", "x.csv", card=one("x.csv\n  sep: ';'"))
    (folder / "x.csv").write_text("text;n\na;1\n")
    assert read(folder, reader={"delimiter": ";"}) == {"train": ["a"]}


NOTICES: Mapping[str, tuple[tuple[str, ...], str | None, str]] = {
    "one split": (("rows.jsonl", "load.py"), None, ""),
    "splits": (("train.jsonl", "test.jsonl"), None, "splits by name: train: train.jsonl; test: test.jsonl"),
    "a config": (FILES, one("x.jsonl"), "config a of README.md: train: x.jsonl"),
    "many files": (
        ("test/a.jsonl", *(f"train/{n}.jsonl" for n in range(9))),
        None,
        "train/0.jsonl, train/1.jsonl, train/2.jsonl and 6 more",
    ),
    "no split": (("test.jsonl", "rows.jsonl"), None, "not read: rows.jsonl (in no split)"),
    "another format": (("a.jsonl", "b.csv"), None, "not read: b.csv (another format)"),
    "archives": (
        ("a.jsonl", "b.tar", "c.zip", "d.tar.gz"),
        None,
        "not read: b.tar, c.zip, d.tar.gz (archives, which are not unpacked)",
    ),
    "texts of documentation": (
        ("essay.txt", "LICENSE.txt", "readme.TXT"),
        None,
        "not read: LICENSE.txt, readme.TXT (documentation)",
    ),
    "Markdown": (("a.jsonl", "notes.md"), None, "not read: notes.md (documentation)"),
    "images": (("a.jsonl", "b.jsonl", "c.png"), None, "not read: c.png (another format)"),
    "a copy": (("a.jsonl", "a.jsonl.bak"), None, "not read: a.jsonl.bak"),
}


@pytest.mark.parametrize("case", NOTICES)
def test_what_is_read_and_what_is_not_is_said(case: str, tmp_path: Path) -> None:
    names, card, notice = NOTICES[case]
    notes = SourceNotes()
    read(write(tmp_path / "rows", *names, card=card), notes)
    assert notice in "\n".join(notes.notices) if notice else not notes.notices


def test_a_glob_is_one_split_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", "train/a.jsonl", "test/b.jsonl", "c.jsonl", "d.jsonl")
    notes = SourceNotes()
    assert [*read(folder / "t*" / "*.jsonl", notes)] == ["train"]
    assert "read as the split train, but names say train: train/a.jsonl; test: test/b.jsonl" in notes.notices[0]
    quiet = SourceNotes()
    assert [*read(folder / "*.jsonl", quiet)] == ["train"]
    assert not quiet.notices


def test_a_remote_folder_is_one_split_and_says_so(tmp_path: Path) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    for name in ("train.jsonl", "test.jsonl", "notes.md", "x.tar"):
        system.pipe(f"/rows_{os.getpid()}/{name}", b'{"text": "a"}\n')
    notes = SourceNotes()
    config = PipelineConfig.from_mapping({"dataset": {"name": f"memory://rows_{os.getpid()}/"}})
    assert {chunk.split for chunk in source_chunks(config, notes=notes)} == {"train"}
    assert "names say train: train.jsonl; test: test.jsonl" in notes.notices[0]
    assert "notes.md (documentation)" in notes.notices[1]
    assert "x.tar (archives" in notes.notices[1]


def test_only_chosen_splits_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", "train.jsonl", "test.jsonl", "dev.jsonl")
    assert [*read(folder, splits=["validation", "train"])] == ["validation", "train"]
    assert [*read(folder, splits=["train"], val_split=0.5)] == ["train", "validation"]
    one = write(tmp_path / "one", "rows.jsonl")
    assert [*read(one, splits=["train", "validation"], val_split=0.5)] == ["train", "validation"]


SOURCES: Mapping[str, tuple[DataSource, str]] = {
    "hub": (HubDataset("a/b"), "format encoding header delimiter lines_per_row root"),
    "save_to_disk": (DiskDataset(Path("rows")), "config revision format encoding header delimiter lines_per_row root"),
    "tfds": (TfdsDataset("gsm8k"), "config revision format encoding header delimiter lines_per_row root"),
    "Parquet": (files("x.parquet"), "config revision encoding header delimiter lines_per_row root"),
    "Arrow": (files("x.arrow"), "config revision encoding header delimiter lines_per_row root"),
    "JSON lines": (files("x.jsonl"), "config revision header delimiter lines_per_row"),
    "JSON": (files("x.json"), "config revision header delimiter lines_per_row"),
    "CSV": (files("x.csv"), "config revision lines_per_row root"),
    "TSV": (files("x.tsv"), "config revision lines_per_row root"),
    "text": (files("x.txt"), "config revision header delimiter root"),
    "several formats": (files("x.csv", "x.txt", "x.json"), "config revision"),
    "a URL": (files("https://example.org/x.jsonl"), "config revision header delimiter lines_per_row"),
    "a folder with configs": (files("x.jsonl", config="a"), "revision header delimiter lines_per_row"),
}
SETTINGS: Mapping[str, Any] = {
    "config": "a",
    "revision": "main",
    "format": "jsonl",
    "encoding": "latin-1",
    "header": True,
    "delimiter": ";",
    "lines_per_row": "file",
    "root": "a[]",
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_setting_is_obeyed_or_refused(kind: str) -> None:
    source, refused = SOURCES[kind]
    plain = DatasetConfig(name="rows", splits=("train",), columns=("a",), reader=ReaderConfig(max_record_bytes=9))
    assert [*without_effect(plain, source)] == []
    options = {name: value for name, value in SETTINGS.items() if name in ReaderConfig.model_fields}
    others = {name: value for name, value in SETTINGS.items() if name not in options}
    dataset = DatasetConfig(name="rows", reader=ReaderConfig(**options), **others)
    found = [setting.removeprefix("reader.") for setting, _ in without_effect(dataset, source)]
    assert found == refused.split()


def test_all_endings_of_load_dataset_are_known() -> None:
    from datasets.packaged_modules import _EXTENSION_TO_MODULE  # pyright: ignore[reportPrivateUsage]

    documents = {".md", ".toml", ".tar"}  # the first two are documentation, and archives are named
    assert {ending.lower() for ending in _EXTENSION_TO_MODULE} - documents <= _READ | _UNREAD


OFFICE = {".xlsx": "spreadsheet", ".XLS": "spreadsheet", ".ods": "spreadsheet", ".docx": "document", ".pdf": "document"}


@pytest.mark.parametrize("ending", OFFICE)
def test_office_files_are_named_with_the_remedy(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"rows{ending}").write_bytes(b"PK\x03\x04")
    remedy = {"spreadsheet": "save each sheet as CSV", "document": "save its text as"}[OFFICE[ending]]
    named = f"a {OFFICE[ending]}: {remedy}"
    for name in (tmp_path / f"rows{ending}", tmp_path):
        with pytest.raises(ConfigError) as error:
            locate(PipelineConfig.from_mapping({"dataset": {"name": str(name)}}))
        in_folder = "most of its data are .pdf files, which are not read"
        assert (in_folder if name is tmp_path and ending == ".pdf" else named) in str(error.value)
