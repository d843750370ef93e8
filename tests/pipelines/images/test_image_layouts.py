"""The same rows with images in every layout that datasets have them in: the same token ids, those of the processor."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from transformers.image_utils import load_image

from support.image_rows import Built, Message, Oracle, write_lines, write_pictures, write_yaml
from support.soak import each, some
from tokenloom.assets.columns.content_parts import text_reference

COUNT = 30


@dataclass(frozen=True)
class Sample:
    """One row: paths of images, a question and an answer."""

    paths: list[str]
    question: str
    answer: str


@dataclass(frozen=True)
class Rows:
    """The rows, the content of their images, and what a processor makes of them."""

    folder: Path
    samples: list[Sample]
    content: dict[str, bytes]
    expected: list[tuple[list[int], list[bool]]]

    def data_url(self, path: str) -> str:
        return f"data:image/png;base64,{self.base64(path)}"

    def base64(self, path: str) -> str:
        return base64.b64encode(self.content[path]).decode()


def conversation(
    sample: Sample, part: Callable[[str], Any] = lambda path: {"type": "image", "path": path}
) -> list[Message]:
    content = [*map(part, sample.paths), {"type": "text", "text": sample.question}]
    return [
        {"role": "user", "content": content if sample.paths else sample.question},
        {"role": "assistant", "content": sample.answer},
    ]


def said(sample: Sample, question: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": sample.answer}]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("rows")
    oracle = Oracle("qwen2_vl", "parts")
    oracle.save(folder / "processor")
    pictures = write_pictures(folder, 12)
    samples = [
        Sample(
            [f"pictures/{(5 * number + place) % 12}.png" for place in range(1 + number % 3 if number % 7 else 0)],
            f"What is {number}?",
            f"Number {number}\nis this.",
        )
        for number in range(COUNT)
    ]
    content = {path: (folder / path).read_bytes() for path in pictures}
    expected = [oracle.row(conversation(sample), [pictures[path] for path in sample.paths]) for sample in samples]
    return Rows(folder, samples, content, expected)


def built(rows: Rows, folder: Path, data: str, **sections: Any) -> Built:
    config = write_yaml(folder, data, rows.folder / "processor", name="rows", **sections)
    return Built.of(config, folder / "store")


def assert_same(rows: Rows, made: Built) -> None:
    assert made.rejects() == {}
    assert [made.ids()[number] for number in range(COUNT)] == rows.expected


def write_content(rows: Rows, folder: Path, prefix: str = "") -> None:
    for path, content in rows.content.items():
        (folder / prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / prefix / path).write_bytes(content)


Part = Callable[[Rows, str], Any]

PARTS: dict[str, Part] = {
    "path": lambda rows, path: {"type": "image", "path": path},
    "image": lambda rows, path: {"type": "image", "image": path},
    "url": lambda rows, path: {"type": "image", "url": path},
    "without type": lambda rows, path: {"image": path},
    "data URL": lambda rows, path: {"type": "image", "image": rows.data_url(path)},
    "OpenAI": lambda rows, path: {"type": "image_url", "image_url": {"url": rows.data_url(path), "detail": "low"}},
    "OpenAI with text": lambda rows, path: {"type": "image_url", "image_url": rows.data_url(path)},
    "OpenAI Responses": lambda rows, path: {"type": "input_image", "image_url": rows.data_url(path)},
    "Anthropic": lambda rows, path: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": rows.base64(path)},
    },
    "base64": lambda rows, path: {"type": "image", "base64": rows.base64(path)},
    "base64 in lines": lambda rows, path: {
        "type": "image",
        "base64": base64.encodebytes(rows.content[path]).decode(),
    },
    "struct": lambda rows, path: {"type": "image", "image": {"bytes": None, "path": path}},
    "bare base64": lambda rows, path: {"type": "image", "image": rows.base64(path)},
    "OpenAI with bare base64": lambda rows, path: {"type": "image_url", "image_url": {"url": rows.base64(path)}},
    "file address": lambda rows, path: {"type": "image", "image": f"file://{rows.folder}/{path}"},
    "OpenAI with a file address": lambda rows, path: {
        "type": "image_url",
        "image_url": {"url": f"file://localhost{rows.folder}/{path.replace('e', '%65')}"},
    },
    "relative file address": lambda rows, path: {"type": "image", "url": f"file://{path}"},
}
BELOW_ROWS = ("file address", "OpenAI with a file address")


@pytest.mark.parametrize("name", some(PARTS, 2))
def test_content_parts(name: str, rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = [{"messages": conversation(sample, lambda path: PARTS[name](rows, path))} for sample in rows.samples]
    write_lines(tmp_path / "rows.jsonl", lines)
    media = {"media": {"folder": str(rows.folder)}} if name in BELOW_ROWS else {}
    assert_same(rows, built(rows, tmp_path, "rows.jsonl", dataset={"name": "rows.jsonl", **media}))


BESIDE: dict[str, Callable[[Rows, Sample], Any]] = {
    # idefics's and TRL's conversations: parts name the images of the column
    "index": lambda rows, sample: {
        "images": sample.paths[::-1],
        "messages": conversation(
            sample,
            lambda path: {"type": "image", "text": None, "index": sample.paths[::-1].index(path)},
        ),
    },
    # LLaMA-Factory's: placeholders in the text, images of bytes or paths in the column
    "placeholders and base64": lambda rows, sample: {
        "images": [*map(rows.base64, sample.paths)],
        "messages": said(sample, "<image>" * len(sample.paths) + sample.question),
    },
    # Ollama's: bare base64 in a field of the message, before its text
    "in a field of the message": lambda rows, sample: {
        "messages": [
            {"role": "user", "content": sample.question, "images": [*map(rows.base64, sample.paths)]},
            {"role": "assistant", "content": sample.answer},
        ]
    },
    "in a field, with placeholders": lambda rows, sample: {
        "messages": [
            {
                "role": "user",
                "content": "<image>" * len(sample.paths) + sample.question,
                "images": [{"path": path} for path in sample.paths],
            },
            {"role": "assistant", "content": sample.answer},
        ]
    },
}


@pytest.mark.parametrize("name", BESIDE)
def test_images_beside_a_content(name: str, rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    write_lines(tmp_path / "rows.jsonl", [BESIDE[name](rows, sample) for sample in rows.samples])
    assert_same(rows, built(rows, tmp_path, "rows.jsonl"))


def test_messages_with_images_need_a_processor(rows: Rows, tmp_path: Path) -> None:
    lines = [BESIDE["in a field of the message"](rows, sample) for sample in rows.samples]
    write_lines(tmp_path / "rows.jsonl", lines)
    config = write_yaml(tmp_path, "rows.jsonl", rows.folder / "processor")
    settings = yaml.safe_load(config.read_text())
    settings["tokenizer"] = {"name_or_path": str(rows.folder / "processor")}
    settings["validation"] = {"max_reject_fraction": 1.0}
    config.write_text(yaml.safe_dump(settings))
    rejects = Built.of(config, tmp_path / "store").rejects()
    assert rejects.keys() == {number for number, sample in enumerate(rows.samples) if sample.paths}
    assert all("set tokenizer.processor to train on images" in message for _, _, message in rejects.values())


def test_base64_of_image_files_is_told_from_paths() -> None:
    picture = Image.frombytes("RGB", (5, 4), bytes(range(60)))
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        picture.save(file := io.BytesIO(), form)
        for text in (base64.b64encode(file.getvalue()), base64.encodebytes(file.getvalue())):
            found = text_reference(text.decode())
            assert found == {"base64": text.decode()}
            load_image(text.decode())  # transformers reads it as an image, too
    for path in (
        "/9j/a.jpg",
        "R0lGOD/of/a/very/long/path/to/a/picture.gif",
        "UklGR",
        "iVBORw0KGgo/" + "a" * 40 + ".png",
        "a" * 80,
    ):
        assert text_reference(path) == {"path": path}


def test_files_below_the_folder_of_each_source_file(rows: Rows, tmp_path: Path) -> None:
    lines = [{"messages": conversation(sample)} for sample in rows.samples]
    for name, part in (("a", lines[:11]), ("b/c", lines[11:])):
        write_content(rows, tmp_path / "data", name)
        write_lines(tmp_path / "data" / name / "part.jsonl", part)
    made = built(rows, tmp_path, "data/**/*.jsonl")
    assert made.rejects() == {}
    found = [row["input_ids"] for _, table in made.tables("tokens") for row in table.to_pylist()]
    assert found == [ids for ids, _ in rows.expected]


def test_a_folder_of_images_elsewhere(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path / "elsewhere")
    write_lines(tmp_path / "rows.jsonl", [{"messages": conversation(sample)} for sample in rows.samples])
    media = {"media": {"folder": str(tmp_path / "elsewhere")}}
    assert_same(rows, built(rows, tmp_path, "rows.jsonl", dataset={"name": "rows.jsonl", **media}))


COLUMNS: dict[str, Callable[[Rows, Sample], Any]] = {
    "paths": lambda rows, sample: sample.paths,
    "data URLs": lambda rows, sample: [rows.data_url(path) for path in sample.paths],
    "structs": lambda rows, sample: [{"path": path, "bytes": None} for path in sample.paths],
    "one path": lambda rows, sample: sample.paths[0] if len(sample.paths) == 1 else sample.paths,
}

MARKED: dict[str, Callable[[Sample], list[Message]]] = {
    "parts": lambda sample: conversation(sample, lambda path: {"type": "image"}),
    "parts with null": lambda sample: conversation(sample, lambda path: {"type": "image", "text": None, "image": None}),
    "leading": lambda sample: said(sample, sample.question),
    "marks": lambda sample: said(sample, "<image>" * len(sample.paths) + sample.question),
}


@pytest.mark.parametrize(
    ("column", "marked"),
    [
        ("paths", "parts"),
        ("paths", "leading"),
        ("data URLs", "parts with null"),
        ("structs", "marks"),
        ("one path", "leading"),
    ],
)
def test_a_column_of_images(column: str, marked: str, rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = [{"images": COLUMNS[column](rows, sample), "messages": MARKED[marked](sample)} for sample in rows.samples]
    write_lines(tmp_path / "rows.jsonl", lines)
    assert_same(rows, built(rows, tmp_path, "rows.jsonl"))


def test_a_mapped_column(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = [{"shots": sample.paths, "messages": MARKED["leading"](sample)} for sample in rows.samples]
    write_lines(tmp_path / "rows.jsonl", lines)
    mapping = {"name": "rows.jsonl", "column_mapping": {"images": "shots"}}
    assert_same(rows, built(rows, tmp_path, "rows.jsonl", dataset=mapping))


BINARY: dict[str, Callable[[Rows, Sample], Any]] = {
    "structs": lambda rows, sample: [{"bytes": rows.content[path], "path": None} for path in sample.paths],
    "binary": lambda rows, sample: [rows.content[path] for path in sample.paths],
}


@pytest.mark.parametrize(("kind", "marked"), each(BINARY, ["parts", "leading", "marks"]))
def test_parquet_with_bytes(kind: str, marked: str, rows: Rows, tmp_path: Path) -> None:
    messages = pa.array(
        [
            [
                {**m, "content": json.dumps(m["content"])} if isinstance(m["content"], list) else m
                for m in MARKED[marked](sample)
            ]
            for sample in rows.samples
        ]
    )
    if marked == "parts":
        listed = [
            [
                {
                    **m,
                    "content": m["content"]
                    if isinstance(m["content"], list)
                    else [{"type": "text", "text": m["content"]}],
                }
                for m in MARKED[marked](sample)
            ]
            for sample in rows.samples
        ]
        messages = pa.array(listed)
    images = pa.array([BINARY[kind](rows, sample) for sample in rows.samples])
    pq.write_table(pa.table({"images": images, "messages": messages}), tmp_path / "rows.parquet", row_group_size=7)
    assert_same(rows, built(rows, tmp_path, "rows.parquet"))


@pytest.mark.parametrize("kind", BINARY)
def test_parquet_with_one_image_a_row(kind: str, rows: Rows, tmp_path: Path) -> None:
    chosen = [number for number, sample in enumerate(rows.samples) if len(sample.paths) == 1]
    images = pa.array([BINARY[kind](rows, rows.samples[number])[0] for number in chosen])
    messages = pa.array([said(rows.samples[number], rows.samples[number].question) for number in chosen])
    pq.write_table(pa.table({"image": images, "messages": messages}), tmp_path / "rows.parquet")
    made = built(rows, tmp_path, "rows.parquet")
    assert made.rejects() == {}
    assert list(made.ids().values()) == [rows.expected[number] for number in chosen]


BYTES: dict[str, Part] = {
    "struct": lambda rows, path: {"type": "image", "image": {"bytes": rows.content[path], "path": path}},
    "image": lambda rows, path: {"type": "image", "image": rows.content[path]},
    "bytes": lambda rows, path: {"type": "image", "bytes": rows.content[path]},
}


@pytest.mark.parametrize("name", some(BYTES, 2))
def test_bytes_inside_content_parts(name: str, rows: Rows, tmp_path: Path) -> None:
    def part(path: str) -> dict[str, Any]:
        return {**BYTES[name](rows, path), "text": None}

    listed = [
        [
            {"role": m["role"], "content": m["content"]}
            if isinstance(m["content"], list)
            else {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
            for m in conversation(sample, part)
        ]
        for sample in rows.samples
    ]
    pq.write_table(pa.table({"messages": pa.array(listed)}), tmp_path / "rows.parquet")
    assert_same(rows, built(rows, tmp_path, "rows.parquet"))


@pytest.mark.parametrize("marked", ["leading", "marks"])
def test_a_dataset_saved_to_disk(marked: str, rows: Rows, tmp_path: Path) -> None:
    given = {
        "images": [[{"bytes": rows.content[path], "path": None} for path in sample.paths] for sample in rows.samples],
        "messages": [MARKED[marked](sample) for sample in rows.samples],
    }
    text = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    features = datasets.Features({"images": datasets.List(datasets.Image()), "messages": datasets.List(text)})
    datasets.Dataset.from_dict(given, features).save_to_disk(tmp_path / "saved")
    assert_same(rows, built(rows, tmp_path, "saved"))


def test_a_saved_dataset_with_one_image_a_row(rows: Rows, tmp_path: Path) -> None:
    chosen = [number for number, sample in enumerate(rows.samples) if len(sample.paths) == 1]
    write_content(rows, tmp_path)
    given = {
        "image": [str(tmp_path / rows.samples[number].paths[0]) for number in chosen],
        "messages": [said(rows.samples[number], rows.samples[number].question) for number in chosen],
    }
    made = datasets.Dataset.from_dict(given).cast_column("image", datasets.Image())
    made.save_to_disk(tmp_path / "saved")  # reads the files into the rows
    found = built(rows, tmp_path, "saved")
    assert found.rejects() == {}
    assert list(found.ids().values()) == [rows.expected[number] for number in chosen]


def test_llava(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    content = []
    for number, sample in enumerate(rows.samples):
        one = {"image": sample.paths[0]} if len(sample.paths) == 1 else {"image": sample.paths} if sample.paths else {}
        marks = "<image>" * len(sample.paths)
        turns = [{"from": "human", "value": marks + sample.question}, {"from": "gpt", "value": sample.answer}]
        content.append({"id": str(number), **one, "conversations": turns})
    (tmp_path / "rows.json").write_text(json.dumps(content, indent=1))
    made = built(rows, tmp_path, "rows.json")
    assert made.rejects() == {}
    found = [row["input_ids"] for _, table in made.tables("tokens") for row in table.to_pylist()]
    assert found == [ids for ids, _ in rows.expected]


def test_prompts_and_completions(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = []
    for sample in rows.samples:
        prompt, completion = conversation(sample)
        lines.append({"prompt": [prompt], "completion": [completion]})
    write_lines(tmp_path / "rows.jsonl", lines)
    assert_same(rows, built(rows, tmp_path, "rows.jsonl"))


def test_prompts_and_completions_with_a_column(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = [
        {"images": sample.paths, "prompt": said(sample, sample.question)[:1], "completion": said(sample, "")[1:]}
        for sample in rows.samples
    ]
    write_lines(tmp_path / "rows.jsonl", lines)
    assert_same(rows, built(rows, tmp_path, "rows.jsonl"))


@pytest.mark.parametrize("marked", ["<image>\n", ""])
def test_plain_prompts_and_completions(marked: str, rows: Rows, tmp_path: Path) -> None:
    """Without a chat template, the images of rows without marks come before the prompt."""
    write_content(rows, tmp_path)
    lines = [
        {
            "image": sample.paths[:1],
            "prompt": f"{marked if sample.paths else ''}{sample.question} ",
            "completion": sample.answer,
        }
        for sample in rows.samples
    ]
    write_lines(tmp_path / "rows.jsonl", lines)
    template = {
        "format_type": "custom",
        "template": "Q: {prompt}\nA:\n{completion}",
        "label_column": "completion",
        "add_eos": False,
    }
    made = built(rows, tmp_path, "rows.jsonl", prompt_template=template)
    assert made.rejects() == {}
    processor = Oracle("qwen2_vl", "parts").processor
    for number, row in enumerate(lines):
        prompt = row["prompt"].replace("<image>", processor.image_token)
        prompt = prompt if marked else processor.image_token * len(row["image"]) + prompt
        images = [[opened(rows.content[path]) for path in row["image"]]]
        own = processor(text=[f"Q: {prompt}\nA:\n{row['completion']}"], **({"images": images} if images[0] else {}))
        ids, trained = made.ids()[number]
        assert ids == list(own["input_ids"][0])
        assert (
            processor.tokenizer.decode([token for token, chosen in zip(ids, trained, strict=True) if chosen])
            == row["completion"]
        )


@pytest.mark.parametrize("column", ["image", "images"])
def test_marks_in_a_custom_template(column: str, rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    lines = [
        {column: [sample.paths[0]] if column == "images" else sample.paths[0], "q": sample.question, "a": sample.answer}
        for sample in rows.samples
        if sample.paths
    ]
    write_lines(tmp_path / "rows.jsonl", lines)
    template = {"format_type": "custom", "template": "See <image>: {q}\n{a}", "label_column": "a", "add_eos": False}
    made = built(rows, tmp_path, "rows.jsonl", prompt_template=template)
    assert made.rejects() == {}
    processor = Oracle("qwen2_vl", "parts").processor
    for number, row in enumerate(lines):
        path = row[column] if column == "image" else row[column][0]
        text = f"See {processor.image_token}: {row['q']}\n{row['a']}"
        own = processor(text=[text], images=[[opened(rows.content[path])]])
        assert made.ids()[number][0] == list(own["input_ids"][0])


def test_preference_rows_with_images_in_prompts(rows: Rows, tmp_path: Path) -> None:
    write_content(rows, tmp_path)
    oracle = Oracle("qwen2_vl", "parts")
    lines, expected = [], []
    for number, sample in enumerate(rows.samples):
        wrong = {"role": "assistant", "content": f"No {number}."}
        prompt, answer = conversation(sample)
        lines.append({"prompt": [prompt], "chosen": [answer], "rejected": [wrong]})
        images = [opened(rows.content[path]) for path in sample.paths]
        expected += [oracle.row([prompt, said_by], images) for said_by in (answer, wrong)]
    shown = {"role": "assistant", "content": [{"type": "image", "path": next(iter(rows.content))}]}
    lines += [{**lines[0], side: [shown]} for side in ("chosen", "rejected")]
    write_lines(tmp_path / "rows.jsonl", lines)
    made = built(rows, tmp_path, "rows.jsonl", validation={"max_reject_fraction": 0.5})
    message = "an image is in a chosen or rejected answer; only prompts of pairs can have images"
    assert made.rejects() == dict.fromkeys((COUNT, COUNT + 1), ("columns", "image_marks", message))
    assert found_pairs(made) == [ids for ids, _ in expected]


def found_pairs(made: Built) -> list[list[int]]:
    return [
        row[name]
        for _, table in made.tables("tokens")
        for row in table.to_pylist()
        for name in ("chosen_input_ids", "rejected_input_ids")
    ]


def opened(content: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(content)).convert("RGB")
