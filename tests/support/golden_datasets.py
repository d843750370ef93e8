"""Datasets whose keys and digests are frozen: small ones that are generated here, and real ones that are in a folder.

Each is a function that writes what it needs into an empty folder and returns the sections of its YAML, whose relative
paths start there. Its docstring adds what its name does not say.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import processors

from support.datasets_on_disk import TEMPLATE, TOKENIZER, WORDS, write_dataset
from support.datasets_on_disk import rows as instructions
from support.paths import QUICKSTART, SWEEP_TEMPLATES, TESTS, TOKENIZER_MODELS
from support.small_tokenizers import byte_level

Row = dict[str, Any]
Sections = dict[str, Any]

REJECTING: Sections = {"validation": {"max_reject_fraction": 1.0}}
CUSTOM = {"template": TEMPLATE, "label_column": "output"}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"é": ["city"], "days": 3}}}]

DATASETS: dict[str, Callable[[Path], Sections]] = {}
"""Datasets made here, by name."""
REAL: dict[str, Callable[[Path, Path], Sections]] = {}
"""Real ones, by name: from the folder of real files and an empty one."""
LIMITS = {"limited": 120, "alpaca": 2000, "wikitext": 1000, "hh_rlhf": 500}
"""Datasets that use only the first rows of each split."""


def made(declare: Callable[[Path], Sections]) -> Callable[[Path], Sections]:
    DATASETS[declare.__name__] = declare
    return declare


def real(declare: Callable[[Path, Path], Sections]) -> Callable[[Path, Path], Sections]:
    REAL[declare.__name__] = declare
    return declare


def write_golden(name: str, folder: Path) -> Path:
    """Write a dataset that is made here; returns its YAML."""
    if name == "small":
        return write_dataset(folder, 300, length={"packing": "concat"})
    if name == "quickstart":
        return QUICKSTART
    folder.mkdir(parents=True, exist_ok=True)
    return write_yaml(folder, name, DATASETS[name](folder))


def write_real(name: str, data: Path, folder: Path) -> Path:
    """Write the YAML of a real dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_yaml(folder, name, REAL[name](data, folder))


def write_yaml(folder: Path, name: str, sections: Sections) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def write_mixture(folder: Path) -> Path:
    """Two datasets with one tokenizer, and the YAML that mixes them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_file(folder)
    for name, count in (("first", 120), ("second", 60)):
        write_lines(folder / f"{name}.jsonl", instructions(count, seed=count))
        dataset = {"name": f"{name}.jsonl", "val_split": 0.1}
        settings = {"name_or_path": "tokenizer/tokenizer.json", "special_tokens": {"eos": "</s>"}, "max_length": 256}
        write_yaml(folder, name, {"dataset": dataset, "tokenizer": settings, "prompt_template": CUSTOM})
    sources = [{"dataset": "first", "weight": 3}, {"dataset": "second", "weight": 1, "epochs": 2}]
    return write_yaml(folder, "mixture", {"mixture": sources})


# What datasets are written of


def trained(longest: int = 64, **changes: Any) -> Sections:
    """A tokenizer trained on the dataset."""
    return {**TOKENIZER, "max_length": longest, **changes}


def chat_tokenizer(template: str, longest: int = 96) -> Sections:
    """A trained tokenizer with a chat template of the tests."""
    special = {"bos": "<s>", "eos": "<|im_end|>", "pad": "<|pad|>", "additional": ["<|im_start|>"]}
    text = (TESTS / "support" / template).read_text(encoding="utf-8")
    return trained(longest, special_tokens=special, chat_template=text)


def lines_of(rows: Iterable[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    path.write_bytes(lines_of(rows))


def csv_text(rows: Sequence[Row], **how: Any) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def talks(count: int, seed: int = 0, turns: int = 4, words: int = 12) -> list[list[Row]]:
    """Conversations of up to `turns` questions and answers, some after a system message."""
    draw = random.Random(seed)

    def say() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, words)))

    found = []
    for number in range(count):
        talk = [{"role": "system", "content": say()}] if number % 3 == 0 else []
        for _ in range(draw.randint(1, turns)):
            talk += [{"role": "user", "content": f"{number} {say()}?"}, {"role": "assistant", "content": say()}]
        found.append(talk)
    return found


def tool_talks(count: int) -> list[Row]:
    """Conversations with thoughts, calls and what was called."""
    found = []
    for number, talk in enumerate(talks(count, seed=5, turns=2)):
        arguments = json.dumps({"é": WORDS[number % 11], "days": number})
        function = {"name": "weather", "arguments": arguments}
        call = {"id": f"call{number}", "type": "function", "function": function}
        thought = f"let me think of {WORDS[number % 7]}"
        asked: list[Row] = [
            {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
            {"role": "tool", "content": f"{number} degrees", "name": "weather"},
            {"role": "assistant", "content": f"it is {number}", "reasoning_content": thought if number % 2 else None},
        ]
        found.append({"messages": talk[:-1] + asked if number % 4 else talk, "tools": TOOLS if number % 4 else None})
    return found


def chats(folder: Path, count: int = 160, **changes: Any) -> Sections:
    """The sections of a dataset of plain conversations; `changes` replace them."""
    write_lines(folder / "chats.jsonl", ({"messages": talk} for talk in talks(count)))
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja")
    sections = {"dataset": {"name": "chats.jsonl"}, "tokenizer": tokenizer, "prompt_template": {"format_type": "chat"}}
    return sections | changes


def answers(folder: Path, count: int = 160, **changes: Any) -> Sections:
    """The sections of a dataset of instructions; `changes` replace them."""
    write_lines(folder / "rows.jsonl", instructions(count, seed=count))
    return {"dataset": {"name": "rows.jsonl"}, "tokenizer": trained(), "prompt_template": CUSTOM} | changes


# Ways to read a source


@made
def json_array(folder: Path) -> Sections:
    """With omitted columns, and a validation split."""
    (folder / "rows.json").write_text(json.dumps(instructions(200, seed=1), indent=1), encoding="utf-8")
    dataset = {"name": "rows.json", "columns": ["output", "instruction"], "val_split": 0.2}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": {"format_type": "completion"}}


@made
def json_with_a_root(folder: Path) -> Sections:
    rows = instructions(150, seed=2)
    paragraphs = [
        {"context": f"{at} {rows[at]['output']}", "qas": [asked(row, at) for row in rows[at : at + 3]]}
        for at in range(0, len(rows), 3)
    ]
    data = [{"title": f"part {at}", "paragraphs": paragraphs[at : at + 5]} for at in range(0, len(paragraphs), 5)]
    (folder / "squad.json").write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    dataset = {"name": "squad.json", "reader": {"root": "data[].paragraphs[].qas[]"}}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": {"format_type": "completion"}}


def asked(row: Row, at: int) -> Row:
    return {"id": f"q{at}", "question": row["instruction"], "answers": [{"text": row["output"], "answer_start": at}]}


@made
def json_by_id(folder: Path) -> Sections:
    """With a mapping that has a template and a constant."""
    rows = {f"id{number}": {"said": row["instruction"], "meant": row["output"]} for number, row in enumerated(150)}
    (folder / "rows.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    mapping = {"prompt": "{key}: {said}", "completion": "meant", "system": {"constant": "Say what is meant."}}
    dataset = {"name": "rows.json", "column_mapping": mapping}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": {"format_type": "completion"}}


def enumerated(count: int) -> Iterable[tuple[int, Row]]:
    return enumerate(instructions(count, seed=count))


@made
def csv_with_semicolons(folder: Path) -> Sections:
    """Quotes, line breaks in quotes, CRLF, a byte-order mark, and records with too many fields."""
    rows = [{**row, "input": f'{row["input"]}; "{number}"\nmore'} for number, row in enumerated(150)]
    text = csv_text(rows, delimiter=";") + "too;many;fields;here\r\n\r\nanother;one;too;many\r\n"
    (folder / "rows.csv").write_bytes(text.encode("utf-8-sig"))
    dataset = {"name": "rows.csv", "reader": {"delimiter": ";", "header": True}}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": CUSTOM, **REJECTING}


@made
def tsv_without_header(folder: Path) -> Sections:
    lines = (f"{row['instruction']}\t{number}\n" for number, row in enumerated(150))
    (folder / "rows.tsv").write_text("".join(lines), encoding="utf-8")
    mapping = {"prompt": "column_0", "completion": "column_1"}
    dataset = {"name": "rows.tsv", "column_mapping": mapping}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": {"format_type": "completion"}}


def typed(count: int) -> list[Row]:
    """Rows of every type, some without an answer or with one that leads nowhere."""
    begin = datetime(2024, 2, 29, 12)
    return [
        {
            "question": row["instruction"],
            "choices": row["output"].split()[:4],
            "answer": number % 3,
            "score": None if number % 5 == 0 else number / 7,
            "when": begin + timedelta(minutes=number),
            "yes": number % 2 == 0,
            "meta": {"lang": "de" if number % 3 else "fr", "tags": [str(number)]},
        }
        for number, row in enumerated(count)
    ]


@made
def parquet_types(folder: Path) -> Sections:
    """Paths, choices, letters, numbers and times in a mapping."""
    pq.write_table(pa.Table.from_pylist(typed(200)), folder / "rows.parquet", row_group_size=64)
    mapping = {
        "asked": "{question} ({score}, {when}, {yes})\n{choices:letters}",
        "answer": "choices[{answer}]",
        "lang": "meta.lang",
        "first": "meta.tags[0]",
    }
    template = "{asked}\n{lang} {first}\nAnswer: {answer}\n"
    prompt = {"template": template, "label_column": "answer", "input_columns": ["asked", "lang", "first"]}
    dataset = {"name": "rows.parquet", "column_mapping": mapping}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": prompt, **REJECTING}


@made
def arrow_with_filters(folder: Path) -> Sections:
    """Rendered by a Jinja template with generation marks."""
    table = pa.Table.from_pylist(typed(200))
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    filters = ["score > 2 and meta.lang in ['de', 'it']", "not question.startswith('7') or len(question) > 30"]
    dataset = {"name": "rows.arrow", "filters": filters, "val_split": 0.1}
    template = "{{ question | trim }} {{ score }}\n{% generation %}{{ choices }}{% endgeneration %} {{ when }}"
    mapping = {"choices": "{choices}"}
    return {
        "dataset": {**dataset, "column_mapping": mapping},
        "tokenizer": trained(),
        "prompt_template": {"format_type": "jinja", "template": template},
    }


def text_rows(count: int) -> Iterable[str]:
    return (row["output"] + (" \t" if number % 7 == 0 else "") for number, row in enumerated(count))


@made
def text_by_line(folder: Path) -> Sections:
    """Packed by `concat`, everything trained."""
    (folder / "lines.txt").write_text("\n\n".join(text_rows(200)) + "\n", encoding="utf-8")
    prompt = {"format_type": "text"}
    return {
        "dataset": {"name": "lines.txt"},
        "tokenizer": trained(),
        "prompt_template": prompt,
        "length": {"packing": "concat"},
    }


@made
def text_by_paragraph(folder: Path) -> Sections:
    """In UTF-16, packed by `best_fit` after a split."""
    texts = list(text_rows(150))
    paragraphs = ("\n".join(texts[at : at + 3]) for at in range(0, len(texts), 3))
    (folder / "book.txt").write_bytes("\n\n".join(paragraphs).encode("utf-16"))
    return {
        "dataset": {"name": "book.txt", "reader": {"lines_per_row": "paragraph"}},
        "tokenizer": trained(48),
        "prompt_template": {"format_type": "text", "add_eos": False},
        "length": {"strategy": "split", "packing": "best_fit", "stride": 4},
    }


@made
def text_by_file(folder: Path) -> Sections:
    (folder / "texts").mkdir()
    for number, text in enumerate(text_rows(40)):
        (folder / "texts" / f"{number:02}.txt").write_text(f"{text}\n\n{number}\n", encoding="utf-8")
    dataset = {"name": "texts", "reader": {"lines_per_row": "file"}}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": {"format_type": "text"}}


@made
def gz_with_bad_lines(folder: Path) -> Sections:
    """A glob of gzip files; lines that are not JSON or not text, values of another type, and empty answers."""
    lines = lines_of(instructions(200, seed=3)).splitlines()
    bad = [b'{"instruction": "cut', b'{"instruction": "\xff", "output": "x"}', b'{"instruction": "a", "output": ""}']
    bad += [b'{"instruction": 7, "output": "n"}', b'{"output": "\\ud83c"}', b"[]", b"", b'{"output": "alone"}']
    for number in range(3):
        own = [*lines[number::3], *bad, *lines[number:20]]
        (folder / f"part{number}.jsonl.gz").write_bytes(gzip.compress(b"\n".join(own), mtime=0))
    (folder / "other.jsonl").write_bytes(b'{"other": 1}\n')
    dataset = {"name": "part*.jsonl.gz", "val_split": 0.05}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": CUSTOM, **REJECTING}


@made
def latin_1_csv(folder: Path) -> Sections:
    """An encoding that is found."""
    rows = [{"question": f"où l'été à Nîmes, {n}?", "answer": f"élève naïve déjà là: {n * n}"} for n in range(200)]
    (folder / "rows.csv").write_bytes(csv_text(rows).encode("latin-1"))
    return {
        "dataset": {"name": "rows.csv"},
        "tokenizer": trained(),
        "prompt_template": {"format_type": "completion"},
    }


@made
def koi8_r_csv(folder: Path) -> Sections:
    """An encoding that is declared."""
    rows = [{"question": f"где мост, {n}?", "answer": f"мост над рекой: {n * n}"} for n in range(100)]
    (folder / "rows.csv").write_bytes(csv_text(rows).encode("koi8-r"))
    return {
        "dataset": {"name": "rows.csv", "encoding": "koi8-r"},
        "tokenizer": trained(),
        "prompt_template": {"format_type": "completion"},
    }


@made
def files_of_a_folder(folder: Path) -> Sections:
    """Of several formats, with other columns and types in each: a glob, because a folder is read in one format."""
    (folder / "rows" / "deep").mkdir(parents=True)
    rows = instructions(180, seed=4)
    write_lines(folder / "rows" / "a.jsonl", rows[:60])
    (folder / "rows" / "b.csv").write_bytes(csv_text(rows[60:120]).encode())
    more = [{**row, "input": number, "more": [number]} for number, row in enumerate(rows[120:])]
    pq.write_table(pa.Table.from_pylist(more), folder / "rows" / "deep" / "c.parquet")
    dataset = {"name": "rows/**/*.*", "val_split": 0.1}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": CUSTOM, **REJECTING}


@made
def saved_by_datasets(folder: Path) -> Sections:
    """With its own splits, one of them omitted."""
    from datasets import Dataset, DatasetDict

    rows = instructions(200, seed=6)
    splits = {"train": rows[:140], "test": rows[140:180], "other": rows[180:]}
    DatasetDict({name: Dataset.from_list(own) for name, own in splits.items()}).save_to_disk(str(folder / "saved"))
    dataset = {"name": "saved", "splits": ["train", "test"]}
    return {"dataset": dataset, "tokenizer": trained(), "prompt_template": CUSTOM}


@made
def limited(folder: Path) -> Sections:
    """Only the first rows of each split."""
    return answers(folder, 300, dataset={"name": "rows.jsonl", "val_split": 0.2})


@made
def keep_sequences(folder: Path) -> Sections:
    return answers(folder, keep="sequences")


# Tokenizers


def save_tokenizer(folder: Path, begins: str | None = None, **settings: Any) -> None:
    """tokenizer.json of a byte-level BPE, and its tokenizer_config.json."""
    tokenizer = byte_level()
    if begins:
        special = [(begins, tokenizer.token_to_id(begins))]
        tokenizer.post_processor = processors.TemplateProcessing(single=[begins, "$A"], special_tokens=special)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({**NAMED, **settings}), encoding="utf-8")


@made
def tokenizer_file(folder: Path) -> Sections:
    """A file alone; control strings in contents stay control tokens."""
    save_tokenizer(folder)
    write_lines(folder / "rows.jsonl", with_control(150))
    special = {"bos": "<s>", "eos": "</s>", "pad": "<|pad|>"}
    settings = {"name_or_path": "tokenizer/tokenizer.json", "special_tokens": special, "max_length": 160}
    return {
        "dataset": {"name": "rows.jsonl"},
        "tokenizer": {**settings, "control_tokens_in_content": "keep"},
        "prompt_template": {**CUSTOM, "add_bos": True},
        **REJECTING,
    }


def with_control(count: int) -> list[Row]:
    """Instructions, some with a control token's text."""
    rows = instructions(count, seed=7)
    return [{**row, "input": f"a </s>{row['input']}<s>"} if n % 6 == 0 else row for n, row in enumerate(rows)]


@made
def tokenizer_folder(folder: Path) -> Sections:
    """With its own chat template, and BOS before each text."""
    template = "{{ bos_token }}" + (SWEEP_TEMPLATES / "chatml-plain.jinja").read_text(encoding="utf-8")
    save_tokenizer(folder, "<s>", chat_template=template)
    return chats(folder, tokenizer={"name_or_path": "tokenizer", "max_length": 96}, **REJECTING)


def of_model(folder: Path, model: str, **tokenizer: Any) -> Sections:
    shutil.copy(TOKENIZER_MODELS / model, folder / model)
    write_lines(folder / "rows.jsonl", with_control(150))
    settings = {"name_or_path": model, "max_length": 96, **tokenizer}
    return {"dataset": {"name": "rows.jsonl"}, "tokenizer": settings, "prompt_template": CUSTOM, **REJECTING}


@made
def sentencepiece_unigram(folder: Path) -> Sections:
    return of_model(folder, "unigram_bytes.model")


@made
def sentencepiece_bpe(folder: Path) -> Sections:
    """Rows with a control token's text are rejected."""
    return of_model(folder, "bpe.model", control_tokens_in_content="reject")


@made
def tiktoken_ranks(folder: Path) -> Sections:
    """A folder of ranks, with their settings next to them."""
    sections = of_model(folder, "trained.tiktoken")
    first = len((folder / "trained.tiktoken").read_bytes().splitlines())
    added = {str(first + n): {"content": text, "special": True} for n, text in enumerate(["</s>", "<|pad|>"])}
    pattern = r"\p{L}+|\p{N}{1,3}|\s+|."
    settings = {"pat_str": pattern, "eos_token": "</s>", "pad_token": "<|pad|>", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return sections


# Prompts


@made
def chat_sharegpt(folder: Path) -> Sections:
    """Everything trained."""
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    turned = ([{"from": names[turn["role"]], "value": turn["content"]} for turn in talk] for talk in talks(160))
    write_lines(folder / "chats.jsonl", ({"id": f"c{n}", "conversations": talk} for n, talk in enumerate(turned)))
    return {
        "dataset": {"name": "chats.jsonl"},
        "tokenizer": chat_tokenizer("chat_templates/hermes.jinja"),
        "prompt_template": {"format_type": "chat", "train_on": "all"},
    }


@made
def chat_tools_and_reasoning(folder: Path) -> Sections:
    """Calls, results and thoughts, each row with its tools."""
    write_lines(folder / "chats.jsonl", tool_talks(120))
    tokenizer = chat_tokenizer("chat_templates/thinking.jinja", 256)
    prompt = {"format_type": "chat", "add_eos": False}
    return {"dataset": {"name": "chats.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, **REJECTING}


@made
def chat_declared_tools(folder: Path) -> Sections:
    """The tools of the YAML, a template that marks what is trained, and rows that it refuses."""
    found = tool_talks(120)
    write_lines(folder / "chats.jsonl", ({"messages": row["messages"]} for row in found))
    (folder / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    prompt = {"format_type": "chat", "tools": "tools.json", "system": "Answer in short.", "date_string": "1 May 2024"}
    tokenizer = chat_tokenizer("sweep_templates/chatml-marked.jinja", 256)
    return {"dataset": {"name": "chats.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, **REJECTING}


@made
def chat_weights(folder: Path) -> Sections:
    """Weights of messages, control strings in contents, and conversations without an answer."""
    found = talks(160, seed=8)
    for number, talk in enumerate(found):
        for at, turn in enumerate(talk):
            if turn["role"] == "assistant":
                turn["weight"] = (None, 0.0, 0.5, 2.0)[(number + at) % 4]
                turn["content"] += "<|im_end|>" if number % 9 == 0 else ""
    found[5], found[17] = found[5][:1], []
    write_lines(folder / "chats.jsonl", ({"messages": talk} for talk in found))
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja")
    prompt = {"format_type": "chat"}
    return {"dataset": {"name": "chats.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, **REJECTING}


@made
def chat_last_answer(folder: Path) -> Sections:
    """A template that no kernel compiles; the last answer alone is trained."""
    tokenizer = chat_tokenizer("sweep_templates/think-last.jinja")
    return chats(folder, tokenizer=tokenizer, prompt_template={"format_type": "chat", "train_on": "last"}, **REJECTING)


@made
def chat_roles(folder: Path) -> Sections:
    """The roles that are trained are listed."""
    prompt = {"format_type": "chat", "train_on": ["user", "assistant"], "system": "Be brief.", "add_bos": True}
    return chats(folder, prompt_template=prompt)


@made
def completion_by_chat_template(folder: Path) -> Sections:
    """Columns through a chat template, since there is one."""
    tokenizer = chat_tokenizer("sweep_templates/inst-merged.jinja")
    return answers(folder, tokenizer=tokenizer, prompt_template={"system": "Answer."})


@made
def custom_all(folder: Path) -> Sections:
    """All text trained, without EOS."""
    prompt = {"template": "{{{instruction}}} {output}", "train_on": "all", "add_eos": False}
    return answers(folder, prompt_template=prompt)


@made
def jinja_label(folder: Path) -> Sections:
    """What is trained is a column."""
    template = "{% if input %}{{ input }}\n{% endif %}{{ instruction }}\n{{ output }} {{ strftime_now('%Y') }}"
    prompt = {"format_type": "jinja", "template": template, "label_column": "output", "date_string": "2024-05-01"}
    return answers(folder, prompt_template=prompt, **REJECTING)


@made
def preference_of_texts(folder: Path) -> Sections:
    """Pairs of texts; some have one answer twice, some have none."""
    found = [
        {"prompt": row["instruction"], "chosen": row["output"], "rejected": row["input"] or row["output"]}
        for row in instructions(160, seed=9)
    ]
    write_lines(folder / "pairs.jsonl", [*found, {"prompt": "a", "chosen": "", "rejected": "b"}])
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja")
    prompt = {"format_type": "preference", "system": "Choose."}
    return {"dataset": {"name": "pairs.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, **REJECTING}


@made
def preference_of_chats(folder: Path) -> Sections:
    """Pairs of conversations with the same start, which drop turns."""
    found = []
    for number, talk in enumerate(talks(120, seed=10, turns=5)):
        other = [{"role": "assistant", "content": f"no, {number}"}]
        found.append({"chosen": talk, "rejected": talk[:-1] + other})
    write_lines(folder / "pairs.jsonl", found)
    return {
        "dataset": {"name": "pairs.jsonl"},
        "tokenizer": chat_tokenizer("sweep_templates/chatml-plain.jinja", 64),
        "prompt_template": {"format_type": "preference"},
        "length": {"strategy": "drop_turns"},
        **REJECTING,
    }


@made
def preference_of_transcripts(folder: Path) -> Sections:
    """Conversations in one text; parts of the prompt are given up."""
    found = []
    for number, row in enumerated(120):
        asked = f"\n\nHuman: {row['instruction']}\n\nAssistant: hm\n\nHuman: {row['input']} {number}\n\nAssistant:"
        found.append({"chosen": f"{asked} {row['output']}", "rejected": f"{asked} no"})
    write_lines(folder / "pairs.jsonl", found)
    return {
        "dataset": {"name": "pairs.jsonl"},
        "tokenizer": chat_tokenizer("sweep_templates/chatml-plain.jinja", 64),
        "prompt_template": {"format_type": "preference", "train_on": "all"},
        "length": {"strategy": "smart"},
        **REJECTING,
    }


@made
def kto(folder: Path) -> Sections:
    found = [
        {"prompt": row["instruction"], "completion": row["output"], "label": number % 3 > 0}
        for number, row in enumerated(160)
    ]
    write_lines(folder / "rated.jsonl", found)
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja", 80)
    prompt = {"format_type": "kto", "few_shot": {"count": 1, "seed": 2}}
    return {"dataset": {"name": "rated.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, **REJECTING}


@made
def few_shot_of_a_file(folder: Path) -> Sections:
    """Two of four examples."""
    write_lines(folder / "shots.jsonl", instructions(4, seed=99, words=4))
    prompt = {**CUSTOM, "few_shot": {"count": 2, "source": "shots.jsonl", "seed": 1}}
    return answers(folder, tokenizer=trained(256), prompt_template=prompt)


@made
def few_shot_of_the_chunk(folder: Path) -> Sections:
    prompt = {"format_type": "completion", "few_shot": {"count": 2, "seed": 3}}
    return answers(folder, tokenizer=trained(256), prompt_template=prompt)


@made
def few_shot_of_chats(folder: Path) -> Sections:
    prompt = {"format_type": "chat", "few_shot": {"count": 1}}
    return chats(folder, tokenizer=chat_tokenizer("sweep_templates/chatml-plain.jinja", 192), prompt_template=prompt)


# Lengths and packing


@made
def truncate_right(folder: Path) -> Sections:
    """Rows whose answer is cut off are rejected."""
    return answers(folder, tokenizer=trained(28), length={"strategy": "truncate_right"}, **REJECTING)


@made
def truncate_left(folder: Path) -> Sections:
    length = {"strategy": "truncate_left", "packing": "best_fit"}
    return answers(folder, tokenizer=trained(32), length=length)


@made
def truncate_middle(folder: Path) -> Sections:
    return answers(folder, tokenizer=trained(32), length={"strategy": "truncate_middle"}, **REJECTING)


@made
def smart(folder: Path) -> Sections:
    length = {"strategy": "smart", "give_up": ["input", "question"], "packing": "best_fit"}
    return answers(folder, tokenizer=trained(36), length=length, **REJECTING)


@made
def smart_chats(folder: Path) -> Sections:
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja", 64)
    return chats(folder, tokenizer=tokenizer, length={"strategy": "smart"}, **REJECTING)


@made
def drop_turns(folder: Path) -> Sections:
    """Packed by `best_fit`; a last turn that is too long is rejected."""
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja", 36)
    return chats(folder, tokenizer=tokenizer, length={"strategy": "drop_turns", "packing": "best_fit"}, **REJECTING)


@made
def split(folder: Path) -> Sections:
    return answers(folder, tokenizer=trained(32), length={"strategy": "split", "stride": 8})


@made
def drop(folder: Path) -> Sections:
    return answers(folder, tokenizer=trained(40), length={"strategy": "drop", "packing": "best_fit"})


@made
def exact_trees(folder: Path) -> Sections:
    """A template that drops the thoughts of earlier turns; rows with the same question; trees that are cut."""
    found = []
    for number, talk in enumerate(talks(120)):
        said = [{**message, "thinking": f"Thought {number % 7}."} for message in talk]
        found.append({"messages": [{"role": "user", "content": f"Question {number % 9}?"}, *said[1:]]})
    write_lines(folder / "chats.jsonl", found)
    tokenizer = chat_tokenizer("sweep_templates/chatml-plain.jinja", 128)
    thought = "{% if m.thinking and loop.last and m.role == 'assistant' %}{{ '(' + m.thinking + ')' }}{% endif %}"
    tokenizer["chat_template"] = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}" + thought + "{{ m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    prompt = {"format_type": "chat", "turns": "exact"}
    length = {"packing": "tree"}
    return {"dataset": {"name": "chats.jsonl"}, "tokenizer": tokenizer, "prompt_template": prompt, "length": length}


# Real files


def found_in(data: Path, name: str, mapping: Row | None = None, **dataset: Any) -> Row:
    given = {"column_mapping": mapping} if mapping else {}
    return {"name": str(data / name), **given, **dataset}


def phi_2(data: Path, longest: int = 512, template: str | None = None) -> Row:
    given = {"chat_template": str(data / "chat_templates" / f"{template}.jinja")} if template else {}
    return {"name_or_path": str(data / "tokenizers" / "phi-2"), "max_length": longest, **given}


def bert(data: Path, longest: int = 256) -> Row:
    special = {"eos": "[SEP]", "pad": "[PAD]"}
    path = data / "tokenizers" / "bert-base-cased" / "tokenizer.json"
    return {"name_or_path": str(path), "special_tokens": special, "max_length": longest}


@made
def without_repeats_and_items(folder: Path) -> Sections:
    """Rows of two splits that repeat each other, exactly and nearly, or contain items of an evaluation."""
    words = [f"{word}{number}" for number in range(40) for word in ("stone", "été", "川")]
    draw = random.Random(11)

    def said(count: int) -> str:
        return " ".join(draw.choices(words, k=count))

    train = [{"prompt": f"{number}: {said(9)}?", "answer": said(25)} for number in range(400)]
    test = [
        dict(train[7]),
        {**train[9], "answer": f"{train[9]['answer']} so"},
        {"prompt": "Quite new", "answer": "One."},
    ]
    for place, first in ((50, 3), (200, 3), (390, 120)):
        train[place] = dict(train[first])
    for place, first in ((60, 12), (210, 12), (395, 120)):
        train[place] = {**train[first], "answer": f"{train[first]['answer']} or {place}"}
    items = [train[30]["prompt"].upper(), train[31]["answer"], "What is it?"]
    train[300] = {"prompt": "what is it", "answer": "It is."}
    (folder / "rows").mkdir(exist_ok=True)
    for name, some in (("train", train), ("test", test)):
        lines = (json.dumps(row, ensure_ascii=False) for row in some)
        (folder / "rows" / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "items.jsonl").write_text("".join(json.dumps({"item": item}) + "\n" for item in items))
    return {
        "dataset": {"name": "rows", "column_mapping": {"prompt": "prompt", "completion": "answer"}},
        "tokenizer": TOKENIZER,
        "prompt_template": {"format_type": "completion"},
        "decontaminate": {"against": [{"name": "items.jsonl", "columns": ["item"]}]},
        "dedup": {"near": {"threshold": 0.7}},
    }


@real
def alpaca(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "instruct/alpaca_data.json"),
        "tokenizer": phi_2(data),
        "prompt_template": CUSTOM,
        "length": {"packing": "best_fit"},
        **REJECTING,
    }


@real
def alpaca_seed_tasks(data: Path, folder: Path) -> Sections:
    return {"dataset": found_in(data, "instruct/alpaca_seed_tasks.jsonl"), "tokenizer": bert(data), **REJECTING}


@real
def alpaca_zh(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "multilingual/alpaca_zh_demo.json")
    return {"dataset": dataset, "tokenizer": phi_2(data, template="llama-3-instruct"), **REJECTING}


@real
def gsm8k(data: Path, folder: Path) -> Sections:
    """With examples from the chunk."""
    prompt = {"template": "Question: {question}\nAnswer: {answer}\n", "label_column": "answer"}
    return {
        "dataset": found_in(data, "math/gsm8k_test.jsonl"),
        "tokenizer": phi_2(data),
        "prompt_template": {**prompt, "few_shot": {"count": 2, "seed": 1}},
        **REJECTING,
    }


@real
def glaive(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "chat/glaive_toolcall_en_demo.json"),
        "tokenizer": phi_2(data, template="qwen2_5_training"),
        "length": {"strategy": "drop_turns"},
        **REJECTING,
    }


@real
def glaive_without_marks(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "chat/glaive_toolcall_en_demo.json")
    return {"dataset": dataset, "tokenizer": phi_2(data, template="qwen2.5-instruct"), **REJECTING}


@real
def dummy_conversation(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "chat/dummy_conversation.json"),
        "tokenizer": phi_2(data, 128, "zephyr"),
        "length": {"strategy": "smart", "packing": "best_fit"},
        **REJECTING,
    }


@real
def toy_chat(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "chat/toy_chat_fine_tuning.jsonl")
    return {"dataset": dataset, "tokenizer": phi_2(data, template="llama-2-chat"), **REJECTING}


@real
def bare_lists(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "chat/openai_sft_barelist.jsonl")
    return {"dataset": dataset, "tokenizer": phi_2(data, template="gemma-it"), **REJECTING}


@real
def hh_rlhf(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "preference/hh-rlhf_harmless-base_test.jsonl.gz")
    tokenizer = phi_2(data, 256, "chatml")
    return {"dataset": dataset, "tokenizer": tokenizer, "prompt_template": {"format_type": "preference"}, **REJECTING}


@real
def v1_dpo(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "preference/v1_dpo_demo.jsonl")
    tokenizer = phi_2(data, template="mistral-instruct")
    return {"dataset": dataset, "tokenizer": tokenizer, "prompt_template": {"format_type": "preference"}, **REJECTING}


@real
def wikitext(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "text/wikitext-2/valid.txt"),
        "tokenizer": trained(256, train={"vocab_size": 2000}),
        "prompt_template": {"format_type": "text"},
        "length": {"packing": "concat"},
    }


@real
def mgsm(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "column_0", "completion": "column_1"}
    dataset = found_in(data, "multilingual/mgsm_*.tsv", mapping)
    return {"dataset": dataset, "tokenizer": phi_2(data, template="alpaca"), **REJECTING}


@real
def xquad(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "multilingual/xquad.ar.json"),
        "tokenizer": bert(data),
        "length": {"strategy": "truncate_middle"},
        **REJECTING,
    }


@real
def gemoji(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "{description} ({category})\n{aliases}", "completion": "emoji"}
    return {"dataset": found_in(data, "multilingual/gemoji.json", mapping), "tokenizer": phi_2(data)}


@real
def truthful_qa(data: Path, folder: Path) -> Sections:
    return {"dataset": found_in(data, "awkward/TruthfulQA_bom.csv"), "tokenizer": bert(data)}


@real
def banking77(data: Path, folder: Path) -> Sections:
    dataset = found_in(data, "awkward/banking77_test.csv", filters=["len(text) > 20"], val_split=0.1)
    return {"dataset": dataset, "tokenizer": bert(data), "length": {"packing": "best_fit"}}


@real
def avengers(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "Name/Alias", "completion": "Notes"}
    return {"dataset": found_in(data, "awkward/avengers_latin1.csv", mapping), "tokenizer": phi_2(data), **REJECTING}


@real
def disfl_qa(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "disfluent", "completion": "original"}
    return {"dataset": found_in(data, "awkward/disfl_qa_dev.json", mapping), "tokenizer": bert(data), **REJECTING}


@real
def dialogsum(data: Path, folder: Path) -> Sections:
    return {
        "dataset": found_in(data, "awkward/dialogsum_dev.jsonl"),
        "tokenizer": phi_2(data, 256),
        "length": {"strategy": "split", "stride": 16},
    }


@real
def gap(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "{Text}\n\nWho is {Pronoun}?", "completion": "A"}
    dataset = found_in(data, "awkward/gap_validation.tsv", mapping)
    return {"dataset": dataset, "tokenizer": phi_2(data, 128), "length": {"strategy": "truncate_left"}}


@real
def query_wellformedness(data: Path, folder: Path) -> Sections:
    mapping = {"prompt": "column_0", "completion": "column_1"}
    return {"dataset": found_in(data, "awkward/query_wellformedness_dev.tsv", mapping), "tokenizer": bert(data)}


NAMES = ("small", "quickstart", *DATASETS)
"""All that are made here."""
