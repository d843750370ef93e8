"""Rows with images made from a seed, chat templates for them, and what a processor itself makes of a row."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from PIL import Image

from support.builds import build
from support.vision_processors import FAMILIES, save
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store import ArtifactStore, ManifestChunk

Message = dict[str, Any]
Pieces = list[tuple[str, bool]]
"""The text of a row in pieces, each with whether it is trained."""

ONE_CHUNK = ChunkSize(target=8 << 20, maximum=32 << 20)

WRITTEN = {
    "glm4v": "<|begin_of_image|><|image|><|end_of_image|>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
}
"""What a chat template writes for an image, where it is not the token alone."""

CALLS = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}({{ c.function.arguments | tojson }})</call>"
    "{% endfor %}"
)


def _parts(text: str, start: str, generation: bool = False) -> str:
    body = (
        "{% if m.content is string %}{{ m.content" + text + " }}{% else %}{% for c in m.content %}"
        "{% if c.type == 'image' %}MARKER{% elif c.type == 'text' %}{{ c.text" + text + " }}{% endif %}{% endfor %}"
        "{% endif %}" + CALLS + "{{ '<|im_end|>' }}"
    )
    if generation:
        marked = "{% generation %}" + body + "{% endgeneration %}"
        body = "{% if m.role == 'assistant' %}" + marked + "{% else %}" + body + "{% endif %}"
    return (
        start + "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + body + "{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


TEMPLATES = {
    "parts": _parts("", ""),
    "trim": _parts(" | trim", ""),
    "generation": _parts("", "", generation=True),
    # LLaVA 1.5's own: images first, then texts
    "first": (
        "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}"
        "{% endif %}{# Render all images first #}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
        "{{ 'MARKER\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
        "{% endfor %}{% else %}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    # templates of models for text: contents are strings
    "text": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}" + CALLS + "{{ '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # Idefics 3's own
    "idefics": (
        "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ 'MARKER' }}{% endif %}{% endfor %}<end_of_utterance>\n"
        "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    ),
}
LISTS = ("first", "idefics")
"""Templates that only take lists of parts."""


def template(kind: str, written: str) -> str:
    """Return a chat template that writes `written` for an image."""
    return TEMPLATES[kind].replace("MARKER", written if kind in LISTS else f"{{{{ '{written}' }}}}")


def texts_of(content: Any) -> list[str | None]:
    """Return the parts of a content: texts, and None for images."""
    if isinstance(content, str):
        return [content]
    return [part["text"] if part["type"] == "text" else None for part in content]


def pieces_of(
    kind: str, written: str, messages: Sequence[Message], roles: Collection[str]
) -> Iterator[tuple[str, bool]]:
    """Write messages as a template does, in plain Python; those of `roles` are trained."""
    if kind == "idefics":
        yield "<|im_start|>", False
    for message in messages:
        role, parts = message["role"], texts_of(message["content"])
        trained = role in roles
        calls = "".join(
            f"<call>{call['function']['name']}({json.dumps(call['function']['arguments'])})</call>"
            for call in message.get("tool_calls") or ()
        )
        if kind == "first":
            yield ("" if role == "system" else f"{role.upper()}: "), False
            yield f"{written}\n" * parts.count(None), False
            for text in parts:
                yield (f"{text} ", trained) if text is not None else ("", False)
            continue
        if kind == "idefics":
            yield f"{role.capitalize()}:{'' if parts[0] is None else ' '}", False
        else:
            yield f"<|im_start|>{role}\n", False
        for text in parts:
            said = text.strip() if kind == "trim" and text is not None else text
            yield written if said is None else said, trained
        yield calls + ("<end_of_utterance>" if kind == "idefics" else "<|im_end|>"), trained
        yield "\n", False


@dataclass
class Oracle:
    """What a processor's own call makes of rows, and what of it is trained: all of the messages of some roles."""

    family: str
    kind: str
    roles: Collection[str] = ("assistant",)
    processor: Any = field(init=False)

    def __post_init__(self) -> None:
        self.processor = FAMILIES[self.family]()
        self.written = self.processor.image_token if self.kind == "text" else written(self.family, self.processor)
        self.template = template(self.kind, self.written)

    def save(self, folder: Path) -> Path:
        """Write the processor's files with the template."""
        folder.mkdir(parents=True, exist_ok=True)
        save(self.processor, folder)
        (folder / "chat_template.jinja").write_text(self.template)
        return folder

    def text(self, messages: Sequence[Message]) -> str:
        """Render messages as transformers does."""
        given = [self._given(message) for message in messages]
        write = self.processor.tokenizer.apply_chat_template
        return str(write(given, chat_template=self.template, tokenize=False))

    def _given(self, message: Message) -> Message:
        parts = texts_of(message["content"])
        if self.kind == "text":
            content: Any = "".join(self.written if text is None else text for text in parts)
        elif isinstance(message["content"], str) and self.kind not in LISTS:
            content = message["content"]
        else:
            content = [{"type": "image"} if text is None else {"type": "text", "text": text} for text in parts]
        return {**message, "content": content}

    def row(self, messages: Sequence[Message], images: Sequence[Image.Image]) -> tuple[list[int], list[bool]]:
        """Return the token ids of a row, and which of them are trained."""
        pieces = list(pieces_of(self.kind, self.written, messages, self.roles))
        text = "".join(piece for piece, _ in pieces)
        assert text == self.text(messages)
        expanded, replaced = self._expanded(text, images)
        trained = np.repeat([flag for _, flag in pieces], [len(piece) for piece, _ in pieces])
        moved, at = list[np.ndarray](), 0
        for image in replaced:
            start, stop = image["span"]
            moved += [trained[at:start], np.zeros(len(image["replacement"]), bool)]
            at = stop
        flags = np.concatenate([*moved, trained[at:]])
        again = self.processor.tokenizer(expanded, add_special_tokens=False, return_offsets_mapping=True)
        return again["input_ids"], [bool(flags[start:stop].any()) for start, stop in again["offset_mapping"]]

    def _expanded(self, text: str, images: Sequence[Image.Image]) -> tuple[str, list[dict[str, Any]]]:
        """Return the text that the processor tokenizes, checked by the ids that it returns, and where images are."""
        replace, seen = type(self.processor).get_text_with_replacements, list[Any]()

        def noted(*given: Any, **named: Any) -> Any:
            seen.append(replace(self.processor, *given, **named))
            return seen[-1]

        self.processor.get_text_with_replacements = noted
        some = {"images": [list(images)]} if images else {}
        own = self.processor(text=[text], **some, add_special_tokens=False)
        texts, places = seen[0] if seen else ([text], [[]])
        assert self.processor.tokenizer(texts, add_special_tokens=False)["input_ids"][0] == list(own["input_ids"][0])
        return texts[0], places[0] if places else []


def written(family: str, processor: Any) -> str:
    """Return what a template of the family writes for an image."""
    return WRITTEN.get(family) or str(processor.image_token)


WORDS = ("What is this", "a cat", "Grüße", "two\nlines", "x = 1;", "the quick brown fox", "你好", "red, blue", "I see")
SPACES = ("", "", "", " ", "\n", "\n\n", "  ", "\t", " \n ")


def made_rows(
    count: int, seed: int, images: int, *, tools: bool = True, system: bool = True, answers: bool = True
) -> list[list[Message]]:
    """Make conversations with 0 to 6 images, named by numbers below `images`: at any place, adjacent, between empty
    texts and texts with white space around them."""
    draw = random.Random(seed)
    return [_made(draw, number, images, tools, system, answers) for number in range(count)]


def _made(draw: random.Random, number: int, images: int, tools: bool, system: bool, answers: bool) -> list[Message]:
    left = 0 if draw.random() < 0.15 else draw.randint(1, 6)

    def text(of: str, spaced: bool = True) -> str:
        words = " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))
        return f"{draw.choice(SPACES)}{words} {of}{draw.choice(SPACES)}" if spaced else f"{words} {of}"

    def content(of: str, most: int, listed: float = 0.2) -> Any:
        nonlocal left
        shown = min(left, draw.randint(0, most))
        left -= shown
        if not shown:
            said = text(of)
            return [{"type": "text", "text": said}] if draw.random() < listed else said
        parts: list[Message] = [
            {"type": "image", "path": f"pictures/{draw.randrange(images)}.png"} for _ in range(shown)
        ]
        for _ in range(draw.randint(0, 3)):
            said = "" if draw.random() < 0.2 else text(of)
            parts.insert(draw.randint(0, len(parts)), {"type": "text", "text": said})
        return parts

    messages: list[Message] = []
    if system and draw.random() < 0.3:
        messages.append({"role": "system", "content": content("s", 1)})
    turns = draw.randint(1, 3)
    for turn in range(turns):
        messages.append({"role": "user", "content": content(f"u{number}.{turn}", 4)})
        if tools and draw.random() < 0.25:
            call = {"name": "look", "arguments": {"at": turn, "of": "the picture"}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
                {"role": "tool", "content": content(f"t{number}", 2)},
            ]
        shown = 1 if answers and draw.random() < 0.15 else 0
        answer = content(f"a{number}.{turn}", shown)
        if isinstance(answer, list) and not any(part.get("text", "").strip() for part in answer):
            answer.append({"type": "text", "text": text("a", spaced=False)})
        messages.append({"role": "assistant", "content": answer})
    return messages


SIZES = (
    (1, 1),
    (1, 2),
    (28, 28),
    (37, 91),
    (64, 48),
    (300, 20),
    (56, 56),
    (113, 57),
    (224, 224),
    (300, 300),
    (800, 300),
)


def write_pictures(folder: Path, count: int, seed: int = 0, most: int = 300) -> dict[str, Image.Image]:
    """Write PNG files of many sizes; returns them by the paths that rows name."""
    draw, made = np.random.default_rng(seed), dict[str, Image.Image]()
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        size = SIZES[number] if number < len(SIZES) else (int(draw.integers(1, most)), int(draw.integers(1, most)))
        picture = Image.fromarray(draw.integers(0, 256, (size[1], size[0], 3), np.uint8))
        picture.save(folder / f"pictures/{number}.png", compress_level=1)
        made[f"pictures/{number}.png"] = picture
    return made


def paths_of(messages: Sequence[Message]) -> list[str]:
    return [
        part["path"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]


def write_yaml(folder: Path, data: str, processor: Path, name: str = "", **sections: Any) -> Path:
    """Write the YAML of a dataset; sections are merged into the defaults."""
    settings: dict[str, Any] = {
        "dataset": {"name": data},
        "tokenizer": {"processor": str(processor), "max_length": 100_000},
    }
    for section, given in sections.items():
        settings[section] = {**settings.get(section, {}), **given}
    path = folder / f"{name or Path(data).stem}.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    return path


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass
class Built:
    """A dataset in a store."""

    store: Path
    name: str
    reports: dict[str, StageReport]

    @classmethod
    def of(cls, config: Path, store: Path, workers: int = 1, size: ChunkSize = ONE_CHUNK) -> Built:
        return cls(store, config.stem, build(config, store, workers, size))

    def tables(self, stage: str) -> Iterator[tuple[ManifestChunk, pa.Table]]:
        store = ArtifactStore(self.store)
        for chunk in store.manifest(self.name, stage).chunks:
            yield chunk, store.objects.get(chunk.output)

    def rows(self, stage: str = "tokens") -> dict[int, dict[str, Any]]:
        """Return the rows of a stage by their number in the source."""
        return {row_number(chunk, row[ROW]): row for chunk, table in self.tables(stage) for row in table.to_pylist()}

    def ids(self) -> dict[int, tuple[list[int], list[bool]]]:
        """Return the ids of each row, and which of them are trained."""
        return {number: (row["input_ids"], trained_of(row)) for number, row in self.rows().items()}

    def rejects(self) -> dict[int, tuple[str, str, str]]:
        """Return the stage, code and message of each rejected row."""
        store = ArtifactStore(self.store)
        found: dict[int, tuple[str, str, str]] = {}
        for stage in self.reports:
            for chunk in store.manifest(self.name, stage).chunks:
                for row in store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else ():
                    found[row_number(chunk, row[ROW])] = (row["stage"], row["code"], row["message"])
        return found

    def digests(self) -> dict[str, str]:
        return {name: report.digest for name, report in self.reports.items()}


def row_number(chunk: ManifestChunk, position: int) -> int:
    place = chunk.place(position)
    return int(place.rpartition(" row ")[2]) if " row " in place else int(place.rpartition(":")[2]) - 1


def trained_of(row: dict[str, Any]) -> list[bool]:
    flags = [False] * len(row["input_ids"])
    for span in row["spans"]:
        flags[span["start"] : span["end"]] = [span["weight"] > 0] * (span["end"] - span["start"])
    return flags


def compared(
    oracle: Oracle, rows: Sequence[Sequence[Message]], pictures: dict[str, Image.Image], made: Built
) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """Compare all rows with the oracle; returns counts, and the rows that differ with what differs."""
    counts: dict[str, int] = {"rows": 0, "equal": 0, "labels": 0, "rejected": 0}
    ids, rejects, wrong = made.ids(), made.rejects(), list[tuple[int, str]]()
    for number, messages in enumerate(rows):
        counts["rows"] += 1
        if number in rejects:
            counts["rejected"] += 1
            assert number not in ids
            continue
        if number not in ids:
            wrong.append((number, "gone"))
            continue
        expected, trained = oracle.row(messages, [pictures[path] for path in paths_of(messages)])
        if ids[number][0] != expected:
            wrong.append((number, "ids"))
            continue
        counts["equal"] += 1
        if ids[number][1] != trained:
            wrong.append((number, "labels"))
            continue
        counts["labels"] += 1
    return counts, wrong
