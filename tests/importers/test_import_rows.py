"""`tokenloom import`: rows are read, written and trained as by the other tool, whose own code gave the expected texts.

Expected texts have what is trained between ⟦ and ⟧. They were made by `prompt_strategies` of axolotl, by the templates
and processors of LLaMA-Factory, and by the trainers of TRL; where ours differ on purpose, the report must say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tokenloom.assets.columns.canonical import to_canonical
from tokenloom.assets.columns.mapping import resolve
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.schema.merge import merge
from tokenloom.assets.schema.sketch import sketch
from tokenloom.assets.stage.rejects import ROW
from tokenloom.cli import main
from tokenloom.config import PipelineConfig
from tokenloom.resources.tokenizers import resolve_tokenizer

Row = dict[str, Any]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
ASKED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
ANSWERED = f"{ASKED}⟦yes<|im_end|>⟧\n"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(capsys: pytest.CaptureFixture[str], given: Row, rows: list[Row]) -> tuple[Row, list[Path]]:
    """Import a configuration of rows in `rows.jsonl`; return the report, and the YAMLs."""
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("given.yaml").write_text(yaml.safe_dump(given))
    assert main(["import", "given.yaml", "--out", "out/", "--json", "--force"]) == 0, capsys.readouterr().err
    report = json.loads(capsys.readouterr().out)
    return report, [Path(file) for file in report["files"]]


def written(file: Path, rows: list[Row], tokenizer: Path) -> list[str]:
    """Return the text of each row as the YAML renders it; of pairs, of their chosen answers."""
    settings = yaml.safe_load(file.read_text())
    settings["tokenizer"] |= {"name_or_path": str(tokenizer)}
    config = PipelineConfig.from_mapping({**settings, "name": "rows"})
    kept = config.dataset.columns
    table = pa.Table.from_pylist([{name: row[name] for name in row if not kept or name in kept} for row in rows])
    table = table.append_column(ROW, pa.array(range(len(rows)), pa.int32()))
    mapping = resolve(config, merge([sketch(table)]))
    canonical = to_canonical(table, mapping)
    assert canonical.rejects.num_rows == 0, canonical.rejects.to_pylist()
    out = renderer(config, mapping.to_json(), resolve_tokenizer(config))(canonical.table)
    assert out.rejects.num_rows == 0, out.rejects.to_pylist()
    side = "chosen_" if "chosen_text" in out.table.column_names else ""
    return [
        marked(text, spans)
        for text, spans in zip(*(out.table[f"{side}{name}"].to_pylist() for name in ("text", "spans")), strict=True)
    ]


def marked(text: str, spans: list[Row]) -> str:
    """Return a text with what is trained between ⟦ and ⟧."""
    data = text.encode()
    pieces = [(data[span["start"] : span["end"]].decode(), span["weight"] > 0) for span in spans]
    joined = "".join(f"⟦{piece}⟧" if trained else piece for piece, trained in pieces if piece)
    return joined.replace("⟧⟦", "")


AXOLOTL = {"base_model": "m", "sequence_len": 64, "special_tokens": {"eos_token": "<|im_end|>"}}
OWN = {
    "field_instruction": "q",
    "field_output": "a",
    "format": "Q {instruction}\n",
    "no_input_format": "Q {instruction}\n",
}
OWN["system_format"] = "S {system}\n"


@pytest.mark.parametrize(
    ("entry", "row", "expected"),
    [
        # the default of field_system: the column `system` of a type of one's own, with and without system_prompt
        ({"type": OWN}, {"q": "one", "a": "two", "system": "Obey."}, "S Obey.\nQ one\n⟦two<|im_end|>⟧"),
        ({"type": OWN}, {"q": "one", "a": "two"}, "Q one\n⟦two<|im_end|>⟧"),
        ({"type": {**OWN, "system_prompt": "Hm."}}, {"q": "one", "a": "two"}, "S Hm.\nQ one\n⟦two<|im_end|>⟧"),
        ({"type": {**OWN, "system_prompt": "Hm."}}, {"q": "1", "a": "2", "system": "O"}, "S O\nQ 1\n⟦2<|im_end|>⟧"),
        ({"type": {**OWN, "field_system": "sys"}}, {"q": "one", "a": "two", "sys": "O"}, "S O\nQ one\n⟦two<|im_end|>⟧"),
        (
            {"type": "chat_template"},
            {"messages": TALK, "system": "Obey."},
            f"<|im_start|>system\nObey.<|im_end|>\n{ANSWERED}",
        ),
        ({"type": "chat_template"}, {"messages": TALK}, ANSWERED),
        # defaults of other types: the column of messages, an input that rows need not have
        ({"type": "sharegpt"}, {"conversations": TALK}, ANSWERED),
        ({"type": "alpaca:chat"}, {"instruction": "one", "output": "two"}, None),
        ({"type": "alpaca:chat"}, {"instruction": "one", "input": "more", "output": "two"}, None),
        # which messages are trained
        (
            {"type": "chat_template", "roles_to_train": [], "message_field_training": "train"},
            {"messages": [*TALK, TALK[0], {**TALK[1], "train": True}]},
            f"{ASKED}yes<|im_end|>\n{ANSWERED}",
        ),
        (
            {"type": "chat_template", "roles_to_train": None},
            {"messages": TALK},
            ANSWERED,
        ),
        (
            {"type": "chat_template", "roles_to_train": ["human"], "message_property_mappings": {"role": "from"}},
            {"messages": [{"from": "human", "content": "hi"}, {"from": "gpt", "content": "yes"}]},
            f"{ASKED}yes<|im_end|>\n".replace("hi<|im_end|>", "⟦hi<|im_end|>⟧"),
        ),
        (
            {"type": "chat_template", "train_on_eos": "none"},
            {"messages": TALK},
            f"{ASKED}⟦yes⟧<|im_end|>\n",
        ),
    ],
)
def test_types_of_axolotl_read_and_train_what_axolotl_does(
    entry: Row, row: Row, expected: str | None, bos_tokenizer_folder: Path, tokenizer_folder: Path, capsys: Any
) -> None:
    given = {**AXOLOTL, "chat_template_jinja": CHATML, "datasets": [{"path": "rows.jsonl", **entry}]}
    _, (file,) = imported(capsys, given, [row])
    if expected is None:
        more = "\nmore" if "input" in row else ""
        start = "Below is an instruction that describes a task"
        pair = ", paired with an input that provides further context" if more else ""
        system = f"SYSTEM: {start}{pair}. Write a response that appropriately completes the request.\n"
        expected = f"{system}USER: one{more}\nASSISTANT:⟦two<|im_end|>⟧"
    assert written(file, [row], tokenizer_folder) == [expected]
    bos = "" if "messages" in row or "conversations" in row else "<s>"
    assert written(file, [row], bos_tokenizer_folder) == [bos + expected]


def test_train_on_inputs_of_conversations_trains_contents_not_the_template(tokenizer_folder: Path, capsys: Any) -> None:
    given = {**AXOLOTL, "train_on_inputs": True, "chat_template_jinja": CHATML}
    _, (file,) = imported(
        capsys, {**given, "datasets": [{"path": "rows.jsonl", "type": "chat_template"}]}, [{"messages": TALK}]
    )
    expected = "<|im_start|>user\n⟦hi<|im_end|>⟧\n<|im_start|>assistant\n⟦yes<|im_end|>⟧\n"
    assert written(file, [{"messages": TALK}], tokenizer_folder) == [expected]


PAIR = {"chosen": "yes", "rejected": "no"}


@pytest.mark.parametrize(
    ("top", "kind", "row", "expected"),
    [
        (
            {"reward_model": True},
            "bradley_terry.chat_template",
            {"system": "S", "input": "hi", **PAIR},
            f"<|im_start|>system\nS<|im_end|>\n{ANSWERED}",
        ),
        ({}, "bradley_terry.chat_template", {"system": "", "input": "hi", **PAIR}, ANSWERED),
        ({"rl": "dpo"}, "chatml", {"question": "hi", **PAIR}, f"<s>{ANSWERED}"),
        (
            {"rl": "dpo"},
            "chatml.intel",
            {"question": "hi", "system": "S", **PAIR},
            f"<s><|im_start|>system\nS<|im_end|>\n{ANSWERED}",
        ),
        (
            {"rl": "dpo"},
            "llama3.icr",
            {"input": "hi", **PAIR},
            "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n⟦yes<|eot_id|>⟧",
        ),
        (
            {"rl": "ipo"},
            None,
            {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [{**TALK[1], "content": "no"}]},
            f"<s>{ANSWERED}",
        ),
    ],
)
def test_pairs_of_axolotl(
    top: Row, kind: str | None, row: Row, expected: str, bos_tokenizer_folder: Path, capsys: Any
) -> None:
    given = {**AXOLOTL, **top, "chat_template_jinja": CHATML, "datasets": [{"path": "rows.jsonl", "type": kind}]}
    if "llama3" in (kind or ""):
        given["special_tokens"] = {"eos_token": "<|eot_id|>"}
    _, (file,) = imported(capsys, given, [row])
    assert written(file, [row], bos_tokenizer_folder) == [expected]
    if "bradley" in (kind or ""):
        assert yaml.safe_load(file.read_text())["length"]["strategy"] == "truncate_right"


SUM = {"name": "sum", "description": "adds", "parameters": {"type": "object"}}
TOOLED = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + CHATML
LLAMAFACTORY = {"model_name_or_path": "m", "dataset": "d", "dataset_dir": "."}


@pytest.mark.parametrize(
    ("tools", "shown"),
    [
        (json.dumps([SUM]), [{"type": "function", "function": SUM}]),
        (json.dumps([{"type": "function", "function": SUM}]), [{"type": "function", "function": SUM}]),
        (json.dumps([SUM, {"type": "function", "function": SUM}]), [{"type": "function", "function": SUM}] * 2),
        (json.dumps([{**SUM, "type": "web"}]), [{"type": "function", "function": {**SUM, "type": "web"}}]),
        ([SUM], [{"type": "function", "function": SUM}]),
        ("", []),
    ],
)
def test_bare_tools_of_llamafactory_are_wrapped(
    tools: Any, shown: list[Row], tokenizer_folder: Path, capsys: Any
) -> None:
    columns = {"messages": "talk", "tools": "tools"}
    info = {"d": {"file_name": "rows.jsonl", "formatting": "sharegpt", "columns": columns}}
    Path("dataset_info.json").write_text(json.dumps(info))
    row = {"talk": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}], "tools": tools}
    _, (file,) = imported(capsys, {**LLAMAFACTORY, "template": "qwen"}, [row])
    settings = yaml.safe_load(file.read_text())
    settings["tokenizer"] |= {"chat_template": TOOLED, "special_tokens": {"eos": "<|im_end|>"}}
    file.write_text(yaml.safe_dump(settings))
    expected = "".join(f"{json.dumps(tool)}\n" for tool in shown)
    assert written(file, [row], tokenizer_folder) == [expected + ANSWERED]


@pytest.mark.parametrize(
    ("template", "says", "never"),
    [
        ("qwen3", ("empty thought before each answer", "line break (\\n)"), ("writes no thought",)),
        ("qwen3_nothink", ("writes no thought", "line break (\\n)"), ("empty thought before each",)),
        ("qwen3_vl_nothink", ("writes no thought",), ("empty thought before each",)),
        ("deepseekr1", ("empty thought before each answer",), ("line break",)),
        ("llama3", ("ids were not compared",), ("line break", "thought", "system message")),
        ("qwen", ("writes a system message", "line break (\\n)"), ("thought",)),
        ("chatml", ("line break (\\n)",), ("thought", "system message", "not compared")),
        ("zephyr", ("a line break after </s>; LLaMA-Factory none",), ("also trains",)),
    ],
)
def test_the_report_of_a_template_names_what_that_template_writes(
    template: str, says: tuple[str, ...], never: tuple[str, ...], capsys: Any
) -> None:
    Path("dataset_info.json").write_text('{"d": {"file_name": "rows.jsonl"}}')
    report, _ = imported(capsys, {**LLAMAFACTORY, "template": template}, [{"instruction": "a", "output": "b"}])
    assert all(text in report["differs"]["template"] for text in says), report["differs"]["template"]
    assert not any(text in report["differs"]["template"] for text in never), report["differs"]["template"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "alpaca",
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\none\n\n### Response:\n⟦two</s>⟧",
        ),
        ("chatml", "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧\n"),
    ],
)
def test_built_in_templates_of_llamafactory(template: str, text: str, bos_tokenizer_folder: Path, capsys: Any) -> None:
    """The tokenizer would add a BOS; LLaMA-Factory's templates of these names write none."""
    Path("dataset_info.json").write_text('{"d": {"file_name": "rows.jsonl"}}')
    row = {"instruction": "one", "input": "", "output": "two"}
    _, (file,) = imported(capsys, {**LLAMAFACTORY, "template": template}, [row])
    assert written(file, [row], bos_tokenizer_folder) == [text]


TRL = {"model_name_or_path": "m", "dataset_name": "org/rows", "chat_template": CHATML, "eos_token": "<|im_end|>"}
TEXT = "Q: one A: two"


@pytest.mark.parametrize(
    ("more", "row", "expected"),
    [
        ({}, {"text": TEXT}, f"<s>⟦{TEXT}<|im_end|>⟧"),
        ({}, {"instruction": "one", "input": "", "output": "two", "text": TEXT}, f"<s>⟦{TEXT}<|im_end|>⟧"),
        ({}, {"question": "one", "answer": "two", "text": TEXT}, f"<s>⟦{TEXT}<|im_end|>⟧"),
        ({"dataset_text_field": "body"}, {"body": TEXT, "text": "other"}, f"<s>⟦{TEXT}<|im_end|>⟧"),
        ({"dataset_text_field": "text"}, {"messages": TALK, "text": TEXT}, f"⟦{ASKED}yes<|im_end|>\n⟧"),
        ({}, {"messages": TALK}, f"⟦{ASKED}yes<|im_end|>\n⟧"),
        ({"assistant_only_loss": True}, {"messages": TALK}, ANSWERED),
        ({"completion_only_loss": True}, {"prompt": TALK[:1], "completion": TALK[1:]}, ANSWERED),
        ({"dataset_name": "rows.jsonl"}, {"prompt": "hi:", "completion": " yes"}, "<s>hi:⟦ yes<|im_end|>⟧"),
        ({"dataset_name": "rows.jsonl"}, {"prompt": TALK[:1], "completion": TALK[1:]}, ANSWERED),
        ({"dataset_name": "rows.jsonl"}, {"prompt": "x", "messages": TALK}, f"⟦{ASKED}yes<|im_end|>\n⟧"),
    ],
)
def test_rows_of_trl_are_read_by_the_column_that_trl_reads(
    more: Row, row: Row, expected: str, bos_tokenizer_folder: Path, capsys: Any
) -> None:
    """No BOS where the template writes none; one before texts, as the tokenizer adds it."""
    _, (file,) = imported(capsys, {**TRL, **more}, [row])
    assert written(file, [row], bos_tokenizer_folder) == [expected]


@pytest.mark.parametrize(
    ("more", "prompts"),
    [
        ({"per_device_train_batch_size": 16, "num_generations": 4}, 4),
        ({"per_device_train_batch_size": 16}, 2),
        ({}, 1),
        ({"per_device_train_batch_size": 4, "num_generations": 16}, 1),
        ({"per_device_train_batch_size": 24, "num_generations": 6}, 4),
    ],
)
def test_batches_of_grpo_count_completions(more: Row, prompts: int, capsys: Any) -> None:
    report, (file,) = imported(capsys, {**TRL, "reward_funcs": ["r"], **more}, [{"prompt": "a"}])
    assert yaml.safe_load(file.read_text())["dataloader"]["batch_size"] == prompts
    each, size = more.get("num_generations", 8), more.get("per_device_train_batch_size", 8)
    assert ("not whole prompts" in report["differs"].get("per_device_train_batch_size", "")) == bool(size % each)


@pytest.mark.parametrize(
    ("entry", "file", "format_"),
    [
        ({"path": "rows", "ds_type": "json"}, "x.txt", "json"),
        ({"path": "rows", "ds_type": "text"}, "x.jsonl", "text"),
        ({"path": "rows", "ds_type": "json"}, "x.jsonl", None),
        ({"path": "org/rows", "ds_type": "parquet"}, "x.jsonl", None),
        ({"path": "csv"}, "x.data", "csv"),
        ({"path": "rows"}, "x.jsonl", None),
    ],
)
def test_ds_type_is_the_format_of_local_data_files(entry: Row, file: str, format_: str | None, capsys: Any) -> None:
    Path("rows").mkdir()
    given = {**AXOLOTL, "datasets": [{**entry, "data_files": [f"rows/{file}"], "type": "alpaca"}]}
    _, (found,) = imported(capsys, given, [])
    assert yaml.safe_load(found.read_text())["dataset"].get("format") == format_


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"sample_packing": True}, {"strategy": "split", "packing": "best_fit"}),
        ({}, {"strategy": "truncate_right"}),
        ({"pretraining_sample_concatenation": True}, {"strategy": "truncate_right", "packing": "best_fit"}),
        ({"excess_length_strategy": "truncate", "sample_packing": True}, {"strategy": "split", "packing": "best_fit"}),
    ],
)
def test_streams_of_axolotl(more: Row, expected: Row, capsys: Any) -> None:
    given = {
        "base_model": "m",
        "sequence_len": 64,
        "pretraining_dataset": [{"path": "org/a"}, {"path": "org/b"}],
        **more,
    }
    report, (file,) = imported(capsys, given, [])
    settings = yaml.safe_load(file.read_text())
    assert settings["length"] == expected and settings["dataset"]["name"] == "org/a"
    assert "first entry alone" in report["differs"]["pretraining_dataset"]
    assert settings["prompt_template"].get("add_eos", True) is bool(more)


def test_a_packed_stream_of_datasets_reads_the_first_one(capsys: Any) -> None:
    entries = [{"path": f"org/{name}", "type": "alpaca"} for name in "ab"]
    given = {**AXOLOTL, "streaming": True, "sample_packing": True, "datasets": entries}
    report, files = imported(capsys, given, [])
    assert [yaml.safe_load(file.read_text())["dataset"]["name"] for file in files] == ["org/a"]
    assert "first entry alone" in report["differs"]["datasets"] and "one row" in report["differs"]["micro_batch_size"]
    _, files = imported(capsys, {**given, "sample_packing": False}, [])
    assert len(files) == 3


def test_duplicates_are_removed_across_datasets(capsys: Any) -> None:
    entries = [{"path": f"org/{name}", "type": "alpaca"} for name in "abc"]
    _, files = imported(capsys, {**AXOLOTL, "dataset_exact_deduplication": True, "datasets": entries}, [])
    found = [yaml.safe_load(file.read_text()).get("dedup") for file in files]
    same = {"exact": "row", "near": None}
    against = [["given-a"], ["given-a", "given-b"]]
    assert found == [same, *({**same, "against": names} for names in against), None]
    _, files = imported(capsys, {**AXOLOTL, "dataset_exact_deduplication": True, "datasets": entries[:1]}, [])
    assert yaml.safe_load(files[0].read_text())["dedup"] == same
    _, files = imported(capsys, {**AXOLOTL, "datasets": entries}, [])
    assert not any("dedup" in file.read_text() for file in files)


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ({"test_datasets": [{"path": "org/held", "type": "alpaca"}]}, "splits", ["test"]),
        ({"test_datasets": [{"path": "held.jsonl", "type": "completion"}]}, "splits", ["train"]),
        ({"test_datasets": [{"path": "org/held", "type": "alpaca", "split": "dev"}]}, "splits", ["dev"]),
        ({"test_datasets": [{"path": "held.jsonl", "name": "en", "revision": "x", "type": "alpaca"}]}, "config", None),
    ],
)
def test_splits_and_configs_are_those_of_the_kind_of_source(more: Row, name: str, value: Any, capsys: Any) -> None:
    given = {**AXOLOTL, "datasets": [{"path": "org/a", "type": "alpaca"}], **more}
    _, (held, _) = imported(capsys, given, [])
    assert yaml.safe_load(held.read_text())["dataset"].get(name) == value


def test_pairs_are_not_trained_on_inputs_and_read_the_split_train(capsys: Any) -> None:
    entry = {"path": "org/a", "type": "chatml.intel"}
    given = {**AXOLOTL, "rl": "dpo", "train_on_inputs": True, "datasets": [entry], "test_datasets": [entry]}
    report, files = imported(capsys, given, [])
    for file in files:
        settings = yaml.safe_load(file.read_text())
        assert settings["dataset"]["splits"] == ["train"] and "train_on" not in settings["prompt_template"]
    assert "does not read it here" in report["elsewhere"]["train_on_inputs"]


def test_new_tokens_have_the_order_that_decides_their_ids(capsys: Any) -> None:
    tokens = {"pad_token": "<p>", "bos_token": "<b>", "additional_special_tokens": ["<x>"]}
    given = {**AXOLOTL, "special_tokens": tokens, "tokens": ["<t>"], "datasets": [{"path": "a", "type": "alpaca"}]}
    Path("given.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    assert main(["import", "given.yaml", "--out", "-"]) == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["tokenizer"]["special_tokens"]["additional"] == ["<p>", "<b>", "<t>", "<x>"]
