"""`tokenloom import`: every key is taken over or named, and what is written is what the other tool reads and trains."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from support.paths import TESTS
from tokenloom.cli import main
from tokenloom.config import DatasetConfig
from tokenloom.config.dataset import load_config
from tokenloom.importers import TOOLS, sheet
from tokenloom.importers.axolotl import PROMPTS, Prompt, filled, jinja_prompt
from tokenloom.importers.sheet import SECTIONS

SAMPLES = TESTS / "importers" / "imports"
GOLDEN = SAMPLES / "golden"
"""What is written for the samples; `PYTHONPATH=tests python tests/importers/test_import_config.py` writes it again."""

LISTS = ("taken", "elsewhere", "differs", "training")

needs_rows = pytest.mark.skipif("max_rows" not in DatasetConfig.model_fields, reason="no setting max_rows")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(
    capsys: pytest.CaptureFixture[str], given: Path | dict[str, Any], *options: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Import a file and return the report, and the settings of each YAML."""
    if isinstance(given, dict):
        Path("given.yaml").write_text(yaml.safe_dump(given))
        given = Path("given.yaml")
    code = main(["import", str(given), "--json", "--force", *options])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    report = json.loads(printed.out)
    for file in report["files"]:
        load_config(file)
    return report, [yaml.safe_load(Path(file).read_text()) for file in report["files"]]


def refused(capsys: pytest.CaptureFixture[str], given: Path | dict[str, Any] | str, *options: str) -> str:
    """Import a file that cannot be imported, and return the message. No YAML is written."""
    if not isinstance(given, Path):
        Path("given.yaml").write_text(given if isinstance(given, str) else yaml.safe_dump(given))
        given = Path("given.yaml")
    before = sorted(Path().iterdir())
    assert main(["import", str(given), *options]) == 2
    assert sorted(Path().iterdir()) == before
    return capsys.readouterr().err


def setting(settings: dict[str, Any], name: str) -> Any:
    """Return a setting by its dotted name, or None."""
    for part in name.split("."):
        settings = settings.get(part, {})
    return settings if settings != {} else None


def keys_of(value: Any, at: str = "") -> Iterator[str]:
    """Yield the names of all keys that a section or a list of sections holds, as reports name them."""
    if isinstance(value, dict):
        for name, inner in value.items():
            key = f"{at}.{name}" if at else str(name)
            yield key
            if name in ("datasets", "dataset_mixture", "special_tokens"):
                yield from keys_of(inner, key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from (key for key in keys_of(item, f"{at}[{number}]") if isinstance(item, dict))


@needs_rows
@pytest.mark.parametrize("tool", TOOLS)
def test_samples_become_the_golden_yamls_and_every_key_is_reported(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SAMPLES, "given")
    report, _ = imported(capsys, Path("given") / f"{tool}.yaml", "--out", "out/")
    assert report["tool"] == tool
    written = {Path(file).name: Path(file).read_text() for file in report["files"]}
    assert written == {name: (GOLDEN / name).read_text() for name in written}
    assert {*written} == {path.name for path in GOLDEN.glob(f"{tool}*.yaml")}
    reported = {key for kind in LISTS for key in report[kind]}
    for key in keys_of(yaml.safe_load((SAMPLES / f"{tool}.yaml").read_text())):
        assert key in reported or any(other.startswith((f"{key}.", f"{key}[")) for other in reported), key


AXOLOTL = {"base_model": "org/model", "sequence_len": 64, "datasets": [{"path": "a.jsonl", "type": "chat_template"}]}


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ({"sequence_len": 99}, "tokenizer.max_length", 99),
        ({"tokenizer_config": "org/other"}, "tokenizer.name_or_path", "org/other"),
        ({"processor_type": "AutoProcessor"}, "tokenizer.processor", "org/model"),
        ({"tokens": ["<a>"]}, "tokenizer.special_tokens.additional", ["<a>"]),
        ({"special_tokens": {"eos_token": "<e>"}}, "tokenizer.special_tokens.eos", "<e>"),
        ({"default_system_message": "Hi"}, "prompt_template.system", None),
        ({"chat_template_kwargs": {"think": False}}, "prompt_template.template_kwargs.think", False),
        ({"train_on_inputs": True}, "prompt_template.train_on", ["system", "user", "assistant", "tool"]),
        (
            {"train_on_inputs": True, "datasets": [{"path": "a.jsonl", "type": "alpaca"}]},
            "prompt_template.train_on",
            "all",
        ),
        ({"train_on_inputs": False}, "prompt_template.train_on", "completions"),
        ({"excess_length_strategy": "raise"}, "length.strategy", "drop"),
        ({"sample_packing": True}, "length.packing", "best_fit"),
        ({"pad_to_multiple_of": 64}, "tokenizer.padding", 64),
        ({"val_set_size": 0.1}, "dataset.val_split", 0.1),
        ({"val_set_size": 100}, "dataset.val_split", None),
        ({"dataset_exact_deduplication": True}, "dedup.exact", "row"),
        ({"curriculum_sampling": True}, "dataloader.shuffle", "none"),
        ({"dataloader_prefetch_factor": 3}, "dataloader.prefetch_factor", 3),
        ({"chat_template": "chatml"}, "tokenizer.chat_template", "chatml"),
        ({"chat_template": "llama3"}, "tokenizer.chat_template", None),
        ({"chat_template_jinja": "{{ messages[0].content }}"}, "tokenizer.chat_template", "{{ messages[0].content }}"),
        ({"rl": "kto", "datasets": [{"path": "a", "type": "chatml.intel"}]}, "prompt_template.format_type", "kto"),
        (
            {"rl": "dpo", "datasets": [{"path": "a.jsonl", "type": "chatml.ultra"}]},
            "dataset.column_mapping.chosen",
            "chosen[1].content",
        ),
        (
            {"rl": "orpo", "datasets": [{"path": "a.jsonl", "type": "chat_template.argilla"}]},
            "dataset.column_mapping.prompt",
            None,
        ),
        ({"pretraining_dataset": "org/web", "datasets": None}, "length.packing", None),
        ({"datasets": [{"path": "a.jsonl", "type": "input_output"}]}, "dataset.column_mapping.segments", "segments"),
    ],
)
def test_keys_of_axolotl(more: dict[str, Any], name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, (settings, *_) = imported(capsys, {**AXOLOTL, **more}, "--from", "axolotl")
    assert setting(settings, name) == value


LLAMAFACTORY = {"model_name_or_path": "org/model", "dataset": "qa", "template": "llama3", "cutoff_len": 64}


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ({}, "dataset.column_mapping.prompt", "{instruction}{input:next_line}"),
        ({"stage": "dpo", "dataset": "pairs"}, "dataset.column_mapping.rejected", "bad"),
        ({"stage": "kto", "dataset": "rated"}, "dataset.column_mapping.label", "liked"),
        ({"stage": "pt", "dataset": "books"}, "length.packing", "concat"),
        ({"stage": "pt", "dataset": "books", "packing": False}, "length.strategy", "truncate_right"),
        ({"dataset": "talks"}, "dataset.config", "en"),
        ({"dataset": "pages"}, "dataset.name", "hf://datasets/org/pages/english/"),
        ({"dataset": "photos"}, "tokenizer.processor", "org/model"),
        ({"dataset": "photos"}, "dataset.column_mapping.images", "pictures"),
        ({"dataset": "odd"}, "dataset.column_mapping.prompt", "{`a.b`}{`c:d`:next_line}"),
        ({"dataset": "talks"}, "dataset.column_mapping.system", "sys"),
        ({"dataset": "org/rows", "dataset_dir": "ONLINE"}, "dataset.name", "org/rows"),
        ({"train_on_prompt": True}, "prompt_template.train_on", "all"),
        (
            {"enable_thinking": False, "template": "qwen3"},
            "prompt_template.template_kwargs.enable_thinking",
            False,
        ),
        ({"enable_thinking": False}, "prompt_template.template_kwargs.enable_thinking", None),
        ({"template": "chatml"}, "tokenizer.special_tokens.eos", "<|im_end|>"),
        ({"val_size": 0.1}, "dataset.val_split", 0.1),
        ({"packing": True}, "length.packing", "best_fit"),
    ],
)
def test_keys_of_llamafactory(more: dict[str, Any], name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dataset-info", str(SAMPLES / "dataset_info.json")]
    _, (settings, *_) = imported(capsys, {**LLAMAFACTORY, **more}, "--from", "llamafactory", *options)
    assert setting(settings, name) == value


TRL = {"model_name_or_path": "org/model", "dataset_name": "org/rows"}


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ({}, "prompt_template.train_on", "all"),
        ({}, "tokenizer.max_length", 1024),
        ({"max_length": 10}, "tokenizer.max_length", 10),
        ({"completion_only_loss": True}, "prompt_template.train_on", "completions"),
        ({"dataset_text_field": "body"}, "dataset.column_mapping.text", "body?"),
        ({"eval_strategy": "steps"}, "dataset.splits", ["train", "test"]),
        ({"dataset_test_split": "dev"}, "dataset.splits", ["train"]),
        ({"packing": True, "packing_strategy": "wrapped"}, "length.packing", "concat"),
        ({"truncation_mode": "keep_end"}, "length.strategy", "truncate_left"),
        ({"beta": 0.1}, "prompt_template.format_type", "preference"),
        ({"loss_type": "dft"}, "prompt_template.format_type", None),
        ({"desirable_weight": 1.0}, "prompt_template.format_type", "kto"),
        ({"reward_funcs": ["x"], "dataset_prompt_column": "q"}, "dataset.column_mapping.prompt", "q"),
        ({"reward_funcs": ["x"], "system_prompt": "Think."}, "prompt_template.system", "Think."),
        ({"system_prompt": "Think."}, "prompt_template.system", None),
        ({"dataset_name": None, "dataset_mixer": {"org/a": 1.0}}, "dataset.name", "org/a"),
        ({"dataset_name": None, "datasets": [{"path": "org/a", "fraction": 0.3}]}, "dataset.fraction", 0.3),
    ],
)
def test_keys_of_trl(more: dict[str, Any], name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, (settings, *_) = imported(capsys, {**TRL, **more}, "--from", "trl")
    assert setting(settings, name) == value


@needs_rows
@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:500]", {"splits": ["train"], "max_rows": 500}),
        ("train[:5%]", {"splits": ["train"], "fraction": 0.05}),
        ("test[10%:30%]", {"splits": ["test"], "fraction": 0.2}),
        ("train[:-20%]", {"splits": ["train"], "fraction": 0.8}),
        ("train", {"splits": ["train"], "max_rows": None, "fraction": None}),
        ("train[:100%]", {"splits": ["train"], "max_rows": None, "fraction": None}),
    ],
)
def test_slices_of_a_split(split: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"path": "a.jsonl", "type": "alpaca", "split": split}
    _, (settings,) = imported(capsys, {**AXOLOTL, "datasets": [entry]})
    assert {name: settings["dataset"].get(name) for name in expected} == expected


@needs_rows
def test_several_datasets_are_a_mixture_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"path": "org/a", "type": "alpaca"}, {"path": "org/a", "type": "alpaca"}]
    report, files = imported(capsys, {**AXOLOTL, "datasets": entries, "micro_batch_size": 3}, "--out", "x.yaml")
    assert [Path(file).name for file in report["files"]] == ["x-a.yaml", "x-a_.yaml", "x.yaml"]
    assert files[2]["mixture"] == [{"dataset": name, "weight": "size"} for name in ("x-a", "x-a_")]
    assert files[2]["dataloader"] == {"batch_size": 3}
    entries = [{"path": "org/a", "type": "alpaca"}, {"path": "org/b", "type": "alpaca"}]
    _, files = imported(capsys, {**AXOLOTL, "datasets": entries}, "--entry", "b", "--out", "y.yaml")
    assert [settings["dataset"]["name"] for settings in files] == ["org/b"]


def test_an_evaluation_set_is_a_dataset_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    held = [{"path": "org/held", "type": "alpaca", "split": "test"}]
    report, (evaluation, trained) = imported(capsys, {**AXOLOTL, "test_datasets": held, "val_set_size": 0})
    assert [Path(file).stem for file in report["files"]] == ["given-data-eval-held", "given-data"]
    assert evaluation["dataset"]["splits"] == ["test"]
    assert trained["dataset"]["name"] == "a.jsonl"


def test_an_evaluation_file_is_the_validation_split(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"path": "b.jsonl", "type": "chat_template"}
    report, (both,) = imported(capsys, {**AXOLOTL, "test_datasets": [held]}, "--out", "x.yaml")
    assert both["dataset"]["name"] == {"train": "a.jsonl", "validation": "b.jsonl"}
    assert "splits" not in both["dataset"] and "test_datasets[0].path" in report["taken"]
    for other in ({**held, "type": "alpaca"}, {**held, "path": "org/held"}, {**held, "path": "a.jsonl"}):
        _, files = imported(capsys, {**AXOLOTL, "test_datasets": [other]}, "--out", "y.yaml", "--force")
        assert len(files) == 2 and files[1]["dataset"]["name"] == "a.jsonl"


TEXTS = {
    "alpaca": (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nI\n\n### Input:\nX\n\n### Response:\nO"
    ),
    "alpaca_chat.load_no_prompt": "USER: I\nX\nASSISTANT:O",
    "alpaca_w_system.load_open_orca": "### System:\nP\n### Human:\nQ\n### Assistant:\nR",
    "context_qa": (
        "SYSTEM: Use the following contextual information to concisely answer the question.\n\n"
        "USER: C\n===\nQ\nASSISTANT:A"
    ),
    "context_qa.load_v2": "Context: K\nQuestion: Q\nAnswer: A",
    "summarizetldr": "USER: Summarize the following article as a TL;DR.\nC\nASSISTANT:S",
    "orcamini": "### System:\nP\n\n### User:\nQ\n\n### Response:\nR",
}
"""What axolotl's own prompters write for the row below, with the answer after it."""

ROW: dict[str, str] = {
    "instruction": "I",
    "input": "X",
    "output": "O",
    "system_prompt": "P",
    "question": "Q",
    "response": "R",
    "article": "C",
    "answer": "A",
    "context": "K",
    "summary": "S",
}


def rendered(template: str, row: dict[str, str]) -> str:
    """Return what Jinja writes, with the settings of chat templates; generation marks write nothing."""
    plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(plain).render(row)


@pytest.mark.parametrize("name", TEXTS)
def test_prompts_of_axolotls_types(name: str) -> None:
    assert rendered(jinja_prompt(PROMPTS[name]), ROW) == TEXTS[name]


@pytest.mark.parametrize(
    "form",
    [
        "{instruction} {input} ",
        "{instruction} {input} \n",
        "\n {{{instruction}}}\n{input}\n  ",
        "{{% x %}} {{# {input}",
        "  ",
    ],
)
@pytest.mark.parametrize("given", ["", "some text"])
def test_formats_of_ones_own_are_rendered_as_python_formats_them(form: str, given: str) -> None:
    without = form.replace("{input}", "")
    columns = {"instruction": "{{ instruction }}", "input": "input", "output": "{{ output }}"}
    template = jinja_prompt(Prompt((form, without, ""), ("", ""), columns))
    row = {"instruction": "{{ a }} {% b %}", "input": given, "output": "O"}
    chosen = form if given else without
    assert rendered(template, row) == chosen.format(instruction=row["instruction"], input=given) + "O"


@pytest.mark.parametrize("form", ["{other}", "{instruction!r}", "{instruction:>9}", "{", "{instruction.x}"])
def test_formats_with_anything_else_are_refused(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        filled(form, {"instruction": "x"})
    entry = {"path": "a.jsonl", "type": {"format": form, "no_input_format": form}}
    assert "datasets[0].type.format: " in refused(capsys, {**AXOLOTL, "datasets": [entry]})


def test_relative_paths_are_those_of_the_new_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows").mkdir()
    Path("rows/a.jsonl").write_text("{}\n")
    Path("model").mkdir()
    given = {**AXOLOTL, "base_model": "model", "datasets": [{"path": "rows/a.jsonl", "type": "alpaca"}]}
    _, (settings,) = imported(capsys, given, "--out", "out/")
    assert (settings["dataset"]["name"], settings["tokenizer"]["name_or_path"]) == ("../rows/a.jsonl", "../model")
    assert Path("out", settings["dataset"]["name"]).resolve() == Path("rows/a.jsonl").resolve()


@pytest.mark.parametrize(
    ("path", "file", "name"),
    [
        ("rows", "rows/a.jsonl", "../rows/a.jsonl"),
        ("rows", "{here}/rows/a.jsonl", "{here}/rows/a.jsonl"),
        ("rows", "https://example.org/a.jsonl", "https://example.org/a.jsonl"),
        ("json", "rows/a.jsonl", "../rows/a.jsonl"),
        ("json", "https://example.org/a.jsonl", "https://example.org/a.jsonl"),
        ("org/rows", "data/a.jsonl", "hf://datasets/org/rows/data/a.jsonl"),
        ("org/rows", "{here}/rows/a.jsonl", "{here}/rows/a.jsonl"),
        ("org/rows", "https://example.org/a.jsonl", "https://example.org/a.jsonl"),
    ],
)
def test_data_files_are_what_is_read(path: str, file: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in the repository that `path` names, if they are relative and `path` is not local or a format."""
    here = Path().resolve().as_posix()
    Path("rows").mkdir()
    Path("rows/a.jsonl").write_text("{}\n")
    entry = {"path": path, "data_files": file.format(here=here), "type": "alpaca"}
    _, (settings,) = imported(capsys, {**AXOLOTL, "datasets": [entry]}, "--out", "out/")
    assert settings["dataset"]["name"] == name.format(here=here)


def test_files_next_to_dataset_info_are_found_from_the_new_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SAMPLES, "data")
    Path("data/qa.json").write_text("[]")
    _, (settings,) = imported(capsys, LLAMAFACTORY, "--out", "out/")
    assert settings["dataset"]["name"] == "../data/qa.json"


def test_unknown_keys_are_listed_with_the_most_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    report, _ = imported(capsys, {**AXOLOTL, "sequence_lenn": 9, "zzz": None})
    assert report["differs"]["sequence_lenn"] == "not a known key; did you mean sequence_len?; it was not read"
    assert report["training"]["zzz"] == "not set"


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"type": "alpaca", "field_messages": "talk"}, "field_messages"),
        ({"type": "alpaca", "roles_to_train": ["gpt"]}, "roles_to_train"),
        ({"type": "completion", "message_field_role": "from"}, "message_field_role"),
        ({"type": "chat_template", "field": "body"}, "field"),
        ({"type": "chat_template", "sequence_len": 9}, "sequence_len"),
        ({"type": "input_output", "drop_system_message": True}, "drop_system_message"),
        ({"type": "bradley_terry.chat_template", "field_chosen": "good"}, "field_chosen"),
    ],
)
def test_known_keys_that_a_type_does_not_read_are_not_unknown(
    entry: dict[str, Any], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report, (settings,) = imported(capsys, {**AXOLOTL, "datasets": [{"path": "a.jsonl", **entry}]}, "--from", "axolotl")
    text = f"not needed: axolotl does not read it with type: {entry['type']}"
    assert report["elsewhere"][f"datasets[0].{key}"] == text
    assert f"datasets[0].{key}" not in report["differs"]
    assert str(entry[key]) not in json.dumps(settings["dataset"])


def test_keys_of_a_type_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    kind = {"format": "{instruction}", "no_input_format": "{instruction}", "prompt_format": "x", "formatt": "y"}
    report, _ = imported(capsys, {**AXOLOTL, "datasets": [{"path": "a.jsonl", "type": kind}]})
    assert report["elsewhere"]["datasets[0].type.prompt_format"].startswith("not needed: axolotl does not read it")
    assert "did you mean format?" in report["differs"]["datasets[0].type.formatt"]
    assert report["taken"]["datasets[0].type.no_input_format"] == "prompt_template.template"


def test_known_keys_that_a_stage_of_llamafactory_does_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    columns = {"prompt": "q", "response": "a", "messages": "talk", "kto_tag": "liked"}
    Path("data/dataset_info.json").write_text(json.dumps({"qa": {"file_name": "a.json", "columns": columns}}))
    report, _ = imported(capsys, {**LLAMAFACTORY, "stage": "sft"})
    for key in ("messages", "kto_tag"):
        assert "LLaMA-Factory does not read it with stage: sft" in report["elsewhere"][f"qa.columns.{key}"]
    report, _ = imported(capsys, {**LLAMAFACTORY, "stage": "pt", "mask_history": True})
    assert "does not read it here" in report["elsewhere"]["mask_history"]
    assert "does not read it with stage: pt" in report["elsewhere"]["qa.columns.response"]


def test_reports_of_many_unknown_keys_are_linear_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """Each key is noted once, and compared with the known ones for the first few alone."""
    guesses: list[str] = []
    for number in (1000, 4000):
        given = {**AXOLOTL, **{f"key_{count}\n\x1b[31m": count for count in range(number)}}
        Path("given.yaml").write_text(yaml.safe_dump(given))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sheet, "did_you_mean", lambda name, known: guesses.append(name) if known else "")
            assert main(["import", "given.yaml", "--force"]) == 0
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) < 160 and "\x1b" not in printed
        assert "  key_0\\n\\x1b[31m: not a known key" in printed
        assert f"and {number + 1 - 100:,} more; --json lists all" in printed
        assert len(Path("given-data.yaml").read_text().splitlines()) < 160
        report, _ = imported(capsys, given)
        assert len(report["differs"]) == number + 1
    assert len(guesses) == 2 * sheet.MOST_GUESSES


@pytest.mark.parametrize("count", [1000, 4000])
def test_a_key_with_many_sentences_shows_the_first(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    roles = {f"role{number}": [f"speaker{number}"] for number in range(count)}
    entry = {"path": "a.jsonl", "type": "chat_template", "roles": roles}
    report, _ = imported(capsys, {**AXOLOTL, "datasets": [entry]})
    text = report["differs"]["datasets[0].roles"]
    assert text.count("are not read as") == sheet.MOST_SENTENCES
    assert text.endswith(f"and {count - sheet.MOST_SENTENCES:,} more")


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("given", "key", "remedy"),
    [
        ({**AXOLOTL, "datasets": [{"path": f"https://me:{SECRET}@host/a.jsonl"}]}, "datasets[0].path", "HF_TOKEN"),
        ({**AXOLOTL, "datasets": [{"path": f"https://host/a.jsonl?token={SECRET}"}]}, "datasets[0].path", "download"),
        ({**AXOLOTL, "datasets": [{"path": f"s3://KEY:{SECRET}@b/a.jsonl"}]}, "datasets[0].path", "AWS_ACCESS_KEY_ID"),
        (
            {**AXOLOTL, "datasets": [{"path": "json", "data_files": f"https://h/a.jsonl?X-Amz-Signature={SECRET}"}]},
            "datasets[0].data_files",
            "download",
        ),
        ({**AXOLOTL, "base_model": f"https://me:{SECRET}@host/model"}, "base_model", "remove them"),
        ({**AXOLOTL, "base_model": f"hf_{SECRET * 4}"}, "base_model", "HF_TOKEN"),
        ({**AXOLOTL, "chat_template_kwargs": {"a": [f"hf_{SECRET * 4}"]}}, "chat_template_kwargs", "HF_TOKEN"),
        ({**TRL, "dataset_name": f"zip://a.jsonl::https://me:{SECRET}@host/a.zip"}, "dataset_name", "download"),
        ({**TRL, "dataset_name": None, "dataset_mixer": {f"https://me:{SECRET}@host/a.jsonl": 1.0}}, "", "remove them"),
    ],
)
def test_credentials_are_never_written(
    given: dict[str, Any], key: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, given)
    assert f"{key}: holds credentials" in error or (not key and "holds credentials" in error)
    assert remedy in error and SECRET not in error


@pytest.mark.parametrize(
    "address",
    ["https://huggingface.co/a/b/resolve/main/a.jsonl?download=true", "https://host/a.jsonl", "s3://bucket/a.jsonl"],
)
def test_addresses_without_credentials_are_written(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, (settings,) = imported(capsys, {**AXOLOTL, "datasets": [{"path": address, "type": "alpaca"}]})
    assert settings["dataset"]["name"] == address


def test_the_token_of_the_hub_is_done_by_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    report, (settings,) = imported(capsys, {**TRL, "hf_hub_token": f"hf_{SECRET * 4}", "hub_token": f"hf_{SECRET * 4}"})
    assert SECRET not in json.dumps([report, settings])
    assert "HF_TOKEN" in report["elsewhere"]["hf_hub_token"]


@pytest.mark.parametrize(
    ("more", "options", "command"),
    [
        ({}, (), "build with: tokenloom build given-data.yaml"),
        ({}, ("--out", "a b/"), "build with: tokenloom build 'a b/given.yaml'"),
        (
            {"test_datasets": [{"path": "org/held", "type": "alpaca"}]},
            (),
            "build with: tokenloom build given-data-eval-held.yaml && tokenloom build given-data.yaml",
        ),
        (
            {"datasets": [{"path": f"org/{name}", "type": "alpaca"} for name in "ab"]},
            (),
            "build with: tokenloom build given-data.yaml",
        ),
        ({}, ("--out", "-"), "build with: tokenloom build FILE"),
        ({}, ("--json",), "build with: tokenloom build given-data.yaml"),
    ],
)
def test_the_next_command_is_printed(
    more: dict[str, Any], options: tuple[str, ...], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("given.yaml").write_text(yaml.safe_dump({**AXOLOTL, **more}))
    assert main(["import", "given.yaml", *options]) == 0
    printed = capsys.readouterr()
    assert command in printed.out + printed.err


def test_every_rule_sets_a_setting_that_exists() -> None:
    for tool in TOOLS:
        for section, rules in sheet.table(tool)["rules"].items():
            for key, rule in rules.items():
                at = (tool, section, key)
                assert {*rule} <= {"is", "to", "default", "values", "why", "sets", "whys", *sheet.SENTENCES}, at
                assert rule.get("is", "text") in sheet.KINDS and {*rule.get("whys", {})} <= {*rule.get("sets", {})}, at
                settings = [*rule.get("sets", {}), *([rule["to"]] if "to" in rule else [])]
                assert {name.partition(".")[0] for name in settings} <= {*SECTIONS}, at
                by_value = {each for kind in sheet.SENTENCES if isinstance(rule.get(kind), dict) for each in rule[kind]}
                if "values" in rule:
                    assert by_value <= {*rule["values"]}, at


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**AXOLOTL, "sequence_len": [1]}, "sequence_len: expected an integer, got [1]"),
        ({**AXOLOTL, "sequence_len": True}, "sequence_len: expected an integer, got true"),
        ({**AXOLOTL, "sequence_len": -5}, "sequence_len: becomes tokenizer.max_length: must be greater than"),
        ({**AXOLOTL, "val_set_size": "much"}, "val_set_size: expected a number, got 'much'"),
        ({**AXOLOTL, "datasets": "rows"}, "datasets: expected a list, got 'rows'"),
        ({**AXOLOTL, "datasets": ["rows"]}, "datasets: expected a list of mappings, got 'rows'"),
        ({**AXOLOTL, "datasets": [{"path": "a"}, 3]}, "datasets: expected a list of mappings, got 3"),
        ({**AXOLOTL, "datasets": [{"type": "alpaca"}]}, "datasets[0].path: missing"),
        ({**AXOLOTL, "datasets": [{"path": "a", "type": "reflection"}]}, "type: no counterpart for 'reflection'"),
        ({**AXOLOTL, "datasets": [{"path": "a", "type": ["x"]}]}, "datasets[0].type: expected the name of a type"),
        ({**AXOLOTL, "tokenizer_use_mistral_common": True}, "tokenizers of mistral-common are not read"),
        ({**AXOLOTL, "rl": "magic"}, "rl: 'magic' is not one of dpo"),
        ({**AXOLOTL, "special_tokens": "<pad>"}, "special_tokens: expected a mapping, got '<pad>'"),
        ({**AXOLOTL, "base_model": None}, "base_model: missing"),
        ({**AXOLOTL, "datasets": [{"path": "a", "type": "alpaca", "split": "a+b[1:"}]}, "[0].split: no counterpart"),
        ({"answer": 42}, "its keys do not say which tool it is for"),
        ({**LLAMAFACTORY, "dataset": "gone"}, "dataset_dir: no dataset_info.json at data"),
        ({**TRL, "dataset_name": None}, "its keys do not say which tool"),
    ],
)
def test_wrong_files_are_refused_with_the_key(
    given: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, given)


@pytest.mark.parametrize(
    ("info", "given", "message"),
    [
        ("{", {}, "cannot be read: not valid JSON"),
        ("[" * 100_000, {}, "cannot be read: not valid JSON"),
        ("[]", {}, "expected an object with one entry per dataset"),
        ('{"qa": 3}', {}, "expected an object with one entry per dataset"),
        ('{"qaa": {}}', {}, "dataset_info.json has no 'qa'; did you mean qaa?"),
        ('{"qa": {}}', {}, "qa.file_name: only files and datasets of Hugging Face's hub are read"),
        ('{"qa": {"script_url": "x"}}', {}, "qa.script_url: only files"),
        ('{"qa": {"file_name": 3}}', {}, "qa.file_name: expected text, got 3"),
        ('{"qa": {"file_name": "a", "ranking": true}}', {}, "qa.ranking: does not fit stage: sft"),
        ('{"qa": {"file_name": "a", "columns": {"videos": "v"}}}', {}, "qa.columns.videos: videos are not read"),
        ('{"qa": {"file_name": "a"}}', {"stage": "dance"}, "stage: 'dance' is not one of"),
        ('{"qa": {"file_name": "a"}}', {"dataset_dir": "REMOTE:x"}, "of the hub is not read"),
    ],
)
def test_wrong_dataset_infos_are_refused(
    info: str, given: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("data").mkdir()
    Path("data/dataset_info.json").write_text(info)
    assert message in refused(capsys, {**LLAMAFACTORY, **given})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 2000, "nested more than 32 levels deep"),
        ("a: &a [*a]\n", "refers to itself"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)), "values, counting"),
        ("base_model: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("- a\n- b\n", "expected settings"),
        ("base_model: a\nbase_model: b\n", "set twice"),
        ("\0", "not valid YAML"),
        ("", "expected settings"),
    ],
)
def test_hostile_yaml_is_a_sentence(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, text)


JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, float("nan"), "", "x", "{", "~nobody/x", "a\x00b", "../" * 90, "x" * 5000, "*"),
    *([], [[]], ["x"], [None], [{}], {}, {"x": {"y": [1]}}, {3: 4}, [{"path": None}], "train[:1]", "train[::]", "%"),
)


@pytest.mark.parametrize("tool", ["axolotl", "llamafactory", "trl"])
def test_any_value_anywhere_is_imported_or_refused_in_one_sentence(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SAMPLES, "data")
    files = [Path("data") / f"{tool}.yaml", *([Path("data/dataset_info.json")] if tool == "llamafactory" else [])]
    for file in files:
        whole = yaml.safe_load(file.read_text())
        places = [*places_of(whole)]
        for number, place in enumerate(places):
            for junk in JUNK[number % 17 :: 17]:
                changed = yaml.safe_load(file.read_text())
                at = changed
                for part in place[:-1]:
                    at = at[part]
                at[place[-1]] = junk
                file.write_text(yaml.safe_dump(changed) if file.suffix == ".yaml" else json.dumps(changed))
                code = main(["import", f"data/{tool}.yaml", "--from", tool, "--out", "out/", "--force", "--json"])
                printed = capsys.readouterr()
                assert code in (0, 2), (place, junk, printed.err)
                assert code == 0 or len(printed.err.strip().splitlines()) == 1, (place, junk, printed.err)
                file.write_text(yaml.safe_dump(whole) if file.suffix == ".yaml" else json.dumps(whole))


def places_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and indexes that lead to each value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in pairs:
        yield (*at, part)
        yield from places_of(inner, (*at, part))


def test_what_is_there_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("given.yaml").write_text(yaml.safe_dump(AXOLOTL))
    assert "given.yaml is the file to import" in refused(capsys, AXOLOTL, "--out", "given.yaml", "--force")
    assert "given.yaml is the file to import" in refused(capsys, AXOLOTL, "--out", "./", "--force")
    Path("other.yaml").write_text("mine")
    assert "other.yaml exists" in refused(capsys, AXOLOTL, "--out", "other.yaml")
    assert Path("other.yaml").read_text() == "mine"
    several = {**AXOLOTL, "datasets": [{"path": "a.jsonl", "type": "alpaca"}, {"path": "b.jsonl", "type": "alpaca"}]}
    if "max_rows" in DatasetConfig.model_fields:
        assert "cannot be written to stdout" in refused(capsys, several, "--out", "-")
    held = {**AXOLOTL, "test_datasets": [{"path": "org/held", "type": "alpaca"}]}
    assert "2 YAML files cannot be written to stdout" in refused(capsys, held, "--out", "-")
    assert "has no dataset 'c'" in refused(capsys, several, "--entry", "c")
    assert "no such file" in refused(capsys, Path("gone.yaml"))


def test_stdout_has_the_yaml_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("given.yaml").write_text(yaml.safe_dump(AXOLOTL))
    assert main(["import", "given.yaml", "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["dataset"]["name"] == "a.jsonl"
    assert "taken over:" in printed.err


if __name__ == "__main__":
    for name in TOOLS:
        with tempfile.TemporaryDirectory() as at, chdir(at):
            shutil.copytree(SAMPLES, "given")
            assert main(["import", f"given/{name}.yaml", "--out", "out/"]) == 0
            shutil.copytree("out", GOLDEN, dirs_exist_ok=True)
