"""tokenloom and TRL's trainers on the same rows of TRL's dataset types: cases and the differences allowed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trl
from transformers import PreTrainedTokenizerFast

from support import trl_trainers
from support.built_prompts import built
from support.small_tokenizers import byte_level
from support.trl_rows import TYPES, Texts
from support.trl_trainers import Row, Sequence

SHIPPED = Path(trl.__file__).parent / "chat_templates"
EOS, PAD = "<|im_end|>", "<|endoftext|>"
NO_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Writes contents alone: TRL uses no chat template for rows of text."""

AFTER_STOP = "line break after the stop"
REASONS = {
    AFTER_STOP: "The chat template writes a line break after the stop token. TRL trains everything after the prompt. "
    "tokenloom trains the answer and its stop, because inference ends there and never needs the line break.",
}
"""Why ids or labels differ, for every kind of difference that is allowed."""

Prepare = Callable[..., list[list[Sequence]]]


@dataclass(frozen=True)
class Case:
    """A dataset type with equal settings for both.

    Args:
        rows: name of the type in `trl_rows`.
        prepare: the trainer's preparation.
        prompt: the YAML's `prompt_template`.
        chat: name of a chat template that TRL ships, or the template; None for none.
        options: the trainer's options.
        differs: kinds of difference that occur, keys of REASONS.
        peer: name of the type of the same rows that TRL gets, if another one.
    """

    rows: str
    prepare: Prepare
    prompt: Row = field(default_factory=dict)
    chat: str | None = "qwen2_5_training"
    options: Row = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    peer: str = ""

    @property
    def template(self) -> str | None:
        return (
            (SHIPPED / f"{self.chat}.jinja").read_text(encoding="utf-8")
            if self.chat and "{" not in self.chat
            else self.chat
        )

    @property
    def trainer(self) -> str:
        return {"prompts": "GRPOTrainer"}.get(self.prepare.__name__, f"{self.prepare.__name__.upper()}Trainer")


ALL = {"train_on": "all"}
ASSISTANT = {"assistant_only_loss": True}
CHATS = "language modeling, conversational"
CASES = [
    Case("language modeling, standard", trl_trainers.sft, {"format_type": "text"}, None),
    Case(CHATS, trl_trainers.sft, ALL),
    Case(CHATS, trl_trainers.sft, {}, options=ASSISTANT),
    Case(CHATS, trl_trainers.sft, {}, "llama3_training", ASSISTANT),
    Case(f"{CHATS} with tools", trl_trainers.sft, {}, options=ASSISTANT),
    Case("prompt-completion, standard", trl_trainers.sft, {"format_type": "completion"}, None),
    Case("prompt-completion, conversational", trl_trainers.sft, {}, "qwen2_5", differs=(AFTER_STOP,)),
    Case("prompt-completion, conversational", trl_trainers.sft, ALL, "qwen2_5", {"completion_only_loss": False}),
    Case("prompt-only, standard", trl_trainers.prompts, {"format_type": "prompt_only"}, NO_TEMPLATE),
    Case("prompt-only, conversational", trl_trainers.prompts, {"format_type": "prompt_only"}),
    Case("preference, standard", trl_trainers.dpo, {}, NO_TEMPLATE),
    Case(
        "preference, standard, implicit prompt",
        trl_trainers.dpo,
        chat="qwen2_5",
        differs=(AFTER_STOP,),
        peer="preference, conversational, implicit prompt",
    ),
    Case("preference, conversational", trl_trainers.dpo, {}, "qwen2_5", differs=(AFTER_STOP,)),
    Case("preference, conversational, implicit prompt", trl_trainers.dpo, {}, "qwen2_5", differs=(AFTER_STOP,)),
    Case("unpaired preference, standard", trl_trainers.kto, {}, NO_TEMPLATE),
    Case("unpaired preference, conversational", trl_trainers.kto, {}, "qwen2_5", differs=(AFTER_STOP,)),
]


def save_tokenizer(folder: Path, real: Path | None) -> Path:
    """Save a tokenizer with ChatML's and Llama 3's control tokens: phi-2's with them added, or a small one."""
    tokens = {"bos_token": "<s>", "eos_token": EOS, "pad_token": PAD}
    control = [
        "<s>",
        EOS,
        PAD,
        "<|im_start|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    if real is None:
        folder.mkdir(parents=True)
        byte_level(control).save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(real / "tokenizers" / "phi-2" / "tokenizer.json"))
        tokenizer.add_special_tokens({**tokens, "additional_special_tokens": control})
        tokenizer.save_pretrained(folder)
    return folder


def ours(case: Case, path: Path, store: Path, tokenizer: Path) -> tuple[dict[int, list[Sequence]], dict[int, str]]:
    """Return tokenloom's sequences of each row, and the code and message of each reject."""
    build = built(
        path,
        store,
        "sequences",
        tokenizer={"name_or_path": str(tokenizer), "chat_template": case.template, "max_length": 1 << 20},
        prompt_template=case.prompt,
    )
    made: dict[int, list[Sequence]] = {}
    rejects: dict[int, str] = {}
    for stage in ("raw", "schema", "columns", "prompts", "tokens", "sequences"):
        for chunk in build.manifest(stage).chunks:
            rows = build.store.objects.get(chunk.rejects).to_pylist() if chunk.rejects else []
            rejects |= {row["_row"]: f"{row['code']}: {row['message']}" for row in rows}
    (chunk,) = build.manifest("sequences").chunks
    for row in build.store.objects.get(chunk.output).to_pylist():
        sides = [side for side in ("chosen_", "rejected_", "") if f"{side}input_ids" in row]
        made[row["rows"][0]] = [_sequence(row, side) for side in sides]
    return made, rejects


def _sequence(row: Mapping[str, Any], side: str) -> Sequence:
    ids, trained = np.array(row[f"{side}input_ids"], np.int64), np.array(row[f"{side}trained"], bool)
    return ids.tolist(), np.where(trained, ids, -100).tolist()


def difference(own: Sequence, other: Sequence, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the kind of difference between tokenloom's and TRL's sequence, "" for none."""
    if own[0] != other[0]:
        return "ids"
    ids, ours, theirs = np.array(own[0]), np.array(own[1]) != -100, np.array(other[1]) != -100
    places = np.flatnonzero(ours != theirs)
    if not len(places):
        return ""
    stops = {tokenizer.vocab.get(token) for token in (EOS, "<|eot_id|>")}
    if all(
        theirs[at] and ids[at - 1] in stops and ours[at - 1] and not str(tokenizer.decode([ids[at]])).strip()
        for at in places
    ):
        return AFTER_STOP
    return "labels"


def compare(
    case: Case, texts: Texts, folder: Path, tokenizer: Path, count: int | None = None
) -> tuple[int, Counter[str], list[str]]:
    """Return the number of rows, how many differ by kind of difference, and the differences that are not allowed."""
    rows = TYPES[case.rows](texts)[:count]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    loaded.chat_template = case.template
    made, rejects = ours(case, path, folder / "store", tokenizer)
    peers = case.prepare(TYPES[case.peer or case.rows](texts)[:count], loaded, folder / "trl", **case.options)
    assert len(peers) == len(rows)
    kinds: Counter[str] = Counter()
    wrong = []
    for number, peer in enumerate(peers):
        found = {difference(own, other, loaded) for own, other in zip(made.get(number, []), peer, strict=False)}
        found = found - {""} if number in made else {f"rejected, {rejects.get(number)}"}
        kinds.update(found)
        wrong += [f"{number}: {kind}" for kind in found - {*case.differs}]
    return len(rows), kinds, wrong
