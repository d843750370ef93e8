"""Reads the YAML of a TRL script, and recipes of alignment-handbook and open-r1, which extend TRL's arguments.

After `scripts/utils.py` and the trainers' configurations of TRL 1.16, and `configs.py` of both recipe collections.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError
from tokenloom.importers.sheet import Keys, Sheet, label_of, set_split, set_tokenizer, set_validation_fraction, table

_OPTIONAL = {"tools": "tools?", "template_kwargs": "chat_template_kwargs?"}


def read(keys: Keys, folder: Path) -> list[Sheet]:
    """Return one sheet per dataset.

    Raises:
        ConfigError: a key holds something else than TRL reads, or has no counterpart.
    """
    base = Sheet("", folder)
    set_tokenizer(keys, base, "model_name_or_path", "tokenizer_name_or_path")
    kind, mark = _kind(keys)
    if mark:
        base.set("prompt_template.format_type", kind, keys, mark, "which only such a run has")
    base.take(keys, "top")
    base.take(keys, "loader")
    _set_template(keys, base)
    _set_length(keys, base, kind)
    if kind == "prompt_only":
        _set_prompts_per_batch(keys, base)
    sheets = _datasets(keys, base)
    for sheet in sheets:
        _set_rows(keys, sheet, kind)
    return sheets


def mixture(keys: Keys, sheets: Sequence[Sheet]) -> tuple[list[float] | None, str, str]:
    """Return the weights of the datasets in rows, or None for their sizes, and the key that lists the datasets."""
    # A dataset has no setting `fraction`: `_datasets` keeps it in the sheet for the mixture.
    given = [sheet.settings.pop("fraction", None) for sheet in sheets]
    weights = [setting.value for setting in given if setting is not None]
    key = next((name for name in ("dataset_mixture", "dataset_mixer", "datasets") if name in keys), "datasets")
    return weights if len(weights) == len(sheets) > 1 else None, key, ""


def _kind(keys: Keys) -> tuple[str, str]:
    """Return the kind of trainer, `sft` or a value of `prompt_template.format_type`, and the key that says so."""
    facts = table("trl")
    # A TRL file does not name the script that it is for: keys tell that no other script has.
    if keys.settings.get("loss_type") not in facts["sft_losses"].split():
        for kind, marks in facts["kinds"].items():
            if mark := next((mark for mark in marks.split() if mark in keys), ""):
                return kind, mark
    return "sft", ""


def _set_template(keys: Keys, sheet: Sheet) -> None:
    sheet.take(keys, "template")
    if text := keys.get("chat_template", str):
        path = None if "{" in text else sheet.path(text, keys)
        sheet.set("tokenizer.chat_template", path or text, keys, "chat_template")
    elif not (path := keys.get("chat_template_path", str)):
        sheet.take(keys, "template.unset")
    elif path.endswith((".jinja", ".j2", ".jinja2")):
        sheet.set_address("tokenizer.chat_template", path, keys, "chat_template_path")
    else:
        text = f"save the chat template of {path} to a file, and name it as tokenizer.chat_template"
        keys.warn("chat_template_path", text)


def _set_prompts_per_batch(keys: Keys, sheet: Sheet) -> None:
    """Set how many prompts a batch has: the batch size of GRPO and RLOO counts completions."""
    each = keys.get("num_generations", int, default=8) or 1
    batch = sheet.get("dataloader.batch_size")
    why = f"prompts with num_generations: {each} completions each"
    sheet.set("dataloader.batch_size", max(batch // each, 1), keys, "per_device_train_batch_size", why)
    if batch % each:
        text = f"{batch} completions are not whole prompts of {each} completions: TRL divides prompts over devices"
        keys.warn("per_device_train_batch_size", text)
    if "num_generations" not in keys:
        keys.warn("num_generations", "not set: GRPO's 8 completions per prompt; RLOO has 2")
    keys.note("taken", "num_generations", "dataloader.batch_size")


def _set_length(keys: Keys, sheet: Sheet, kind: str) -> None:
    names = ("max_prompt_length",) if kind == "prompt_only" else ("max_length", "max_seq_length")
    named = next((name for name in names if name in keys), names[0])
    if named in keys.settings and keys.settings[named] is None:
        keys.warn(named, "null is no limit in TRL; here longer rows are shortened: set tokenizer.max_length")
        sheet.set("tokenizer.max_length", 1 << 17, keys, named)
    else:
        default = 1 << 14 if kind == "prompt_only" else 1024
        sheet.set("tokenizer.max_length", keys.get(named, int, default=default), keys, named)
    if kind == "prompt_only":
        sheet.take(keys, "long_prompts")
    elif "max_prompt_length" in keys:
        text = "prompts have no limit of their own: a row is shortened to max_length as a whole"
        keys.warn("max_prompt_length", text)
    if keys.get("packing", bool):
        strategy, packings = keys.get("packing_strategy", str, default="bfd"), table("trl")["packing"]
        if strategy not in packings:
            raise keys.refuse("packing_strategy", f"{strategy!r} is not one of {', '.join(packings)}")
        sheet.set("length.packing", packings[strategy], keys, "packing")
        if strategy in ("bfd_split", "bfd-requeue"):
            sheet.set("length.strategy", "split", keys, "packing_strategy")
        if strategy == "wrapped":
            sheet.settings.pop("length.strategy")
    sheet.take(keys, "packing")


def _datasets(keys: Keys, base: Sheet) -> list[Sheet]:
    """Return a sheet with its source for each dataset."""
    mixture = keys.section("dataset_mixture")
    inner = mixture.sections("datasets")
    key, config = ("id", "config") if inner else ("path", "name")
    sheets: list[Sheet] = []
    for entry in inner or keys.sections("datasets"):
        sheet = _named(entry, key, base)
        set_split(entry, sheet, "split", "train")
        if config in entry:
            sheet.set("dataset.config", entry.get(config, str), entry, config)
            sheet.label = f"{sheet.label}-{entry.get(config, str)}"
        if columns := entry.texts("columns"):
            sheet.set("dataset.columns", columns, entry, "columns")
        _set_weight(entry, sheet, "weight")
        if (share := entry.number("fraction")) is not None:
            sheet.set("fraction", share, entry, "fraction")
            entry.note("taken", "fraction", "mixture weight")
            entry.warn("fraction", "TRL takes the first rows; here shares are exact in every window, of all rows")
        sheet.take(entry, "entry")
        entry.rest("in a mixture")
        sheets.append(sheet)
    mixer = keys.section("dataset_mixer")  # of earlier alignment-handbooks: a fraction per dataset
    for name in mixer.settings:
        sheets.append(base.copy(label_of(name)))
        sheets[-1].set_address("dataset.name", name, mixer, name)
        sheets[-1].set("dataset.splits", keys.texts("dataset_splits") or ["train", "test"], keys, "dataset_splits")
        _set_weight(mixer, sheets[-1], name)
    keys.note("taken", "dataset_mixer", "mixture")
    sized = mixture if inner else keys
    if sheets:
        set_validation_fraction(sized, sheets, "test_split_size")
        if inner:
            mixture.note("elsewhere", "seed", "rows of a fraction are chosen by their content")
            mixture.rest("in a mixture")
            keys.note("taken", "dataset_mixture", "mixture")
        base.take(keys, "mixed")
        return sheets
    sheet = _named(keys, "dataset_name", base)
    sheet.take(keys, "named")
    train, test = "dataset_train_split", "dataset_test_split"
    splits = [keys.get(train, str, default="train")]
    if keys.get("eval_strategy", str, bool, default="no") not in ("no", False):
        splits.append(keys.get(test, str, default="test"))
        keys.note("taken", test, "dataset.splits")
    keys.note("elsewhere", test, "not used without eval_strategy")
    sheet.set("dataset.splits", splits, keys, train)
    return [sheet]


def _named(keys: Keys, key: str, base: Sheet) -> Sheet:
    name = keys.required(key, "dataset")
    sheet = base.copy(label_of(name))
    sheet.set_address("dataset.name", name, keys, key)
    return sheet


def _set_weight(keys: Keys, sheet: Sheet, key: str) -> None:
    if (weight := keys.number(key)) is not None and weight < 1:
        sheet.set("dataset.fraction", weight, keys, key, "of the rows, chosen by their content")
    keys.note("taken", key, "dataset.fraction")


def _set_rows(keys: Keys, sheet: Sheet, kind: str) -> None:
    """Set which columns are read, and what of them is trained."""
    # Whether prompts are messages or text TRL reads from the rows, not from its file: local rows are looked at here.
    spoken, listed = spoken_columns(sheet), sheet.get("dataset.columns")
    columns = listed or spoken or ()
    if kind == "prompt_only":
        sheet.take(keys, "prompts")
    sheet.take(keys, "rows")
    if (spoken is None and "messages" not in columns) or (spoken and kind != "sft" and not any(spoken.values())):
        text = "prompts and answers of text are joined without it in TRL, and here are a conversation"
        keys.warn("chat_template", f"{text}{'; set format_type: completion for them' if kind == 'sft' else ''}")
    if kind in ("preference", "kto"):
        sheet.take(keys, "answers")
        answers = ("chosen", "rejected") if kind == "preference" else ("completion", "label")
        for role, column in {**{role: role for role in answers}, "prompt": "prompt?", **_OPTIONAL}.items():
            if not listed or column.removesuffix("?") in listed:
                sheet.set(f"dataset.column_mapping.{role}", column, keys, "dataset_name", "as TRL names them")
    if kind != "sft":
        return
    field, why = keys.get("dataset_text_field", str, default="text"), "of these, the first that the data has"
    if {"prompt", "completion"} <= {*columns} and spoken and not (spoken["prompt"] or "messages" in columns):
        sheet.set("prompt_template.format_type", "completion", keys, "chat_template", "TRL joins texts without it")
    elif "conversations" not in columns:
        roles = {role: f"{role}?" for role in ("messages", "prompt", "completion")}
        for role, column in {**roles, "text": f"{field}?", **_OPTIONAL}.items():
            if not listed or column[:-1] in listed:
                sheet.set(f"dataset.column_mapping.{role}", column, keys, "dataset_text_field", why)
                why = ""
    sheet.take(keys, "texts")
    if keys.get("assistant_only_loss", bool):
        sheet.take(keys, "assistant")
    elif keys.get("completion_only_loss", bool) is False:
        sheet.take(keys, "whole")
    elif keys.get("completion_only_loss", bool) or {"prompt", "completion"} <= {*columns}:
        sheet.take(keys, "completion")
    else:
        sheet.take(keys, "all")
        text = "all text of conversations is trained, as in TRL; train_on: completions trains the answers alone"
        more = "; for rows of prompt and completion, remove train_on: TRL trains the completion alone"
        keys.warn("assistant_only_loss", f"{text}{'' if columns else more}")
    sheet.take(keys, "losses")


ROWS = 100
"""Number of rows that are read."""


def spoken_columns(sheet: Sheet) -> dict[str, bool] | None:
    """Return whether each column holds messages; None if the source is not local, or cannot be read."""
    from tokenloom.assets.raw.chunks import source_chunks
    from tokenloom.assets.schema.doubts import is_spoken
    from tokenloom.assets.schema.merge import merge
    from tokenloom.assets.schema.profiles import profiles
    from tokenloom.assets.schema.sketch import sketch

    name, kept = sheet.get("dataset.name"), sheet.get("dataset.columns")
    if not isinstance(name, str) or "://" in name:
        return None
    try:
        path = (sheet.folder / name).resolve()  # the folder need not exist yet
        if not (path.is_file() or path.is_dir()):
            return None
        settings = {"name": path.as_posix(), **({"columns": kept} if kept else {})}
        config = PipelineConfig.from_mapping({"name": "import", "dataset": settings})
        found = profiles(merge([sketch(next(source_chunks(config, limit=ROWS)).load().table)]))
    except (TokenloomError, StopIteration, OSError, ValueError):
        return None
    return {profile.name: is_spoken(profile) for profile in found.values() if profile.is_column}
