"""The command line: what people see, what scripts read, and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from support import processes
from support.datasets_on_disk import write_dataset
from support.terminal import run, run_here
from tokenloom.assets.building.report import Progress
from tokenloom.cli import schema
from tokenloom.cli.main import main
from tokenloom.cli.terminal import BuildProgress


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `small.yaml` and a store in which it is built."""
    folder = tmp_path_factory.mktemp("built")
    write_dataset(folder, dataset={"name": "small.jsonl", "val_split": 0.2})
    assert run("build", "small.yaml", folder=folder).returncode == 0
    return folder


def test_build_prints_a_table_of_stages(built: Path) -> None:
    done = run_here("build", "small.yaml", folder=built)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    for word in ("rows in", "rows out", "rejected", "chunks", "reused", "seconds", "raw", "sequences"):
        assert word in done.stdout
    assert "13 of 13 chunks reused" in done.stdout


def test_json_is_one_object_and_all_else_goes_to_stderr(built: Path) -> None:
    done = run_here("build", "small.yaml", "--json", folder=built)
    found = json.loads(done.stdout)
    assert [stage["name"] for stage in found["stages"]] == [
        "raw", "schema", "columns", "prompts", "tokenizer", "tokens", "sequences",
    ]  # fmt: skip
    wanted = {
        "name",
        "rows_in",
        "rows_out",
        "rejected",
        "filtered",
        "tokens",
        "chunks",
        "chunks_reused",
        "seconds",
        "digest",
    }
    assert all(wanted <= set(stage) for stage in found["stages"])
    assert all(stage["chunks"] == stage["chunks_reused"] for stage in found["stages"])
    assert "sequences" in done.stderr


def test_build_stops_after_a_stage_and_under_a_limit(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    done = run_here(
        "build", "small.yaml", "--stage", "columns", "--limit", 20, "--workers", 1, "--json", folder=tmp_path
    )
    found = json.loads(done.stdout)
    assert [stage["name"] for stage in found["stages"]] == ["raw", "schema", "columns"]
    assert (found["dataset"], found["stages"][-1]["rows_out"]) == ("small@20", 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "smal.yaml"], "smal.yaml: no such file; did you mean small.yaml?"),
        (["build", "smal.jsonl"], "smal.jsonl: no such file\n"),
        (["build", "small.yaml", "--stage", "tokns"], "--stage: 'tokns' is not one of raw, schema, columns"),
        (["build", "small.yaml", "--workers", "0"], "must be an integer of at least 1, got '0'"),
        (["preview", "small.yaml", "--row", "9999"], "--row: 9999 is out of range: the dataset has"),
        (["bild", "small.yaml"], "unknown command 'bild'; did you mean build?"),
        (["train", "small.yaml"], "training: missing; it is required: training: {model: HUB_ID}"),
        *(
            (["build", data], f"{data}: is not a YAML file of settings; if it is data, run: tokenloom inspect {data}")
            for data in ("small.jsonl", "list.json", "object.json", "table.csv", "latin.txt", ".")
        ),
    ],
)
def test_a_wrong_command_exits_2_with_one_message(built: Path, arguments: list[str], message: str) -> None:
    (built / "list.json").write_text('[{"text": "a"}]')
    (built / "object.json").write_text('{"data": [{"text": "a"}]}')
    (built / "table.csv").write_text("question,answer\na,b\n")
    (built / "latin.txt").write_bytes("Köln".encode("latin-1"))
    done = run_here(*arguments, folder=built)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dataset: {name: missing.jsonl}", "no such file: missing.jsonl"),
        ("dataset: {name: smal.jsonl}", "did you mean small.jsonl?"),
        ("dataset: {name: small.bin, format: auto}", "no such file: small.bin"),
        ("dataset: {name: small.jsonl}\ntokenizer: {name_or_path: ./nowhere}", "no such file or folder: ./nowhere"),
        ("dataset: {name: small.jsonl}", "tokenizer: set name_or_path, or train"),
        ("dataset: {name: small.jsonl, column_mapping: {prompt: questoin}}", "no column questoin"),
        ("dataset: {name: small.jsonl, splits: [test]}", "no split test; the dataset has train"),
        ("dataset: {name: small.jsonl", "not valid YAML"),
    ],
)
def test_a_wrong_yaml_exits_2_with_its_line(built: Path, change: str, message: str) -> None:
    trained = 'tokenizer: {train: {vocab_size: 300}, special_tokens: {eos: "<e>"}}\n'
    (built / "wrong.yaml").write_text(change + "\n" + ("" if "tokenizer" in change + message else trained))
    done = run_here("build", "wrong.yaml", folder=built)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert any(line.startswith("wrong.yaml:") for line in done.stderr.splitlines())
    assert "Traceback" not in done.stderr


def test_bad_data_exits_3_and_a_foreign_store_4(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    (tmp_path / "small.jsonl").write_text('{"instruction": "a", "input": "", "output": ""}\n' * 3)
    failed = run_here("build", config, folder=tmp_path)
    assert (failed.returncode, "empty_answer" in failed.stderr, "Traceback" in failed.stderr) == (3, True, False)
    (tmp_path / "store" / "FORMAT").write_text("something else")
    assert run_here("build", config, folder=tmp_path).returncode == 4


def test_a_file_that_cannot_be_read_exits_3_and_is_named(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, dataset={"name": "broken.json"})
    (tmp_path / "broken.json").write_text('[{"a": 1}, {"a": ')
    done = run_here("build", config, folder=tmp_path)
    assert (done.returncode, "broken.json: invalid JSON" in done.stderr) == (3, True)


def left_on_screen(written: str) -> list[str]:
    """Return the lines that a terminal shows in the end, without the empty ones."""
    lines, at = [""], 0
    for text in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if text == "\n":
            at += 1
            lines += [""] * (at == len(lines))
        elif up := re.fullmatch(r"\x1b\[(\d*)A", text):
            at -= int(up[1] or 1)
        elif text == "\x1b[2K":
            lines[at] = ""
        elif text[0] not in "\x1b\r":
            lines[at] += text
    return [line for line in lines if line.strip()]


def test_the_live_lines_of_a_build_are_gone_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that chunks were computed again stays on the terminal."""
    monkeypatch.setenv("TERM", "xterm")
    written = io.StringIO()
    with BuildProgress(Console(file=written, force_terminal=True, width=100)) as progress:
        progress.chunk_done(Progress("raw", 1, 0, 10))
        progress.chunk_done(Progress("tokens", 1, 0, 10, retried=1, trouble="its node was lost; trying again"))
        live = left_on_screen(written.getvalue())
    again, *bars = live
    assert [stage in bar for stage, bar in zip(("raw", "tokens"), bars, strict=True)] == [True, True]
    assert left_on_screen(written.getvalue()) == [again] == ["tokens: its node was lost; trying again"]


def test_preview_shows_what_is_trained(built: Path) -> None:
    rows = [json.loads(line) for line in (built / "small.jsonl").read_text().splitlines()]
    shown = run_here("preview", "small.yaml", folder=built)
    assert shown.stdout.count("trained") >= 3
    assert rows[0]["instruction"].split(":")[0] in shown.stdout


def test_a_preview_without_colour_has_brackets_around_what_is_trained(tmp_path: Path) -> None:
    config = write_dataset(tmp_path)
    (row, *_) = map(json.loads, (tmp_path / "small.jsonl").read_text().splitlines())
    shown = run_here("preview", config, "--row", 0, folder=tmp_path).stdout
    assert "\x1b" not in shown
    inside = "".join(line.strip("\u2502 ") for line in shown.splitlines()[2:-1])
    (trained,) = re.findall("\u27e6(.*?)\u27e7", inside)
    assert trained.replace(" ", "") == f"{row['output']}<|endoftext|>".replace(" ", "")


def test_preview_says_why_a_row_is_absent_and_shows_no_control_character(tmp_path: Path) -> None:
    config = write_dataset(tmp_path, 300)
    data = tmp_path / "small.jsonl"
    lines = data.read_text().splitlines()
    lines[3] = json.dumps({"instruction": "nothing", "input": "", "output": ""})
    lines[4] = json.dumps({"instruction": "\x1b[31m<b>red</b>", "input": "", "output": "a"})
    data.write_text("\n".join(lines) + "\n")
    data = data.rename(tmp_path / "[red]a.jsonl")
    config.write_text(config.read_text().replace("small.jsonl", f"'{data.name}'"))
    done = run_here("preview", config, "--row", 3, 4, folder=tmp_path)
    assert data.name in done.stdout
    assert "rejected by columns: empty_answer" in done.stdout
    assert "\x1b[31m" not in done.stdout
    run_here("preview", config, "--row", 4, "--html", "p.html", folder=tmp_path)
    assert "<b>red" not in (tmp_path / "p.html").read_text()


def test_schema_prints_the_json_schema(tmp_path: Path) -> None:
    schema = json.loads(run_here("schema", folder=tmp_path).stdout)
    one, mixture = (schema["$defs"][found["$ref"].rpartition("/")[2]] for found in schema["anyOf"])
    assert (one["required"], mixture["required"]) == (["dataset"], ["mixture"])
    assert "tokenizer" in one["properties"] and "tokenizer" not in mixture["properties"]


def test_help_names_commands_and_exit_codes(tmp_path: Path) -> None:
    text = run("--help", folder=tmp_path).stdout
    assert all(word in text for word in ("build", "preview", "schema", "exit codes"))


def test_a_missing_extra_is_named(built: Path) -> None:
    program = (
        "import sys; sys.modules['rich'] = None; from tokenloom.cli import main; "
        "sys.exit(main(['build', 'small.yaml']))"
    )
    done = processes.run([sys.executable, "-c", program], cwd=built)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "rich" in done.stderr and "tokenloom[pipeline]" in done.stderr


def test_lack_of_memory_is_an_error_of_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out(_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 1024 failed")

    monkeypatch.setattr(schema, "run", run_out)
    assert main(["schema"]) == 1
    assert re.fullmatch(r"error: .*memory.*\n", capsys.readouterr().err)


def test_build_never_imports_dagster(built: Path) -> None:
    program = (
        "import sys; from tokenloom.cli import main; code = main(['build', 'small.yaml']); "
        "assert not {'dagster', 'datasets', 'transformers', 'torch'} & set(sys.modules); sys.exit(code)"
    )
    env = {**os.environ, "TOKENLOOM_STORE": str(built / "store")}
    processes.run([sys.executable, "-c", program], cwd=built, env=env, check=True)
