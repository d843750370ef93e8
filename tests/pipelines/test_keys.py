"""Every setting of the YAML, changed: which stages then compute anything; a setting without an entry fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.datasets_on_disk import PROMPT, TEMPLATE, rows
from support.image_rows import Oracle, write_pictures
from tokenloom.assets.building.build import Build
from tokenloom.assets.building.chain import stage_named
from tokenloom.assets.stage.definition import ChunkSize
from tokenloom.assets.stage.names import stages_of
from tokenloom.config import PipelineConfig, Section
from tokenloom.config.yaml_file import section_of
from tokenloom.errors import ConfigError
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore

SMALL = ChunkSize(target=2_000, maximum=8_000)
COUNT = 60
CHAT = (
    "{% if tools %}{{ '<|im_start|>' + tools | tojson + '<|im_end|>\n' }}{% endif %}{{ date_string or '' }}"
    "{{ tone or '' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}

NOTHING: frozenset[str] = frozenset()
TEXTS = frozenset({"prompts", "tokens", "sequences"})
ROWS = frozenset({"raw", "schema", "columns"}) | TEXTS
IDS = frozenset({"tokenizer", "tokens", "sequences"})
REFUSED = frozenset({"refused, because it has no effect"})


@dataclass(frozen=True)
class Case:
    """A setting changed: what it becomes, and the stages that compute then.

    Args:
        kind: the dataset that it is changed in.
        base: further settings, before and after.
    """

    setting: str
    value: Any
    computed: frozenset[str]
    kind: str = "fields"
    base: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        told = json.dumps(self.value, ensure_ascii=False)
        return f"{self.kind}: {self.setting}={told[:20]}"


CARD = """---
configs:
- {config_name: first, data_files: train.jsonl, default: true}
- {config_name: second, data_files: other.jsonl}
---
"""
EVALUATED = {"decontaminate.against": ["shots.jsonl"]}
SHOTS = {"prompt_template.few_shot.count": 2}
SPLIT, SMART, RIGHT = (
    {"length.strategy": name, "tokenizer.max_length": 200} for name in ("split", "smart", "truncate_right")
)

TRAINING: dict[str, Any] = {
    "model": "a/b",
    "output_dir": "run",
    "batch_size": 2,
    "token_budget": 64,
    "gradient_accumulation_steps": 2,
    "epochs": 2.0,
    "steps": 3,
    "learning_rate": 0.1,
    "optimizer": "lion",
    "optimizer_args": {"betas": [0.9, 0.95]},
    "weight_decay": 0.1,
    "max_grad_norm": 2.0,
    "scheduler": "cosine",
    "warmup": 0.1,
    "loss": "fused_linear_cross_entropy",
    "z_loss": 0.1,
    "label_smoothing": 0.1,
    "precision": "bf16",
    "attention": "sdpa",
    "gradient_checkpointing": True,
    "strategy": "fsdp",
    "lora.r": 8,
    "lora.alpha": 8,
    "lora.dropout": 0.1,
    "lora.target_modules": ["q_proj"],
    "save_steps": 2,
    "save_total_limit": 2,
    "eval_steps": 2,
    "logging_steps": 2,
    "spike_threshold": 3.0,
    "peak_tflops": 100.0,
    "report_to": ["wandb"],
    "random_seed": 3,
}
"""Settings of training, none of which changes what is built."""

CLEAN = frozenset({"decontaminate"})

CASES = [
    Case("type", "data_module", NOTHING),
    Case("version", "1.0", NOTHING),
    Case("name", "other", NOTHING),
    Case("dataset.name", "renamed.jsonl", NOTHING),
    Case("dataset.config", "first", NOTHING, "folder"),
    Case("dataset.config", "second", ROWS, "folder"),
    Case("dataset.config", "other", REFUSED),
    Case("dataset.revision", "main", REFUSED),
    Case("dataset.splits", ["train"], NOTHING),
    Case("dataset.splits", ["train"], NOTHING, "saved"),
    Case("dataset.val_split", 0.3, ROWS),
    Case("dataset.max_rows", COUNT - 10, ROWS),
    Case("dataset.max_rows", 10**6, NOTHING),
    Case("dataset.fraction", 0.5, ROWS),
    Case("dataset.token_columns", ["a"], REFUSED),
    Case("dataset.reader.dtype", "uint16", REFUSED),
    Case("dataset.reader.eos_id", 0, REFUSED),
    Case("dataset.format", "jsonl", NOTHING),
    Case("dataset.format", "tsv", ROWS, "csv"),
    Case("dataset.encoding", "utf-8", NOTHING),
    Case("dataset.encoding", "latin-1", ROWS),
    Case("dataset.reader.header", True, ROWS, "csv"),
    Case("dataset.reader.header", True, REFUSED),
    Case("dataset.reader.delimiter", ",", NOTHING, "csv"),
    Case("dataset.reader.delimiter", "|", ROWS, "csv"),
    Case("dataset.reader.quote", "none", frozenset({"raw"}), "csv"),
    Case("dataset.reader.escape", "none", NOTHING, "csv"),
    Case("dataset.reader.max_record_bytes", 1 << 20, NOTHING),
    Case("dataset.reader.lines_per_row", "paragraph", ROWS, "text"),
    Case("dataset.reader.lines_per_row", "paragraph", REFUSED, "csv"),
    Case("dataset.reader.root", "a[]", NOTHING, "nested"),
    Case("dataset.reader.root", "b[]", ROWS, "nested"),
    Case("dataset.struct_nulls", "omit", NOTHING),
    Case("dataset.struct_nulls", "keep", frozenset({"columns"}), "saved"),
    Case("dataset.streaming", True, NOTHING),
    Case("dataset.columns", ["instruction", "input", "output"], frozenset({"raw", "schema", "columns"})),
    Case("dataset.column_mapping", {"instruction": "id"}, frozenset({"columns"}) | TEXTS),
    Case("dataset.media.folder", "copied", NOTHING, "pictures"),
    Case("dataset.media.folder", "others", frozenset({"media"}) | TEXTS, "pictures"),
    Case("dataset.media.allow_urls", ["example.org"], NOTHING, "pictures"),
    Case("dataset.media.max_pixels", 1_000_000, frozenset({"media"}), "pictures"),
    Case("dataset.keep_columns", ["id", "output"], NOTHING),
    Case("dataset.filters", ["len(output) > 40"], ROWS),
    Case("tokenizer.name_or_path", "copy", NOTHING),
    Case("tokenizer.name_or_path", "bos", IDS),
    Case("tokenizer.processor", "same", NOTHING, "pictures"),
    Case("tokenizer.processor", "larger", IDS, "pictures"),
    Case("tokenizer.train.vocab_size", 350, IDS, "train"),
    Case("tokenizer.train.min_frequency", 40, IDS, "train"),
    Case("tokenizer.max_length", 100, frozenset({"sequences"})),
    Case("tokenizer.padding", "longest", NOTHING),
    Case("tokenizer.padding_side", "left", NOTHING),
    Case("tokenizer.special_tokens.bos", "<|im_start|>", frozenset({"tokenizer"})),
    Case("tokenizer.special_tokens.eos", "<|eot_id|>", TEXTS | {"tokenizer"}),
    Case("tokenizer.special_tokens.pad", "<|eot_id|>", frozenset({"tokenizer"})),
    Case("tokenizer.special_tokens.unk", "<|eot_id|>", frozenset({"tokenizer"})),
    Case("tokenizer.special_tokens.additional", ["the"], frozenset({"prompts", "tokens"})),
    Case("tokenizer.chat_template", CHAT, frozenset({"tokenizer"})),
    Case("tokenizer.chat_template", CHAT.replace("role", "role|upper"), TEXTS | {"tokenizer"}, "chat"),
    Case("tokenizer.control_tokens_in_content", "keep", frozenset({"tokens", "sequences"})),
    Case("prompt_template.format_type", "chat", frozenset({"prompts"}), "chat"),
    Case("prompt_template.template", f"# {TEMPLATE}", TEXTS),
    Case("prompt_template.input_columns", ["instruction", "input"], NOTHING),
    Case("prompt_template.label_column", "instruction", TEXTS | {"columns"}),
    Case("prompt_template.system", "Be brief.", NOTHING),
    Case("prompt_template.system", "Be brief.", TEXTS, "chat"),
    Case("prompt_template.few_shot.count", 2, TEXTS),
    Case("prompt_template.few_shot.source", "shots.jsonl", NOTHING),
    Case("prompt_template.few_shot.source", "shots.jsonl", TEXTS, base=SHOTS),
    Case("prompt_template.few_shot.seed", 2, NOTHING),
    Case("prompt_template.few_shot.seed", 2, TEXTS, base=SHOTS),
    Case("prompt_template.tools", [TOOL], TEXTS, "chat"),
    Case("prompt_template.template_kwargs", {"tone": "dry"}, TEXTS, "chat"),
    Case("prompt_template.train_ranges", "train_detail", REFUSED),
    Case("prompt_template.turns", "exact", frozenset({"prompts"}), "chat"),
    Case("prompt_template.train_on", "all", TEXTS),
    Case("prompt_template.train_on", "last", frozenset({"prompts"}), "chat"),
    Case("prompt_template.add_bos", True, TEXTS),
    Case("prompt_template.add_eos", False, TEXTS),
    Case("prompt_template.date_string", "today", NOTHING),
    Case("prompt_template.date_string", "today", TEXTS, "chat"),
    Case("length.strategy", "truncate_left", frozenset({"sequences"})),
    Case("length.strategy", "smart", NOTHING),
    Case("length.give_up", ["input"], NOTHING, base=RIGHT),
    Case("length.keep", "end", NOTHING, base=RIGHT),
    Case("length.keep", "end", frozenset({"sequences"}), base=SMART),
    Case("length.give_up", ["input"], frozenset({"sequences"}), base=SMART),
    Case("length.stride", 8, frozenset({"sequences"}), base=SPLIT),
    Case("length.packing", "best_fit", frozenset({"sequences"})),
    Case("length.document_multiple", 8, frozenset({"sequences"})),
    Case("length.media_budget", 100, frozenset({"sequences"}), "pictures", base={"length.packing": "best_fit"}),
    Case("validation.max_reject_fraction", 0.5, NOTHING),
    Case("validation.max_unstopped_fraction", 0.5, NOTHING),
    Case("validation.drift.length", 0.5, NOTHING),
    Case("validation.drift.trained", 0.5, NOTHING),
    Case("dataloader.batch_size", 3, NOTHING),
    Case("dataloader.token_budget", 4096, NOTHING),
    Case("dataloader.num_workers", 1, NOTHING),
    Case("dataloader.shuffle", "none", NOTHING),
    Case("dataloader.seed", 1, NOTHING),
    Case("dataloader.drop_last", True, NOTHING),
    Case("dataloader.pin_memory", True, NOTHING),
    Case("dataloader.prefetch_factor", 3, NOTHING),
    Case("dataloader.persistent_workers", True, NOTHING),
    Case("mixture", None, NOTHING),
    Case("compute.engine", "ray", NOTHING),
    Case("compute.workers", 3, NOTHING),
    Case("compute.address", "auto", NOTHING),
    Case("schedule.cron", "0 3 * * *", NOTHING),
    Case("schedule.timezone", "Europe/Berlin", NOTHING, base={"schedule.cron": "0 3 * * *"}),
    Case("dagster.owners", ["team:text"], NOTHING),
    Case("dagster.tags", {"team": "text"}, NOTHING),
    Case("dagster.deps", ["crawl/pages"], NOTHING),
    Case("dagster.group", "text", NOTHING),
    Case("dagster.freshness.fail", "24h", NOTHING),
    Case("dagster.freshness.warn", "12h", NOTHING, base={"dagster.freshness.fail": "24h"}),
    Case("dagster.observe", "0 * * * *", NOTHING),
    Case("keep", "sequences", NOTHING),
    *(Case(f"training.{name}", value, NOTHING) for name, value in TRAINING.items()),
    Case("training.decay", 0.2, NOTHING, base={"training.scheduler": "wsd"}),
    Case("training.min_lr_ratio", 0.1, NOTHING, base={"training.scheduler": "cosine"}),
    Case("training.early_stopping_patience", 2, NOTHING, base={"training.eval_steps": 2}),
    Case("training.eval_samples", 1, NOTHING, base={"training.eval_steps": 2}),
    Case("training.beta", 0.2, NOTHING, base={"training.loss": "dpo"}),
    Case("decontaminate.against", ["shots.jsonl"], CLEAN),
    Case("decontaminate.against", ["folder/other.jsonl"], CLEAN, base=EVALUATED),
    Case("dedup.exact", "prompt", frozenset({"fingerprints"}), base={"dedup.exact": "row"}),
    Case("dedup.against", [], NOTHING, base={"dedup.exact": "row"}),
    Case("dedup.near.threshold", 0.79, NOTHING, base={"dedup.near.threshold": 0.8}),
    Case("dedup.near.threshold", 0.9, frozenset({"fingerprints"}), base={"dedup.near.threshold": 0.8}),
    Case("dedup.near.ngram_size", 4, frozenset({"fingerprints"}), base={"dedup.near.ngram_size": 5}),
    Case("dedup.near.num_perm", 64, frozenset({"fingerprints"}), base={"dedup.near.num_perm": 128}),
    Case("decontaminate.ngram_size", 9, CLEAN, base=EVALUATED),
    Case("decontaminate.threshold", 0.6, CLEAN, base=EVALUATED),
    Case("decontaminate.search", "prompt", CLEAN, base=EVALUATED),
    Case("decontaminate.action", "report", CLEAN, base=EVALUATED),
    Case("decontaminate.ignore", ["shots:1"], CLEAN, base=EVALUATED),
]


def settings_of(model: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for name, found in model.model_fields.items():
        inner = None if "tuple" in str(found.annotation) else section_of(found.annotation)
        if inner is None:
            yield f"{prefix}{name}"
        else:
            yield from settings_of(inner, f"{prefix}{name}.")


def test_every_setting_has_an_entry() -> None:
    assert {case.setting for case in CASES} == set(settings_of(PipelineConfig))


class Datasets:
    """Small datasets of each kind, built once each, and copied for each change."""

    def __init__(self, folder: Path, tokenizer: Path, other: Path):
        self.folder, self.tokenizer, self.other = folder, tokenizer, other
        self._built: set[str] = set()

    def settings(self, kind: str) -> dict[str, Any]:
        tokenizer = {"name_or_path": "../tokenizer", "max_length": 1024}
        named = {
            "fields": ("small.jsonl", PROMPT),
            "train": ("small.jsonl", PROMPT),
            "saved": ("saved", PROMPT),
            "folder": ("folder", PROMPT),
            "chat": ("talks.jsonl", {}),
            "csv": ("small.csv", {"format_type": "text"}),
            "text": ("small.txt", {"format_type": "text"}),
            "nested": ("nested.json", {"format_type": "text"}),
            "pictures": ("shown.jsonl", {}),
        }
        name, prompt = named[kind]
        dataset: dict[str, Any] = {"name": name}
        if kind == "csv":
            dataset |= {"reader": {"header": False}, "column_mapping": {"text": "column_0"}}
        if kind == "nested":
            dataset |= {"reader": {"root": "a[]"}}
        if kind == "pictures":
            tokenizer = {"processor": "../processor", "max_length": 1024}
        if kind == "chat":
            tokenizer |= {"chat_template": CHAT}
        if kind == "train":
            tokenizer = {"train": {"vocab_size": 420, "min_frequency": 2}, "special_tokens": {"eos": "</s>"}}
        return {"dataset": dataset, "tokenizer": tokenizer, "prompt_template": {**prompt}}

    def write(self, folder: Path) -> None:
        """All data files."""
        folder.mkdir(parents=True)
        found = [{"id": f"n{number}", **row} for number, row in enumerate(rows(COUNT))]
        found = [{**row, "output": f"{row['output']} </s> of the end"} for row in found]
        for name, some in (("small", found), ("renamed", found), ("shots", rows(5, seed=7))):
            (folder / f"{name}.jsonl").write_text(_lines(some))
        (folder / "folder").mkdir()
        for name, some in (("train", found), ("other", rows(COUNT, seed=5))):
            (folder / "folder" / f"{name}.jsonl").write_text(_lines(some))
        (folder / "folder" / "README.md").write_text(CARD)
        talks = [[_said("user", row["instruction"]), _said("assistant", row["output"])] for row in found]
        (folder / "talks.jsonl").write_text(_lines([{"messages": talk} for talk in talks]))
        cells = [f"{row['output']},{row['instruction']}|{number}" for number, row in enumerate(found)]
        (folder / "small.csv").write_text("\n".join(["column_0,column_1|2", *cells]))
        texts = [row["output"] + "\n" * (1 + (number % 3 == 0)) for number, row in enumerate(found)]
        (folder / "small.txt").write_text("".join(texts))
        shown = [[{**asked, "content": f"<image>{asked['content']}"}, answer] for asked, answer in talks]
        images = [[f"pictures/{number % 4}.png"] for number in range(COUNT)]
        pairs = zip(shown, images, strict=True)
        (folder / "shown.jsonl").write_text(_lines([{"messages": talk, "images": named} for talk, named in pairs]))
        nested = [{"text": row["output"]} for row in found]
        (folder / "nested.json").write_text(json.dumps({"a": nested, "b": nested[::-1]}, ensure_ascii=False))

    def draw(self, folder: Path) -> None:
        """Images, and processors of them."""
        for name, seed in (("", 0), ("copied", 0), ("others", 1)):
            write_pictures(folder / "data" / name, 4, seed)
        for name in ("processor", "same"):
            Oracle("qwen2_vl", "parts").save(folder / name)
        shutil.copytree(folder / "processor", folder / "larger")
        found = json.loads((folder / "larger" / "processor_config.json").read_text())
        found["image_processor"]["size"]["shortest_edge"] *= 4
        (folder / "larger" / "processor_config.json").write_text(json.dumps(found))

    def save(self, folder: Path) -> None:
        import datasets

        splits = {"train": rows(COUNT), "test": rows(COUNT, seed=1)}
        made: Any = {name: datasets.Dataset.from_list(some) for name, some in splits.items()}
        datasets.DatasetDict(made).save_to_disk(str(folder / "saved"))

    def build(self, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
        path = folder / "data" / "data.yaml"
        path.write_text(yaml.safe_dump(settings))
        build = Build(PipelineConfig.from_file(path), ArtifactStore(folder / "store"), ComputeEngine(1), None, SMALL)
        return {report.name: report for report in build.run_all()}

    def built(self, kind: str, base: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
        """The folder of a dataset that is built, and its settings."""
        settings = self.settings(kind)
        for name, value in base.items():
            _set(settings, name, value)
        name = f"{kind}{'-'.join(f'{name}={value}' for name, value in base.items())}"
        folder = self.folder / name
        if name not in self._built:
            self.write(folder / "data")
            if kind == "pictures":
                self.draw(folder)
            if kind == "saved":
                self.save(folder / "data")
            for other, source in (("tokenizer", self.tokenizer), ("copy", self.tokenizer), ("bos", self.other)):
                shutil.copytree(source, folder / other)
            self.build(folder, settings)
            self._built.add(name)
        return folder, settings


def _lines(found: list[Any]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _set(settings: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[last] = value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Datasets:
    other = tmp_path_factory.mktemp("other") / "other"
    shutil.copytree(tokenizer_folder, other)
    found = json.loads((other / "tokenizer.json").read_text())
    found["model"]["merges"] = found["model"]["merges"][:-100]
    (other / "tokenizer.json").write_text(json.dumps(found))
    return Datasets(tmp_path_factory.mktemp("keys"), tokenizer_folder, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_changed_setting_computes_the_stages_that_read_it(made: Datasets, case: Case, tmp_path: Path) -> None:
    folder, settings = made.built(case.kind, case.base)
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy)
    value = f"../{case.value}" if case.setting in ("tokenizer.name_or_path", "tokenizer.processor") else case.value
    _set(settings, case.setting, value)
    if case.computed == REFUSED:
        with pytest.raises(ConfigError, match=f"{case.setting}: has no effect"):
            made.build(tmp_path / "copy", settings)
        return
    done = made.build(tmp_path / "copy", settings)
    assert {name for name, one in done.items() if one.chunks_reused < one.chunks} == case.computed
    assert done["raw"].chunks > 2


def test_what_keys_hold_is_named_as_in_the_yaml(made: Datasets) -> None:
    names = set(settings_of(PipelineConfig)) | {"dataset.reader", "tokenizer.train"}
    for kind in ("fields", "chat", "train", "pictures"):
        config = PipelineConfig.from_mapping(
            {**made.settings(kind), "decontaminate": {"against": ["shots.jsonl"]}, "dedup": {}}
        )
        for stage in map(stage_named, stages_of(config)):
            held = {*stage.read(config, "keys", "chunks", "chat")} - {"unicode"}
            assert held <= names, stage.name
            assert held <= set(stage.read(config)), stage.name
