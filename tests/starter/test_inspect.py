"""`tokenloom inspect`: what it says of a source, and that the YAML it writes builds, or asks instead of guessing."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.datasets_on_disk import rows
from support.open_choices import choice_lines, uncommented
from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.shown_rows.token_runs import RowReader
from tokenloom.cli import main
from tokenloom.config import DATASET_NAME, PipelineConfig
from tokenloom.config.dataset import parse_config
from tokenloom.config.yaml_file import Loader
from tokenloom.errors import ConfigError
from tokenloom.resources.store import ArtifactStore
from tokenloom.resources.templates.named import NAMED, chatml
from tokenloom.starter.source_facts import dataset_name
from tokenloom.starter.starter_yaml import CHARACTERS_PER_TOKEN, FILL_IN, scalar, starter_yaml


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with its own store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_STORE", str(tmp_path / "store"))
    return tmp_path


def write_rows(path: Path, count: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(count)), encoding="utf-8")
    return path


def built(config: object, capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, dict[str, Any]]:
    """The stages of a build, by name."""
    capsys.readouterr()
    assert main(["build", str(config), "--json", *map(str, options)]) == 0, capsys.readouterr().err
    return {stage["name"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}


SURE = {
    "instruct/alpaca_data.json": ("alpaca", {"prompt": "instruction", "context": "input", "completion": "output"}),
    "multilingual/alpaca_zh_demo.json": (
        "alpaca",
        {"prompt": "instruction", "context": "input", "completion": "output"},
    ),
    "math/gsm8k_test.jsonl": ("qa", {"prompt": "question", "completion": "answer"}),
    "awkward/dialogsum_dev.jsonl": ("lines", {"prompt": "dialogue", "completion": "summary"}),
    "awkward/TruthfulQA_bom.csv": ("qa", {"prompt": "Question", "completion": "Best Answer"}),
    "awkward/banking77_test.csv": ("lines", {"prompt": "text", "completion": "category"}),
    "chat/dummy_conversation.json": ("chat", {"messages": "conversations"}),
    "chat/toy_chat_fine_tuning.jsonl": ("chat", {"messages": "messages"}),
    "text/wikitext-2/test.txt": ("text", {"text": "text"}),
}


@pytest.mark.parametrize("name", SURE)
def test_the_yaml_of_a_sure_reading_builds_as_it_is(
    real_data: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(real_data / name), "--limit", "400"]) == 0
    said = capsys.readouterr().out
    assert "Read as" in said
    (path,) = folder.glob("*.yaml")
    settings = yaml.safe_load(path.read_text())
    style, roles = SURE[name]
    assert settings["dataset"]["column_mapping"] == roles
    assert settings["prompt_template"]["format_type"] == ("chat" if style in NAMED else style)
    assert (settings["tokenizer"].get("chat_template") == style) == (style in NAMED)
    stages = built(path, capsys, "--limit", 400)
    assert all(stages[stage]["chunks_reused"] == stages[stage]["chunks"] for stage in ("raw", "schema"))
    assert stages["sequences"]["tokens"] > 1000
    assert stages["sequences"]["rows_out"] >= 0.98 * stages["raw"]["rows_out"]


@pytest.mark.parametrize("name", ["multilingual/gemoji.json", "awkward/avengers_latin1.csv"])
def test_where_no_reading_is_near_the_yaml_asks_for_a_mapping(
    real_data: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(real_data / name)]) == 0
    assert "Not clear which columns to train on" in capsys.readouterr().out
    (path,) = folder.glob("*.yaml")
    assert set(yaml.safe_load(path.read_text())["dataset"]["column_mapping"].values()) == {"<fill in>"}
    assert main(["build", str(path)]) == 2
    told = capsys.readouterr().err
    line = 1 + next(n for n, text in enumerate(path.read_text().splitlines()) if "<fill in>" in text)
    assert f"{path.name}:{line}: dataset.column_mapping." in told and "no column <fill in>" in told


LAYOUTS: dict[str, Any] = {
    "history": lambda n: {"instruction": f"Ask {n}?", "output": f"Say {n}.", "history": [["Hello", "Hi."]] * (n % 2)},
    "segments": lambda n: {"segments": [{"label": False, "text": f"{n}? "}, {"label": True, "text": f"Yes {n}."}]},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_yaml_of_a_layout_builds(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(LAYOUTS[name](n)) + "\n" for n in range(30)))
    assert main(["inspect", "rows.jsonl"]) == 0
    assert name in yaml.safe_load((folder / "rows.yaml").read_text())["dataset"]["column_mapping"]
    capsys.readouterr()
    assert built("rows.yaml", capsys)["sequences"]["rows_out"] == 30


def texts_of(name: str, store: Path, count: int) -> list[str]:
    reader = RowReader(ArtifactStore(store), name)
    return ["".join(run.text for run in reader.read(number).sides[""]) for number in range(count)]


QUESTIONS = [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in range(30)]


def test_a_prompt_and_its_answer_are_separated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    expected = {
        (): "Question:\nWhat is 3?\n\nAnswer:\nIt is 3.<|endoftext|>",
        ("--style", "plain"): "What is 3?\n\nIt is 3.<|endoftext|>",
        ("--style", "alpaca"): "### Instruction:\nWhat is 3?\n\n### Response:\nIt is 3.<|endoftext|>",
        ("--style", "chat"): "<|im_start|>user\nWhat is 3?<|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>\n",
    }
    for options, text in expected.items():
        assert main(["inspect", "rows.jsonl", "--force", *options]) == 0
        shown = [line.strip("\u2502 ") for line in capsys.readouterr().out.splitlines()]
        row = text.replace("3", "0").rstrip()
        answer = row[row.index("It is") :]
        assert row.replace(answer, f"\u27e6{answer}\u27e7") in "\n".join(shown)
        built("rows.yaml", capsys)
        assert texts_of("rows", folder / "store", 4)[3] == text


def test_a_style_that_the_yaml_cannot_follow_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prose.jsonl").write_text("".join(json.dumps({"text": f"Line {n}. " * 40}) + "\n" for n in range(30)))
    write_rows(folder / "rows.jsonl")
    prompt = "prompt_template: {format_type: custom, template: '{instruction}: {output}', label_column: output}\n"
    mapping = "column_mapping: {prompt: instruction, completion: output}"
    (folder / "own.yaml").write_text(f"dataset: {{name: rows.jsonl, {mapping}}}\n{prompt}")
    for source, message in (("prose.jsonl", "which has no prompts"), ("own.yaml", "has a template of its own")):
        assert main(["inspect", source, "--out", "new.yaml", "--style", "qa"]) == 2
        assert message in capsys.readouterr().err
        assert not (folder / "new.yaml").exists()


@pytest.mark.parametrize(("before", "after"), [(" ->", " "), ("\n", "")])
def test_texts_with_white_space_between_them_are_joined_as_they_are(
    folder: Path, before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [{"prompt": f"The number after {n} is{before}", "completion": f"{after}{n + 1}."} for n in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    assert main(["inspect", "rows.jsonl"]) == 0
    assert "already have white space between them" in (folder / "rows.yaml").read_text()
    built("rows.yaml", capsys)
    text = f"The number after 3 is{before}{after}4.<|endoftext|>"
    assert texts_of("rows", folder / "store", 4)[3] == text


def test_prompts_and_answers_go_through_the_tokenizer_s_own_chat_template(
    real_data: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    shutil.copytree(real_data / "tokenizers" / "phi-2", folder / "phi-2")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}"
    (folder / "phi-2" / "chat_template.jinja").write_text(template)
    assert main(["inspect", "rows.jsonl", "--tokenizer", "phi-2"]) == 0
    settings = yaml.safe_load((folder / "rows.yaml").read_text())
    assert "chat_template" not in settings["tokenizer"] and settings["prompt_template"] == {"format_type": "chat"}
    built("rows.yaml", capsys)
    assert texts_of("rows", folder / "store", 1) == ["<user>What is 0?<assistant>It is 0.<|endoftext|>"]


def test_a_format_type_without_a_mapping_decides_how_rows_are_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"What is {n}?", "ground_truth": f"It is {n}, I think."} for n in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for format_type, said in (
        ("prompt_only", "Read as prompts."),
        ("kto", "The YAML's format_type does not fit the data: dataset.column_mapping: no column found for"),
    ):
        (folder / "own.yaml").write_text(
            f"dataset: {{name: rows.jsonl}}\nprompt_template: {{format_type: {format_type}}}\n"
        )
        main(["inspect", "own.yaml", "--out", f"{format_type}.yaml"])
        assert said in capsys.readouterr().out
    settings = yaml.safe_load((folder / "prompt_only.yaml").read_text())
    assert settings["prompt_template"] == {"format_type": "prompt_only"}
    assert settings["dataset"]["column_mapping"] == {"prompt": "prompt"}


TALKED = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
BESIDE: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "Ask?", "completion": "Say."},
    "messages": {"messages": TALKED},
    "dialogue": {"prompt": TALKED[:1], "completion": TALKED[1:]},
    "preference": {"prompt": "Ask?", "chosen": "Say.", "rejected": "No."},
    "kto": {"prompt": "Ask?", "completion": "Say.", "label": True},
    "text": {"text": "A river runs past the mill. Nobody knows its name."},
}


@pytest.mark.parametrize("form", BESIDE)
def test_columns_that_no_form_uses_are_named(folder: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**BESIDE[form], "remark": f"Read {n} times.", "topic": f"t{n}", "id": f"x{n}"} for n in range(30)]
    (folder / "rows.json").write_text(json.dumps(rows))
    assert main(["inspect", "rows.json", "--json", "--out", "rows.yaml"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sure"] and (found["unused_columns"], found["unused_metadata"]) == (["remark"], ["topic", "id"])
    assert "# unused columns: remark;" in (folder / "rows.yaml").read_text()
    assert main(["inspect", "rows.json", "--force"]) == 0
    said = capsys.readouterr().out
    assert "Notice: unused columns: remark;" in said and "Not used either, as metadata: topic, id." in said


@pytest.mark.parametrize("style", ["alpaca", "chat", "plain", "qa", None])
def test_a_context_is_part_of_the_prompt(folder: Path, style: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"instruction": f"Ask {n}?", "context": f"It was {n}.", "response": f"Say {n}."} for n in range(30)]
    (folder / "rows.json").write_text(json.dumps(rows))
    assert main(["inspect", "rows.json", *(["--style", style] if style else [])]) == 0
    built("rows.yaml", capsys)
    for number, text in enumerate(texts_of("rows", folder / "store", 5)):
        assert f"Ask {number}?\n\nIt was {number}." in text


def test_conversations_are_trained_on_answers_and_their_end(
    real_data: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = real_data / "chat" / "dummy_conversation.json"
    assert main(["inspect", str(source)]) == 0
    built("dummy_conversation.yaml", capsys)
    reader = RowReader(ArtifactStore(folder / "store"), "dummy_conversation")
    for number, row in list(enumerate(json.loads(source.read_text())))[::50]:
        trained = "".join(run.text for run in reader.read(number).sides[""] if run.trained)
        said = [message["value"] for message in row["conversations"] if message["from"] == "gpt"]
        assert trained == "".join(f"{text}<|im_end|>" for text in said)


def test_a_tokenizer_without_the_template_s_marks_ends_answers_with_its_own(
    real_data: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, tokenizer = real_data / "chat" / "dummy_conversation.json", real_data / "tokenizers" / "phi-2"
    assert main(["inspect", str(source), "--tokenizer", str(tokenizer)]) == 0
    settings = yaml.safe_load((folder / "dummy_conversation.yaml").read_text())["tokenizer"]
    assert settings["name_or_path"] == str(tokenizer) and "train" not in settings
    built("dummy_conversation.yaml", capsys)
    runs = RowReader(ArtifactStore(folder / "store"), "dummy_conversation").read(0).sides[""]
    assert [run.text for run in runs if run.trained and run.control][-1] == "<|endoftext|>"


def test_a_yaml_is_not_overwritten_unless_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    (folder / "small.yaml").write_text("mine")
    assert main(["inspect", "small.jsonl"]) == 2
    assert "small.yaml exists" in capsys.readouterr().err
    assert (folder / "small.yaml").read_text() == "mine"
    assert main(["inspect", "small.jsonl", "--force"]) == 0
    assert built("small.yaml", capsys)["sequences"]["rows_out"] == 60


def test_a_yaml_on_stdout_is_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    assert main(["inspect", "small.jsonl", "--out", "-"]) == 0
    out = capsys.readouterr().out
    config = parse_config(out, folder / "x.yaml")
    assert isinstance(config, PipelineConfig) and config.dataset.name == "small.jsonl"
    assert not list(folder.glob("*.yaml"))


def test_json_is_one_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    assert main(["inspect", "small.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dataset"], found["sure"], found["splits"]) == ("small", True, {"train": 60})
    assert [column["path"] for column in found["columns"]] == ["instruction", "input", "output"]
    assert found["formats"][0]["format"] == "alpaca" and found["roles"]
    assert not list(folder.glob("*.yaml"))


def test_paths_lead_from_where_the_yaml_lies(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "data" / "small.jsonl")
    (folder / "configs").mkdir()
    (folder / "elsewhere").mkdir()
    assert main(["inspect", "data/*.jsonl", "--out", "configs/all.yaml"]) == 0
    monkeypatch.chdir(folder / "elsewhere")
    assert built("../configs/all.yaml", capsys)["raw"]["rows_out"] == 60
    assert main(["inspect", "../configs/all.yaml"]) == 0
    assert "60 rows of train" in capsys.readouterr().out
    assert not list((folder / "elsewhere").glob("*.yaml"))


def test_inspecting_leaves_what_a_build_published(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    assert main(["inspect", "small.jsonl"]) == 0
    built("small.yaml", capsys)
    store = ArtifactStore(folder / "store")
    before = store.manifest("small", "raw").digest
    write_rows(folder / "small.jsonl", 20)
    assert main(["inspect", "small.jsonl", "--force"]) == 0
    assert store.manifest("small", "raw").digest == before


def test_no_such_source_is_told_as_a_build_tells_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    assert main(["inspect", "smal.jsonl"]) == 2
    told = "dataset.name: no such file: smal.jsonl; did you mean small.jsonl?\n"
    assert capsys.readouterr().err.endswith(f"\n{told}")
    assert main(["inspect", "small.jsonl", "--tokenizer", "./nowhere"]) == 2
    assert "no such file or folder: ./nowhere" in capsys.readouterr().err
    assert not list(folder.glob("*.yaml"))


def test_data_cannot_write_into_the_yaml_or_steer_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = "answer\n  train: [x]\x1b[31m # {"
    (folder / "odd.json").write_text(json.dumps([{"question": f"Why {n}?", odd: f"So {n}."} for n in range(30)]))
    assert main(["inspect", "odd.json"]) == 0
    assert "\x1b[31m" not in capsys.readouterr().out
    text = (folder / "odd.yaml").read_text()
    assert "\x1b" not in text
    assert set(yaml.safe_load(text)["dataset"]) == {"name", "column_mapping"}


@pytest.mark.parametrize("text", [None, "nope"])
def test_errors_and_verdicts_show_control_characters_of_the_data(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    evil = "\x1b[31mEVIL\x1b]0;t\x07 prompt"
    (folder / "odd.json").write_text(
        json.dumps([{evil: f"{n}?", "response_a": "A.", "response_b": "B."} for n in range(30)])
    )
    if text:
        settings = {"dataset": {"name": "odd.json", "column_mapping": {"text": text}}, "tokenizer": {"train": {}}}
        settings["tokenizer"]["special_tokens"] = {"eos": "<e>"}
        (folder / "odd.yaml").write_text(yaml.safe_dump(settings))
        assert main(["build", "odd.yaml"]) == 2
    else:
        assert main(["inspect", "odd.json"]) == 0
    said = capsys.readouterr()
    assert "\\u001b[31mEVIL\\u001b]0;t\\u0007" in said.out + said.err
    assert not set("\x1b\x07") & set(said.out + said.err)


DECLARED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"prompt": "Q: {question}", "completion": "answer"}, {}, "Q: Why 3?"),
    ({"completion": "answer"}, {}, "Why 3?"),
    ({"prompt": {"constant": "Say so."}, "completion": "answer"}, {"train_on": "all"}, "Say so."),
    ({"a": "question", "b": "answer"}, {"template": "{a}\n-> {b}", "label_column": "b"}, "Why 3?\n-> "),
    ({"prompt": "question", "system": "s", "completion": "answer"}, {}, "Why 3?"),
]


@pytest.mark.parametrize(("mapping", "prompt", "shown"), DECLARED)
def test_a_yaml_s_own_mapping_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str], mapping: dict[str, Any], prompt: dict[str, Any], shown: str
) -> None:
    asked = [{"question": f"Why {n}?", "answer": "So.", "s": "Be brief.", "x": "text"} for n in range(30)]
    (folder / "s.json").write_text(json.dumps(asked))
    dataset = {"name": "s.json", "column_mapping": mapping}
    (folder / "m.yaml").write_text(yaml.safe_dump({"dataset": dataset, "prompt_template": prompt}))
    assert main(["inspect", "m.yaml", "--out", "m2.yaml"]) == 0
    said = capsys.readouterr().out
    assert "The YAML maps the columns itself: " in said and "build it with" in said
    assert yaml.safe_load((folder / "m2.yaml").read_text())["dataset"] == dataset
    built("m2.yaml", capsys)
    runs = RowReader(ArtifactStore(folder / "store"), "m2").read(3).sides[""]
    assert shown in "".join(run.text for run in runs)


def test_a_yaml_s_own_mapping_that_does_not_fit_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "small.jsonl")
    mapping = {"prompt": FILL_IN, "completion": "output"}
    (folder / "m.yaml").write_text(yaml.safe_dump({"dataset": {"name": "small.jsonl", "column_mapping": mapping}}))
    assert main(["inspect", "m.yaml", "--out", "m2.yaml"]) == 0
    said = capsys.readouterr().out
    assert "instruction" in said and "build it with" not in said
    assert "The YAML's own mapping does not fit the data: dataset.column_mapping.prompt: no column <fill" in said
    assert yaml.safe_load((folder / "m2.yaml").read_text())["dataset"]["column_mapping"] == mapping


@given(st.text(max_size=40))
def test_any_source_gives_a_valid_name(source: str) -> None:
    assert re.fullmatch(DATASET_NAME, dataset_name(source))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/hh-rlhf_test.jsonl.gz", "hh-rlhf_test"),
        ("tatsu-lab/alpaca", "alpaca"),
        ("data/*.jsonl", "data"),
        ("https://x.org/a/b.csv?key=1", "b"),
        ("my data (1).json", "my_data_1"),
    ],
)
def test_the_name_is_the_stem(source: str, name: str) -> None:
    assert dataset_name(source) == name


@given(st.one_of(st.text(max_size=30), st.integers(), st.booleans(), st.none(), st.lists(st.text(max_size=5))))
def test_a_value_reads_back_from_one_line_of_yaml(value: object) -> None:
    assert "\n" not in scalar(value)
    assert yaml.safe_load(f"a: {scalar(value)}  # why\n") == {"a": value}


HOSTILE = st.text(
    st.one_of(
        st.sampled_from("\0\x07\t\n\r\x1b\x7f\x85\xa0\xad\u2028\ufeff\U0010ffff#:{}'\"- a"),
        st.characters(codec="utf-8"),
    )
)


@given(HOSTILE.filter(bool), HOSTILE.filter(bool), st.lists(HOSTILE, min_size=1, max_size=3), st.booleans())
def test_any_names_come_out_of_the_yaml_as_they_went_in(name: str, root: str, names: list[str], sure: bool) -> None:
    dataset: dict[str, Any] = {"name": name, "reader": {"root": root}, "splits": names}
    columns = merge([sketch(pa.table({column: ["x"] for column in [*names, name]}))])
    reading = FormatCandidate(
        "alpaca", "completion", {"prompt": names[0], "completion": root}, 0.9, (f"prompt: {name}",)
    )
    choice = reading if sure else Ambiguity((reading, replace(reading, roles={"prompt": name, "completion": root})))
    text = starter_yaml(dataset, columns, choice, comments=[f"{name} was found", *names])
    texts = [text] if sure else [uncommented(text, *lines) for lines in choice_lines(open_choice(text))]
    prompts = [names[0], *([] if sure else [name])]
    assert len(texts) == (1 if sure else 3)
    for prompt, chosen in zip(prompts, texts, strict=False):
        expected = dataset | {"column_mapping": {"prompt": prompt, "completion": root}}
        for loader in (yaml.SafeLoader, Loader):
            assert yaml.load(chosen, Loader=loader)["dataset"] == expected


def open_choice(text: str) -> str:
    """The message that refuses a YAML with an open choice."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, Path("x.yaml"))
    return str(refused.value)


def test_files_and_roots_with_control_characters_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = json.dumps({"da\x07ta": [{"question": f"Why {n}?", "answer": "So."} for n in range(30)]})
    (folder / "f\x1b[31m\u2028.json").write_text(root)
    assert main(["inspect", "f\x1b[31m\u2028.json", "--out", "root.yaml"]) == 0
    assert built("root.yaml", capsys)["sequences"]["rows_out"] == 30


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "-", "--json"], "--out: - and --json both write to stdout; name a file"),
        (["--out", ""], "--out: is empty; name a file, or - for stdout"),
        (["--out", "nodir/x.yaml"], "--out: no such folder: nodir"),
        (["--out", "folder"], "--out: folder is a folder; name a file"),
        (["--config", "x"], "--config: has no effect: small.jsonl declares no configs; omit it"),
        (["--revision", "x"], "--revision: has no effect: small.jsonl is not a hub dataset; omit it"),
        (["--split", "test"], "--split: small.jsonl has no split test; it has train"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_reading(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    write_rows(folder / "small.jsonl")
    (folder / "folder").mkdir()
    assert main(["inspect", "small.jsonl", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.removeprefix(f"store: {folder / 'store'}\n")) == ("", f"{told}\n")
    assert not (folder / "store").exists() and not list(folder.glob("*.yaml"))


CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "R"},
    {"role": "assistant", "content": "A"},
]
CALLED = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def rendered(template: str, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> tuple[str, list[str]]:
    """The text as `transformers` renders it, and the parts that it marks as generated."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found: Any = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        return_assistant_tokens_mask=True,
        add_generation_prompt=False,
    )
    texts, marks = found
    return texts[0], [texts[0][begin:end] for begin, end in marks[0]]


def test_a_column_without_values_does_not_change_max_length() -> None:
    """Also where the other columns fill it: it is the next power of two above their estimated tokens."""
    for tokens, max_length in ((2000, 2048), (2048, 2048), (2200, 4096)):
        texts = {"q": ["a" * 2 * 2048] * 9, "a": ["b" * (tokens * CHARACTERS_PER_TOKEN - 2 * 2048)] * 9}
        columns = merge([sketch(pa.table({**texts, "empty": pa.nulls(9, pa.string())}))])
        for more in ({}, {"context": "empty"}):
            own = FormatCandidate("own", "completion", {"prompt": "q", **more, "completion": "a"}, 1.0, ())
            settings = yaml.safe_load(starter_yaml({"name": "rows.jsonl"}, columns, own))
            assert settings["tokenizer"]["max_length"] == max_length, (tokens, more)


def test_chatml_is_chatml() -> None:
    plain = [TALK[0], TALK[1], TALK[4], TALK[1], TALK[4]]
    text, marked = rendered(chatml(), plain)
    assert text == "".join(f"<|im_start|>{said['role']}\n{said['content']}<|im_end|>\n" for said in plain)
    assert marked == ["A<|im_end|>"] * 2


def test_chatml_renders_reasoning_before_answers() -> None:
    thought = {**TALK[4], "reasoning_content": "T"}
    _, marked = rendered(chatml(), [TALK[1], thought, TALK[1], TALK[4]])
    assert marked == ["<think>\nT\n</think>\n\nA<|im_end|>", "A<|im_end|>"]


def test_chatml_renders_tools_calls_and_responses() -> None:
    text, marked = rendered(chatml(), TALK, [CALL])
    assert marked == [f"{CALLED}\n{CALLED}<|im_end|>", "A<|im_end|>"]
    assert text.startswith("<|im_start|>system\nS\n\n# Tools\n") and text.count("<|im_start|>system") == 1
    assert f"<tools>\n{json.dumps(CALL)}\n</tools>" in text
    assert "<|im_start|>tool\n<tool_response>\nR\n</tool_response><|im_end|>\n" in text


def test_a_folder_is_inspected_and_built_with_its_splits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "rows" / "train.jsonl")
    write_rows(folder / "rows" / "test.jsonl", 20)
    write_rows(folder / "rows" / "more.jsonl", 10)
    (folder / "rows" / "raw.tar").write_bytes(b"")
    assert main(["inspect", "rows"]) == 0
    said = capsys.readouterr().out
    lines = (
        "splits by name: train: train.jsonl; test: test.jsonl",
        "not read: more.jsonl (in no split); raw.tar (archives, which are not unpacked)",
    )
    assert "60 rows of train, 20 rows of test" in said
    assert all(line[1:] in said and line[1:] in (folder / "rows.yaml").read_text() for line in lines)
    for _ in range(2):
        assert main(["build", "rows.yaml"]) == 0
        said = capsys.readouterr().out
        assert all(f"raw: {line}" in said for line in lines)
    assert ArtifactStore(folder / "store").manifest("rows", "sequences").splits == ["train", "test"]
    assert main(["inspect", "rows", "--split", "test", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["splits"], len(found["notices"])) == ({"test": 20}, 2)
    assert main(["inspect", "rows", "--split", "tset", "--out", "-"]) == 2
    assert "--split: rows has no split tset; it has train, test" in capsys.readouterr().err


def test_a_config_of_a_folder_is_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(folder / "rows" / "a.jsonl")
    write_rows(folder / "rows" / "b.jsonl", 20)
    configs = "- {config_name: a, data_files: a.jsonl}\n- {config_name: b, data_files: b.jsonl}"
    (folder / "rows" / "README.md").write_text(f"---\nconfigs:\n{configs}\n---\n")
    assert main(["inspect", "rows"]) == 2
    assert "README.md declares several configs; set it to one of a, b" in capsys.readouterr().err
    assert main(["inspect", "rows", "--config", "c"]) == 2
    assert "--config: no config 'c'; README.md declares a, b" in capsys.readouterr().err
    assert main(["inspect", "rows", "--config", "b"]) == 0
    assert "Config b of README.md: train: b.jsonl" in capsys.readouterr().out
    assert yaml.safe_load((folder / "rows.yaml").read_text())["dataset"]["config"] == "b"
    assert main(["build", "rows.yaml", "--stage", "raw"]) == 0
