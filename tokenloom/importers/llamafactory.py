"""Reads a training configuration of LLaMA-Factory and its `dataset_info.json`.

After `hparams/data_args.py`, `data/parser.py`, `data/converter.py` and `data/template.py` of LLaMA-Factory 0.9.5.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenloom.config.yaml_file import LARGEST_FILE, read_small_text
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.importers.sheet import (
    Keys,
    Sheet,
    note_field,
    note_speakers,
    set_split,
    set_tokenizer,
    set_validation_fraction,
    table,
)

INFO = "dataset_info.json"

ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "messages": "conversations"}
"""Columns where an entry names none."""

_ROLES = {"user": "user", "assistant": "assistant", "observation": "tool", "function": "assistant", "system": "system"}


def read(keys: Keys, folder: Path, info: Path | None = None) -> list[Sheet]:
    """Return one sheet per dataset.

    Args:
        info: `dataset_info.json`; default: in `dataset_dir`, or next to the file.

    Raises:
        ConfigError: a key holds something else than LLaMA-Factory reads, or has no counterpart.
    """
    base = Sheet("", folder)
    set_tokenizer(keys, base, "model_name_or_path", "model_name_or_path")
    if more := keys.texts("add_special_tokens") + keys.texts("add_tokens"):
        tokens = [token.strip() for each in more for token in each.split(",")]
        base.set("tokenizer.special_tokens.additional", tokens, keys, "add_special_tokens")
        keys.note("taken", "add_tokens", "tokenizer.special_tokens.additional")
    base.take(keys, "top")
    base.take(keys, "loader")
    stage, form = keys.get("stage", str, default="sft"), base.get("prompt_template.format_type")
    _set_length(keys, base, stage)
    if stage == "sft":
        base.take(keys, "sft")
    if stage != "pt":
        _set_template(keys, base)
    else:
        base.take(keys, "pt")
    if "dataset" not in keys:
        raise keys.refuse("dataset", "missing; it names the datasets, separated by commas")
    entries = _info(keys, info)
    sheets: list[Sheet] = []
    for key in ("dataset", "eval_dataset"):
        for name in (part.strip() for text in keys.texts(key) for part in text.split(",")):
            sheets.append(_dataset(name, key, keys, base, entries, stage, form))
            sheets[-1].evaluation = key == "eval_dataset"
        keys.note("taken", key, "dataset.name")
    set_validation_fraction(keys, sheets, "val_size")
    base.take(keys, "listed")
    return sheets


def mixture(keys: Keys, sheets: Sequence[Sheet]) -> tuple[list[float] | None, str, str]:
    """Return the weights of the datasets, or None for their sizes, the key that says so, and what differs."""
    strategy = keys.get("mix_strategy", str, default="concat")
    if strategy == "concat":
        return None, "mix_strategy", ""
    given = keys.get("interleave_probs", str, default="")
    try:
        found = [float(part) for part in given.split(",")] if given else [1.0] * len(sheets)
    except ValueError:
        raise keys.refuse("interleave_probs", "expected numbers separated by commas") from None
    if len(found) != len(sheets):
        raise keys.refuse("interleave_probs", f"{len(found)} numbers for {len(sheets)} datasets")
    return found, "mix_strategy", "shares are exact in every window; an epoch is as long as all datasets together"


def _info(keys: Keys, info: Path | None) -> tuple[Path, Keys] | None:
    """Return the folder of `dataset_info.json` and its entries; None if names are hub ids."""
    given = keys.get("dataset_dir", str, default="data")
    if given == "ONLINE":
        return None
    if given.startswith("REMOTE:"):
        raise keys.refuse("dataset_dir", f"{INFO} of the hub is not read; download it, and use --dataset-info")
    candidates = [info] if info else [Path(given) / INFO, keys.path.parent / given / INFO, keys.path.parent / INFO]
    path = next((each for each in candidates if each.is_file()), candidates[0])
    try:
        read = json.loads(read_small_text(path, LARGEST_FILE))
    except FileNotFoundError:
        raise keys.refuse("dataset_dir", f"no {INFO} at {path}; name it with --dataset-info") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not valid JSON"
        raise ConfigError.at(str(path), f"cannot be read: {reason}") from None
    if not isinstance(read, dict) or not all(isinstance(entry, dict) for entry in read.values()):
        raise ConfigError.at(str(path), "expected an object with one entry per dataset")
    return path.parent, Keys(read, path, keys.report, None)


def _set_length(keys: Keys, sheet: Sheet, stage: str) -> None:
    neat, packing = keys.get("neat_packing", bool), keys.get("packing", bool)
    cutoff, why = keys.get("cutoff_len", int, default=2048), ""
    if packing or neat:
        cutoff, why = cutoff - 1, "LLaMA-Factory packs into one token less"
    sheet.set("tokenizer.max_length", cutoff, keys, "cutoff_len", why)
    sheet.take(keys, "padding")
    sheet.take(keys, "long_texts" if stage == "pt" else "long_rows")
    if stage == "pt" and packing is not False:
        sheet.take(keys, "joined_texts")
    if stage == "sft" and (packing or neat):
        sheet.take(keys, "neat_packing" if neat else "packing")
    sheet.take(keys, "packed")


def _set_template(keys: Keys, sheet: Sheet) -> None:
    """Set the chat template. LLaMA-Factory writes its templates itself; most are those of the models."""
    name, known = keys.get("template", str), table("llamafactory")
    facts, rules = known["templates"], known["rules"]
    sheet.take(keys, "chat")
    if name is None or name in facts["thoughts"]["names"].split():
        sheet.take(keys, "thoughts")
    keys.note("elsewhere", "enable_thinking", f"not needed: {name} writes no thoughts of its own")
    written = f"template.{name}" in rules
    sheet.take(keys, "no_template" if name is None else f"template.{name}" if written else "other_template")
    if f"system.{name}" in rules and "default_system" not in keys:
        sheet.take(keys, f"system.{name}")
    keys.warn("template", "each message is tokenized by itself there: a token can differ where an answer begins")
    for fact, rule in facts.items():
        if name in rule["names"].split() and not (fact == "systems" and "default_system" in keys):
            keys.warn("template", rule["says"])


def _dataset(
    name: str, key: str, keys: Keys, base: Sheet, entries: tuple[Path, Keys] | None, stage: str, form: str
) -> Sheet:
    """Return the sheet of a name in `dataset`."""
    sheet = base.copy(name.rpartition("/")[2])
    if entries is None:
        sheet.set("dataset.name", name, keys, key)
        entry = Keys({}, keys.path, keys.report, keys.origin)
    else:
        folder, listed = entries
        if name not in listed:
            raise keys.refuse(key, f"{INFO} has no {name!r}{did_you_mean(name, listed.settings)}")
        entry = listed.section(name)
        _set_source(entry, sheet, folder)
    if "hf_hub_url" in entry or "split" in entry or entries is None:
        set_split(entry, sheet, "split", "train")
    if "hf_hub_url" in entry:
        sheet.take(entry, "entry")
    if rows := entry.get("num_samples", int):
        sheet.set("dataset.max_rows", min(rows, sheet.get("dataset.max_rows") or rows), entry, "num_samples")
        entry.warn("num_samples", "as many rows, but the first ones, not a random choice")
    if entry.get("ranking", bool, default=False) != (form == "preference"):
        raise entry.refuse("ranking", f"does not fit stage: {stage}")
    entry.note("taken", "ranking", "prompt_template.format_type")
    _set_columns(entry, sheet, stage, form)
    if sheet.get("dataset.column_mapping.images"):
        sheet.settings["tokenizer.processor"] = sheet.settings.pop("tokenizer.name_or_path")
    entry.rest("of a file")
    return sheet


def _set_source(entry: Keys, sheet: Sheet, folder: Path) -> None:
    if "hf_hub_url" in entry:
        name = entry.get("hf_hub_url", str)
        if "folder" in entry:
            name = f"hf://datasets/{name}/{entry.get('folder', str)}/"
            entry.note("taken", "folder", "dataset.name")
        sheet.set("dataset.name", name, entry, "hf_hub_url")
    elif "cloud_file_name" in entry:
        sheet.set("dataset.name", entry.get("cloud_file_name", str), entry, "cloud_file_name")
    elif "file_name" in entry:
        path = folder / entry.get("file_name", str)
        sheet.set_address("dataset.name", path.as_posix(), entry, "file_name")
    else:
        named = next((name for name in ("ms_hub_url", "om_hub_url", "script_url") if name in entry), "file_name")
        text = "only files and datasets of Hugging Face's hub are read; download it, and set file_name"
        raise entry.refuse(named, text)
    used = sheet.settings["dataset.name"].key
    for other in ("ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name"):
        if other != used:
            entry.note("elsewhere", other, f"not used: {used} comes first")


def _set_columns(entry: Keys, sheet: Sheet, stage: str, form: str) -> None:
    """Map the columns of an entry to the roles of the form."""
    given = entry.section("columns")
    names = {name: given.get(name, str) for name in given.settings} if given.settings else dict(ALPACA)
    shared = entry.get("formatting", str, default="alpaca") in ("sharegpt", "openai")
    sheet.take(entry, "form")
    # LLaMA-Factory joins prompt and query by a line break, but only where a row has both.
    prompt, query = names.get("prompt"), names.get("query")
    asked = f"{{{_quoted(prompt)}}}{{{_quoted(query)}:next_line}}" if prompt and query else prompt or query
    mapping: dict[str, tuple[str | None, str]] = {}
    if stage == "pt":
        mapping["text"] = asked, "prompt"
    elif shared:
        role = {"preference": "prompt", "kto": "completion"}.get(form, "messages")
        mapping[role] = names.get("messages") or "conversations", "messages"
        text = "conversations that do not alternate, or do not end as the stage needs, are skipped there, and read here"
        entry.warn("formatting", text)
    else:
        mapping |= {"prompt": (asked, "prompt"), "history": (names.get("history"), "history")}
        if form in ("chat", "kto"):
            mapping["completion"] = names.get("response"), "response"
    if form == "preference":
        mapping |= {role: (names.get(role), role) for role in ("chosen", "rejected")}
    if stage == "kto":
        mapping["label"] = names.get("kto_tag"), "kto_tag"
    if stage != "pt":
        tools = names.get("tools")
        mapping["system"] = names.get("system"), "system"
        mapping["tools"] = f"{{{_quoted(tools)}:functions}}" if tools else None, "tools"
    mapping["images"] = names.get("images"), "images"
    for role, (column, key) in mapping.items():
        if column:
            sheet.set(f"dataset.column_mapping.{role}", column, given, key)
    if asked and query and not shared:
        given.note("taken", "query", f"dataset.column_mapping.{'text' if stage == 'pt' else 'prompt'}")
    sheet.take(given, "columns")
    given.rest(f"with stage: {stage} and this formatting")
    tags = entry.section("tags")
    for name in ("role", "content"):
        note_field(tags, f"{name}_tag", name)
    for name, role in _ROLES.items():
        if speaker := tags.get(f"{name}_tag", str):
            note_speakers(tags, f"{name}_tag", role, [speaker])
    tags.rest()


def _quoted(column: str) -> str:
    """Return a column's name as a path in a text with placeholders."""
    return column if column.replace("_", "").replace("-", "").replace(" ", "").isalnum() else f"`{column}`"
