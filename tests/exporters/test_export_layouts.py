"""Other tools read an export's documents and masks as a loader returns them; what a layout cannot hold is refused."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from support.datasets_on_disk import write_dataset
from support.export_peers import READERS, Document, documents, mds, segments
from support.processes import run
from support.soak import machine, pairs, smoke, some
from tokenloom.cli import main
from tokenloom.exporters import LAYOUTS
from tokenloom.exporters.export_folder import layout_class
from tokenloom.loaders import TokenDataset, open_dataset

NEEDS = {"megatron": "megatron", "olmo": "olmo_core", "mds": "streaming"}
"""Packages whose readers a test calls."""

CHAT: dict[str, Any] = {
    "train": {"vocab_size": 500, "min_frequency": 2},
    "special_tokens": {"eos": "<|im_end|>", "pad": "<|pad|>", "additional": ["<|im_start|>"]},
    "chat_template": "chatml-eos",
    "max_length": 256,
}


def turns(count: int) -> list[dict[str, Any]]:
    """Conversations of several turns with a tool."""
    rows: list[dict[str, Any]] = []
    for number in range(count):
        said = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}, été 🌊"}]
        rows.append({"messages": [{"role": "system", "content": "Be brief."}, *said * (1 + number % 3)]})
    return rows


def preferences(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{number}?", "chosen": f"yes {number}", "rejected": "no"} for number in range(count)]


def answers(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}?", "completion": f"yes {n}", "label": n % 3 == 0} for n in range(count)]


ROWS = {"chat": turns, "weights": turns, "preference": preferences, "kto": answers}
PROMPTS: dict[str, Any] = {
    "chat": {"format_type": "chat"},
    "weights": {"format_type": "chat", "train_on": {"content": 1, "stop": 0.5}},
    "preference": {"format_type": "preference"},
    "kto": {"format_type": "kto"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a YAML for each kind of dataset, built."""
    folder = tmp_path_factory.mktemp("layouts")
    write_dataset(folder, 80, "plain")
    write_dataset(folder, 80, "packed", length={"packing": "best_fit"})
    for name, rows in ROWS.items():
        write_dataset(folder, 0, name, tokenizer=CHAT, prompt_template=PROMPTS[name])
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows(60))))
    for name in ("plain", "packed", *ROWS):
        assert main(["build", str(folder / f"{name}.yaml"), "--store", str(folder / "store")]) == 0
    return folder


def exported(home: Path, name: str, layout: str, folder: Path, *options: str) -> Path:
    """The folder of the split `train` of an export."""
    command = ["export", str(home / f"{name}.yaml"), str(folder), "--to", layout, "--store", str(home / "store")]
    assert main([*command, *options]) == 0
    return folder / "train"


def opened(home: Path, name: str) -> TokenDataset:
    return open_dataset(name, store=home / "store")


@pytest.mark.parametrize(
    ("name", "layout", "size"), pairs(["plain", "packed", "chat"], sorted(READERS), ["1KB", "500MB"])
)
def test_a_peer_reads_the_documents_and_masks_of_a_loader(
    home: Path, name: str, layout: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (package := NEEDS.get(layout)) is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setattr("tokenloom.exporters.layouts.GROUP_BYTES", 2000)
    monkeypatch.setattr("tokenloom.loaders.datasets.mixed_dataset.TOKENS_AT_ONCE", 900)
    dataset = opened(home, name)
    folder = exported(home, name, layout, tmp_path / "out", "--shard-size", size)
    assert READERS[layout](folder, dataset.vocab_size) == list(documents(dataset))
    (split,) = json.loads((folder.parent / ".export.json").read_text())["splits"]
    assert (len(split["files"]) > len(layout_class(layout).files)) == (size == "1KB")


@pytest.mark.parametrize("name", ["plain", "packed", "chat", "weights", "preference", "kto"])
def test_streaming_reads_the_rows(home: Path, name: str, tmp_path: Path) -> None:
    if find_spec("streaming") is None:
        pytest.skip("streaming is not installed")
    rows: Any = datasets.load_from_disk(exported(home, name, "hf", tmp_path / "hf"))
    found = mds(exported(home, name, "mds", tmp_path / "mds", "--shard-size", "9KB"), 0)
    assert [{key: int(value) if key == "label" else value for key, value in row.items()} for row in rows] == found


def test_shards_of_mds_are_what_their_index_says(home: Path, tmp_path: Path) -> None:
    """By the layout: number of samples, offsets, a header in JSON, then samples of sizes and values."""
    folder = exported(home, "chat", "mds", tmp_path / "mds")
    (described,) = json.loads((folder / "index.json").read_text())["shards"]
    content = (folder / described["raw_data"]["basename"]).read_bytes()
    assert len(content) == described["raw_data"]["bytes"]
    count = int.from_bytes(content[:4], "little")
    offsets = [int.from_bytes(content[at : at + 4], "little") for at in range(4, 8 + 4 * count, 4)]
    header = json.loads(content[8 + 4 * count : offsets[0]])
    assert count == described["samples"] == 60 and header["column_names"] == described["column_names"]
    assert offsets[-1] == len(content)


def test_files_of_olmo_have_the_documents_and_masks_of_a_loader(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the layout: raw ids, a raw bool mask, and lines of `start,end`, of which a shard has those of many tables."""
    monkeypatch.setattr("tokenloom.exporters.layouts.GROUP_BYTES", 2000)
    monkeypatch.setattr("tokenloom.loaders.datasets.mixed_dataset.TOKENS_AT_ONCE", 900)
    folder = exported(home, "packed", "olmo", tmp_path / "out", "--shard-size", "9KB")
    found: list[Document] = []
    for path in (paths := sorted(folder.glob("token_ids_part_*.npy"))):
        ids = np.fromfile(path, np.uint16).tolist()
        mask = np.fromfile(path.with_name(path.name.replace("token_ids", "labels_mask")), np.uint8).tolist()
        for line in gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode().splitlines():
            begin, end = map(int, line.split(","))
            found.append((ids[begin:end], mask[begin:end]))
    assert found == list(documents(opened(home, "packed")))
    assert len(paths) > 1


def test_trl_takes_pairs_and_answers(home: Path, tmp_path: Path) -> None:
    """Prompt and answers add up to the tokens, and what DPO's and KTO's collators train is what a loader trains."""
    for name, sides in (("preference", ("chosen", "rejected")), ("kto", ("completion",))):
        rows: Any = datasets.load_from_disk(exported(home, name, "trl", tmp_path / name))
        dataset = opened(home, name)
        for number, row in enumerate(rows):
            known = dataset[number]
            for side in sides:
                prefix = "" if side == "completion" else f"{side}_"
                ids, labels = known[f"{prefix}input_ids"].tolist(), known[f"{prefix}labels"].tolist()
                answer = row[f"{side}_ids"]
                assert [*row["prompt_ids"], *answer] == ids[: len(row["prompt_ids"]) + len(answer)]
                assert answer == [label for label in labels if label != -100]


@pytest.mark.parametrize("name", ["preference", "kto"])
def test_trl_trains_prepared_rows(home: Path, name: str, tmp_path: Path) -> None:
    """With the subclasses that the README shows."""
    trl = pytest.importorskip("trl")
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    dataset = opened(home, name)
    rows: Any = datasets.load_from_disk(exported(home, name, "trl", tmp_path / "out"))
    shown = (tmp_path / "out" / "README.md").read_text().split("```python\n")[2].split("```")[0]
    scope: dict[str, Any] = vars(trl) | {"DPOTrainer": trl.DPOTrainer, "KTOTrainer": trl.KTOTrainer}
    exec(shown, scope)
    kind, config = ("DPO", trl.DPOConfig) if name == "preference" else ("KTO", trl.KTOConfig)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=dataset.vocab_size, num_attention_heads=2, **sizes))
    settings = {"max_steps": 1, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no"}
    arguments = config(output_dir=str(tmp_path / "run"), use_cpu=True, bf16=False, disable_tqdm=True, **settings)
    tokenizer = AutoTokenizer.from_pretrained(dataset.tokenizer_path)
    trainer = scope[f"Prepared{kind}Trainer"](
        model=model, ref_model=deepcopy(model), args=arguments, train_dataset=rows, processing_class=tokenizer
    )
    assert trainer.train().global_step == 1


@pytest.mark.parametrize("name", ["plain", "chat"])
def test_texts_are_read_back_as_the_same_tokens(home: Path, name: str, tmp_path: Path) -> None:
    folder = exported(home, name, "jsonl", tmp_path / "out")
    again: dict[str, Any] = {"dataset": {"name": str(folder)}, "prompt_template": {"format_type": "text"}}
    again["tokenizer"] = {"name_or_path": opened(home, name).tokenizer_path, "max_length": 256}
    (tmp_path / "again.yaml").write_text(json.dumps(again))
    assert main(["build", str(tmp_path / "again.yaml"), "--store", str(tmp_path / "store")]) == 0
    assert [*documents(open_dataset("again", store=tmp_path / "store"))] == [*documents(opened(home, name))]
    assert all(any(label for _, label in row) and not row[0][1] for row in segments(folder))


@pytest.mark.parametrize(
    ("name", "layout", "message"),
    [
        ("preference", "megatron", "megatron cannot hold rows of kind 'pair'; export preference with --to hf"),
        ("kto", "llamafactory", "llamafactory cannot hold rows of kind 'labelled sequence'"),
        *(
            (
                "weights",
                layout,
                f"{layout} cannot hold loss weights other than 0 and 1, such as 0.5; use --to hf or mds",
            )
            for layout in ("megatron", "megatron-sft", "olmo", "trl", "axolotl", "llamafactory", "skyrl")
        ),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(
    home: Path, name: str, layout: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(home / f"{name}.yaml"), str(tmp_path / "out"), "--to", layout]
    assert main([*command, "--store", str(home / "store")]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_missing_ends_are_told(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every turn of these conversations ends with EOS, and a line break follows the last one."""
    exported(home, "chat", "olmo", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "documents have EOS before their end, so OLMo-core needs use_array_if_local=False" in printed
    assert "before their end" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_readme_says_how_the_folder_is_read(home: Path, layout: str, tmp_path: Path) -> None:
    """And `.export.json` names its files, and their bytes."""
    exported(home, "chat", layout, tmp_path / "out")
    (split,) = json.loads((tmp_path / "out" / ".export.json").read_text())["splits"]
    assert split["bytes"] == sum((tmp_path / "out" / file).stat().st_size for file in split["files"])
    text = (tmp_path / "out" / "README.md").read_text()
    dataset = opened(home, "chat")
    assert f"| train | {len(dataset)} | {len(dataset)} | {dataset.tokens:,} |" in text
    assert dataset.version in text and "```" in text
    assert str(home) not in text and str(tmp_path) not in text


KILLED = """
import os, signal, sys
from tokenloom.cli import main
from tokenloom.exporters import layouts
from tokenloom.loaders.datasets import mixed_dataset
layouts.GROUP_BYTES, mixed_dataset.TOKENS_AT_ONCE = 2000, 900
closed, record = [], layouts.FinishedShards.record

def kill(self, split, shards):
    record(self, split, shards)
    closed.append(split)
    if len(closed) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

layouts.FinishedShards.record = kill
sys.exit(main(sys.argv[2:]))
"""


@smoke
@machine("kills")
@pytest.mark.parametrize("layout", some(["megatron", "hf", "mds", "olmo"], 4))
def test_a_killed_export_goes_on_with_its_finished_shards(home: Path, layout: str, tmp_path: Path) -> None:
    """The files are those of an export that was not killed."""
    command = ["export", home / "plain.yaml", "--to", layout, "--store", home / "store", "--shard-size", "4KB"]
    program = [sys.executable, "-c", KILLED]
    run([*program, 0, *command, tmp_path / "whole"], check=True)
    whole = files_in(tmp_path / "whole")
    assert run([*program, 2, *command, tmp_path / "out"]).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    kept = [
        path.stat().st_mtime_ns for path in sorted((tmp_path / ".out.part" / "written" / "train").glob("[01].*.part"))
    ]
    run([*program, 0, *command, tmp_path / "out"], check=True)
    assert files_in(tmp_path / "out") == whole
    assert kept and {*kept} <= {path.stat().st_mtime_ns for path in (tmp_path / "out" / "train").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_shards_of_another_export_are_not_taken(home: Path, tmp_path: Path) -> None:
    command = ["--to", "hf", "--store", str(home / "store"), "--shard-size", "4KB", str(tmp_path / "out")]
    killed = [sys.executable, "-c", KILLED, "2", "export", home / "plain.yaml", *command]
    assert run(killed).returncode == -signal.SIGKILL
    left = tmp_path / ".out.part" / "written" / "train"
    assert len([*left.iterdir()]) >= 2
    rows: Any = datasets.load_from_disk(exported(home, "chat", "hf", tmp_path / "out"))
    assert len(rows) == 60 and not left.exists()


def test_a_shard_that_was_changed_is_written_again(home: Path, tmp_path: Path) -> None:
    command = ["--to", "hf", "--store", str(home / "store"), "--shard-size", "4KB", str(tmp_path / "out")]
    killed = [sys.executable, "-c", KILLED, "3", "export", home / "plain.yaml", *command]
    assert run(killed).returncode == -signal.SIGKILL
    (tmp_path / ".out.part" / "written" / "train" / "1.0.part").write_bytes(b"")
    assert main(["export", str(home / "plain.yaml"), *command]) == 0
    rows: Any = datasets.load_from_disk(tmp_path / "out" / "train")
    assert len(rows) == 80


def test_other_columns_are_named_when_they_are_not_written(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_dataset(tmp_path, 20, dataset={"name": "small.jsonl", "keep_columns": ["input"]})
    assert main(["export", str(path), "--to", "olmo", str(tmp_path / "out"), "--store", str(tmp_path / "store")]) == 0
    assert "columns that olmo cannot hold, not written: input" in capsys.readouterr().out
