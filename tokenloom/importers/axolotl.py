"""Reads a configuration of axolotl: its datasets, the prompts that their types write, its tokenizer and lengths.

After `utils/schemas/`, `prompters.py`, `prompt_strategies/` and `utils/data/` of axolotl 0.19.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenloom.assets.schema.conventions import kind_of
from tokenloom.assets.stage.forms import FORMS
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.importers.sheet import (
    FILES,
    Keys,
    Sheet,
    label_of,
    note_field,
    note_speakers,
    role_of,
    set_fraction,
    set_split,
    set_tokenizer,
    set_validation_fraction,
    table,
)

_BUILDERS = ("json", "csv", "parquet", "text", "arrow")
"""Paths that are formats of `data_files`."""

_EOS = "the stop that the template writes after a trained turn is trained"


def read(keys: Keys, folder: Path) -> list[Sheet]:
    """Return one sheet per dataset.

    Raises:
        ConfigError: a key holds something else than axolotl reads, or has no counterpart.
    """
    base = Sheet("", folder)
    base.take(keys, "tokenizer")
    setting = "processor" if keys.get("processor_type", str) else "name_or_path"
    set_tokenizer(keys, base, "base_model", "tokenizer_config", setting)
    keys.note("taken", "processor_type", "tokenizer.processor")
    _set_tokens(keys, base)
    base.take(keys, "top")
    base.take(keys, "loader")
    padded = keys.get("pad_to_sequence_len", bool)
    # Left open, axolotl pads packed rows and the pairs of a reward model to the full length.
    if padded or (padded is None and (keys.get("sample_packing", bool) or keys.get("reward_model", bool))):
        base.set("tokenizer.padding", "max_length", keys, "pad_to_sequence_len")
    keys.note("taken", "pad_to_sequence_len", "tokenizer.padding")
    format_type = base.get("prompt_template.format_type") or ""
    entries, streams = keys.sections("datasets"), _pretrained(keys)
    if keys.get("streaming", bool) and keys.get("sample_packing", bool):
        entries = _first(entries, keys, "datasets")
        base.take(keys, "packed")
    sheets = [_stream(entry, keys, base) for entry in streams]
    sheets = sheets or [_dataset(entry, keys, base, format_type) for entry in entries]
    if not sheets:
        raise keys.refuse("datasets", "no dataset; add an entry such as {path: data.jsonl, type: alpaca}")
    for entry in keys.sections("test_datasets"):
        sheets.append(_dataset(entry, keys, base, format_type, "train" if "rl" in keys else "test"))
        sheets[-1].evaluation = True
    set_validation_fraction(keys, sheets, "val_set_size")
    return sheets


def mixture(keys: Keys, sheets: Sequence[Sheet]) -> tuple[list[float] | None, str, str]:
    """Return no weights: each dataset contributes its rows, as they are."""
    return None, "datasets", ""


def _first(entries: list[Keys], keys: Keys, name: str) -> list[Keys]:
    if len(entries) > 1:
        keys.warn(name, "axolotl reads a stream of the first entry alone; the others are not imported")
    return entries[:1]


def _pretrained(keys: Keys) -> list[Keys]:
    name = "pretraining_dataset"
    if isinstance(path := keys.settings.get(name), str):
        keys.note("taken", name, "dataset.name")
        return [Keys({"path": path}, keys.path, keys.report, keys.origin, (name, 0))]
    return _first(keys.sections(name), keys, name)


def _set_tokens(keys: Keys, sheet: Sheet) -> None:
    """Set the special tokens."""
    given = keys.section("special_tokens")
    more: list[str] = []  # those that the tokenizer lacks are added in this order, which decides their ids
    for role in [name for name in given.settings if name.removesuffix("_token") in ("bos", "eos", "pad", "unk")]:
        if token := given.get(role, str):
            sheet.set(f"tokenizer.special_tokens.{role.removesuffix('_token')}", token, given, role)
            more.append(token)
    more += keys.texts("tokens") + given.texts("additional_special_tokens")
    if more:
        source, name = (keys, "tokens") if "tokens" in keys else (keys, "special_tokens")
        sheet.set("tokenizer.special_tokens.additional", list(dict.fromkeys(more)), source, name)
        given.note("taken", "additional_special_tokens", "tokenizer.special_tokens.additional")
    given.rest()


def _dataset(entry: Keys, top: Keys, base: Sheet, format_type: str, split: str = "train") -> Sheet:
    """Return the sheet of an entry of `datasets` or `test_datasets`.

    Args:
        split: the split of a dataset that is not a file, if the entry names none.
    """
    sheet = base.copy(_label(entry))
    _set_source(entry, sheet, split)
    kind = entry.settings.get("type")
    if kind is not None and not isinstance(kind, str | dict):
        raise entry.refuse("type", "expected the name of a type, or a mapping with its format")
    if kind == "bradley_terry.chat_template":
        sheet.take(entry, "bradley_terry.chat_template")
        _set_template(entry, top, sheet)
        _note_fields(entry, sheet)
    elif isinstance(kind, dict):
        own = _set_own_pairs if format_type in ("preference", "kto") else _set_own_format
        own(entry.section("type"), sheet, format_type)
    elif format_type in ("preference", "kto"):
        _set_preference(entry, top, sheet, format_type, kind or "")
    elif format_type:
        sheet.set("prompt_template.format_type", format_type, top, "rl")
        _set_template(entry, top, sheet)
        entry.warn("type", "its prompts are made by Python code; check `tokenloom preview`")
    elif not kind:
        sheet.set("prompt_template.format_type", "tokens", entry, "type", "rows of token ids")
    else:
        _set_type(entry, top, sheet, kind)
    if not format_type:
        sheet.take(top, "trained")
    # Of a conversation axolotl trains the messages, but not what the template writes around them, such as headers.
    if sheet.get("prompt_template.train_on") == "all" and sheet.get("prompt_template.format_type") == "chat":
        why = "contents and stops, not the template's text"
        sheet.set("prompt_template.train_on", [*MESSAGE_ROLES], top, "train_on_inputs", why)
    entry.rest(f"with type: {kind}" if isinstance(kind, str) else "with this type")
    return sheet


def _label(entry: Keys) -> str:
    return "-".join(filter(None, (label_of(entry.required("path", "dataset")), entry.get("name", str))))


def _set_source(entry: Keys, sheet: Sheet, split: str) -> None:
    path, files = entry.get("path", str), entry.texts("data_files")
    local, builder = sheet.path(path, entry), path in _BUILDERS
    name, key = local or path, "path"
    if files:
        if len(files) > 1:
            raise entry.refuse("data_files", "several files; name them by one glob, such as data/*.jsonl")
        # Files are relative to what `path` names: a local folder, a format (then files are local), or a hub repository.
        if (local is not None and not Path(files[0]).is_absolute()) or builder:
            name = sheet.path(files[0], entry) or files[0]
        elif "://" not in files[0] and not Path(files[0]).is_absolute():
            revision = f"@{entry.get('revision', str)}" if "revision" in entry else ""
            name = f"hf://datasets/{path}{revision}/{files[0]}"
            entry.note("taken", "revision", "dataset.name")
        else:
            name = files[0]
        key = "data_files"
        entry.note("taken", "path", "dataset.name")
    sheet.set("dataset.name", name, entry, key)
    ending = name.partition("?")[0].rpartition(".")[2].lower()
    is_file = ending in FILES
    kind = entry.get("ds_type", str) or (path if builder else None)
    if kind and (builder or (local and files) or (not files and is_file)):
        if ending.replace("jsonl", "json").replace("txt", "text") != kind:
            sheet.set("dataset.format", kind, entry, "ds_type")
        entry.note("taken", "ds_type", "dataset.format")
    if not is_file and not files:
        sheet.take(entry, "entry")
        if "revision" in entry and not local:
            sheet.set("dataset.revision", entry.get("revision", str), entry, "revision")
    set_split(entry, sheet, "split", "train" if is_file else split)
    if shards := entry.get("shards", int):
        set_fraction(entry, sheet, "shards", 1 / max(shards, 1))


def _set_type(entry: Keys, top: Keys, sheet: Sheet, kind: str) -> None:
    """Set what a type of supervised fine-tuning writes and trains."""
    name, _, style = kind.partition(":")
    if column := table("axolotl")["conversations"].get(name):
        if name != "chat_template":
            entry.warn("type", f"{name} is read as chat_template; compare `tokenloom preview`")
        _set_messages(entry, top, sheet, column)
    elif name in ("input_output", "completion", "pretrain", "metharme"):
        sheet.take(entry, name)
    elif name in PROMPTS and (not style or style in STYLES):
        prompt = replace(PROMPTS[name], style=style) if style else PROMPTS[name]
        sheet.set("prompt_template.format_type", "jinja", entry, "type")
        sheet.set("prompt_template.template", jinja_prompt(prompt), entry, "type")
        sheet.set("prompt_template.label_column", prompt.label, entry, "type")
        if prompt.columns.get("input") == "input":
            sheet.set("dataset.column_mapping.input", "input?", entry, "type", "the column, if there is one")
    else:
        raise entry.refuse("type", f"no counterpart for {kind!r}; write its prompt as prompt_template.template")


def _set_messages(entry: Keys, top: Keys, sheet: Sheet, column: str) -> None:
    """Set what `type: chat_template` reads, renders and trains.

    Args:
        column: the messages, if the entry names none.
    """
    sheet.take(entry, "messages")
    column = entry.get("field_messages", str, default=column)
    sheet.set("dataset.column_mapping.messages", column, entry, "field_messages")
    tools = entry.get("field_tools", str, default="tools")
    sheet.set("dataset.column_mapping.tools", f"{tools}?", entry, "field_tools", "the column, if there is one")
    if tools != "tools":
        entry.warn("field_tools", f"axolotl 0.19 documents it, but reads the column tools; here {tools} is read")
    _set_template(entry, top, sheet)
    _note_fields(entry, sheet)
    stop = entry.get("train_on_eos", str, default="turn")
    roles = [_role(entry, role) for role in entry.texts("roles_to_train")]
    if "roles_to_train" in entry and not roles:
        sheet.set("prompt_template.train_on", [], entry, "roles_to_train", "answers with a flag alone are trained")
        entry.warn("roles_to_train", "answers alone are trained by their flags; axolotl trains any flagged message")
    elif stop == "none":
        weights = {role: 1 for role in roles if role != "assistant"}
        weights |= {"assistant": int("assistant" in (roles or ["assistant"])), "stop": 0}
        sheet.set("prompt_template.train_on", weights, entry, "train_on_eos")
    else:
        trained = roles if roles and roles != ["assistant"] else "completions"
        sheet.set("prompt_template.train_on", trained, entry, "roles_to_train")
    if stop in ("last", "all"):
        entry.warn("train_on_eos", f"{stop}: here the stop of each trained turn is trained, which ends it at inference")
    if entry.get("train_on_eot", str, default=stop) != stop:
        entry.warn("train_on_eot", f"differs from train_on_eos; here {_EOS}")
    sheet.take(entry, "trained_messages")
    top.note("elsewhere", "eot_tokens", _EOS)
    # Only a stop that is the EOS is trained without `eot_tokens`; of `<|im_end|>` models it often is not.
    if "eot_tokens" not in top and not sheet.get("tokenizer.special_tokens.eos") and stop != "none":
        top.warn("eot_tokens", f"not set: axolotl trains a stop only if it is the tokenizer's EOS; here {_EOS}")


def _role(entry: Keys, role: str) -> str:
    """Return the role that a name in `roles_to_train` stands for."""
    mapped = entry.get("roles", dict, default={})
    target = next((to for to, names in mapped.items() if isinstance(names, list) and role in names), role)
    return role_of(target)


def _note_fields(entry: Keys, sheet: Sheet) -> None:
    """Report the fields of messages, which are found by their names."""
    properties = entry.section("message_property_mappings")
    for name in properties.settings:
        note_field(properties, name, name)
    for name in ("role", "content"):
        note_field(entry, f"message_field_{name}", name)
    note_field(entry, "field_thinking", "reasoning_content")
    for target, names in entry.get("roles", dict, default={}).items():
        note_speakers(entry, "roles", str(target), names if isinstance(names, list) else [])
    if flag := entry.get("message_field_training", str):
        known = kind_of(flag) == "trained"
        text = "flags of messages are found by their names" if known else "rename this field to `train` in the data"
        entry.note("elsewhere" if known else "differs", "message_field_training", text)
    sheet.take(entry, "fields")


def _set_template(entry: Keys, top: Keys, sheet: Sheet) -> None:
    """Set the chat template of an entry, or the one for all of them."""
    keys = entry if "chat_template" in entry or "chat_template_jinja" in entry else top
    text = keys.get("chat_template_jinja", str)
    choice = keys.get("chat_template", str, default="jinja" if text else "tokenizer_default")
    if choice == "jinja" and not text:
        raise keys.refuse("chat_template", "jinja needs chat_template_jinja")
    fallback = choice.removeprefix("tokenizer_default_fallback_")
    if choice == "jinja":
        path = None if "{" in text else sheet.path(text, keys)
        sheet.set("tokenizer.chat_template", path or text, keys, "chat_template_jinja")
        keys.note("taken", "chat_template", "tokenizer.chat_template")
    elif choice in ("chatml", "alpaca"):
        sheet.take(keys, f"template.{choice}")
    elif choice == "tokenizer_default" or fallback != choice:
        keys.note("taken", "chat_template", "the tokenizer's own template")
        if fallback != choice:
            keys.warn("chat_template", f"if the tokenizer has no template, set tokenizer.chat_template: {fallback}")
    else:
        text = f"the tokenizer's own template is used; ids were not compared with axolotl's {choice}. For a tokenizer "
        text += f"without one, save axolotl's {choice}.jinja and name it as tokenizer.chat_template"
        keys.warn("chat_template", text)


def _set_preference(entry: Keys, top: Keys, sheet: Sheet, format_type: str, kind: str) -> None:
    """Set what a strategy of preferences or KTO reads and renders."""
    sheet.set("prompt_template.format_type", format_type, entry, "type")
    family, _, name = kind.partition(".")
    name = name or "default"
    pairs = table("axolotl")["pairs"][format_type]
    if family in ("chatml", "llama3") and name in pairs:
        sheet.take(entry, f"pairs.{family}")
        mapping = {**pairs[name], **({} if name.startswith("argilla") else {"system": "system?"})}
    elif kind in ("", "passthrough", "passthrough.default"):
        mapping = {role: role for role in FORMS[format_type].required} | {"prompt": "prompt"}
        _set_template(entry, top, sheet)
        sheet.take(entry, "pairs.passthrough")
    elif family == "chat_template" and format_type == "preference":
        _set_template(entry, top, sheet)
        mapping = {} if name.startswith("argilla") else {"prompt": entry.get("field_messages", str, default="messages")}
        mapping |= {role: entry.get(f"field_{role}", str, default=role) for role in ("chosen", "rejected")}
        sheet.take(entry, "pairs.argilla" if name == "argilla" else "pairs.chat_template")
        for role in mapping:
            key = f"field_{'messages' if role == 'prompt' else role}"
            entry.note("taken", key, f"dataset.column_mapping.{role}")
        _note_fields(entry, sheet)
    else:
        raise entry.refuse("type", f"no counterpart for {kind!r}; map its columns with dataset.column_mapping")
    for role, column in mapping.items():
        sheet.set(f"dataset.column_mapping.{role}", column, entry, "type")


def _set_own_format(own: Keys, sheet: Sheet, format_type: str) -> None:
    """Set a prompt that the file itself defines."""
    names = {role: own.get(f"field_{role}", str, default=role) for role in ("system", "instruction", "input", "output")}
    with_input = own.get("format", str, default="{instruction} {input} ")
    without = own.get("no_input_format", str, default="{instruction} ")
    system, default = own.get("system_format", str, default="{system}"), own.get("system_prompt", str, default="")
    columns = {"instruction": "{{ " + names["instruction"] + " }}", "output": "{{ " + names["output"] + " }}"}
    columns |= {"system": names["system"]} | ({"input": names["input"]} if "{input}" in with_input else {})
    try:
        template = jinja_prompt(Prompt((with_input, without, system), (default, default), columns, names["output"]))
    except ValueError as error:
        raise own.refuse("format", str(error)) from None
    sheet.set("prompt_template.format_type", "jinja", own, "format")
    sheet.set("prompt_template.template", template, own, "format")
    sheet.set("prompt_template.label_column", names["output"], own, "field_output")
    for role in ("system", "input"):
        if role in columns:
            why = "the column, if there is one"
            sheet.set(f"dataset.column_mapping.{names[role]}", f"{names[role]}?", own, f"field_{role}", why)
    sheet.take(own, "format")
    if default:
        own.warn("system_prompt", f"rows with an empty {names['system']} get it too; axolotl writes none in these")
    if not all(name.replace("_", "a").isalnum() for name in names.values()):
        own.warn("format", "columns whose names are not Python names need an underscore in the data")
    own.rest("with this type")


def _set_own_pairs(own: Keys, sheet: Sheet, format_type: str) -> None:
    """Set preferences or ratings whose texts the file itself formats, by a chat template."""
    answers = ("chosen", "rejected") if format_type == "preference" else ("completion",)
    formats = {own.get(f"{role}_format", str, default=f"{{{role}}}") or f"{{{role}}}" for role in answers}
    asked = own.get("prompt_format", str, default="{prompt}")
    try:
        answer = {filled(form, dict.fromkeys(answers, "{{ message.content }}")) for form in formats}
        values = {"prompt": "{{ message.content }}", "system": "{{ system.value }}"}
        prompt = filled(asked, values)
    except ValueError as error:
        raise own.refuse("prompt_format", str(error)) from None
    if len(answer) > 1:
        raise own.refuse("rejected_format", "chosen and rejected answers with different formats have no counterpart")
    # A namespace, because Jinja forgets a variable that is set inside a loop at the end of its round.
    template = (
        "{% set system = namespace(value='') %}{% for message in messages %}"
        "{% if message.role == 'system' %}{% set system.value = message.content %}"
        f"{{% elif message.role == 'assistant' %}}{answer.pop()}{{{{ eos_token }}}}"
        f"{{% else %}}{prompt}{{% endif %}}{{% endfor %}}"
    )
    sheet.set("prompt_template.format_type", format_type, own, "prompt_format")
    sheet.set("tokenizer.chat_template", template, own, "prompt_format")
    roles = ("prompt", *answers, *(["label"] if format_type == "kto" else []))
    roles += ("system",) if "{system}" in asked else ()
    for role in roles:
        column = own.get(f"field_{role}", str, default=role)
        column = f"{column}?" if role == "system" else column
        sheet.set(f"dataset.column_mapping.{role}", column, own, f"field_{role}")
    for role in answers:
        own.note("taken", f"{role}_format", "tokenizer.chat_template")
    own.rest("with this type")


def _stream(entry: Keys, top: Keys, base: Sheet) -> Sheet:
    """Return the sheet of `pretraining_dataset`."""
    if (kind := entry.get("type", str, default="pretrain")) not in ("pretrain", "completion"):
        return _dataset(entry, top, base, "")
    sheet = base.copy(_label(entry))
    _set_source(entry, sheet, "train")
    sheet.take(entry, "pretrain")
    if top.get("sample_packing", bool):
        if kind == "pretrain":
            text = "axolotl's windows of a long text overlap and each has an EOS; here no token is trained twice"
            entry.warn("type", text)
        sheet.take(top, "packed_stream")
    else:
        sheet.take(top, "joined_stream" if top.get("pretraining_sample_concatenation", bool) else "cut_stream")
    entry.rest("in a stream")
    return sheet


STYLES: Mapping[str, tuple[str, str, str]] = {name: tuple(texts) for name, texts in table("axolotl")["styles"].items()}
"""Prompts with an input, without, and the system message, by the style after the colon of a type."""


@dataclass(frozen=True)
class Prompt:
    """What a type writes.

    Args:
        style: one of `STYLES`, or such a triple.
        before: texts written as the system message, with and without an input.
        columns: the text of each part, as Jinja: `instruction`, `input`, `output`, `system`.
        label: the column that is trained.
    """

    style: str | Sequence[str]
    before: Sequence[str] = ("", "")
    columns: Mapping[str, str] = field(default_factory=lambda: table("axolotl")["columns"])
    label: str = "output"


PROMPTS = {name: Prompt(**prompt) for name, prompt in table("axolotl")["prompts"].items()}
"""The types that write a prompt of their own."""


def jinja_prompt(prompt: Prompt) -> str:
    """Return a type's prompt and answer as a Jinja template of columns."""
    with_input, without, system = STYLES[prompt.style] if isinstance(prompt.style, str) else prompt.style
    columns = prompt.columns
    # A column of system messages can be empty in a row: then the text that the type itself starts with is written.
    head, given = "", columns.get("system")
    if given:
        other = "{% else %}" + _edges(filled(system, {"system": prompt.before[0]})) if prompt.before[0] else ""
        value = _edges(filled(system, {"system": "{{ " + given + " }}"}))
        head = "{% if " + given + " %}" + value + other + "{% endif %}"
    texts = [
        (filled(system, {"system": before}) if before and not given else "")
        + filled(turn, {"instruction": columns["instruction"], "input": "{{ " + columns.get("input", "") + " }}"})
        for before, turn in zip(prompt.before, (with_input, without), strict=True)
    ]
    body = _edges(texts[1]) if head else texts[1]
    if given := columns.get("input"):
        body = "{% if " + given + " %}" + _edges(texts[0]) + "{% else %}" + _edges(texts[1]) + "{% endif %}"
    return head + body + columns["output"]


def filled(form: str, values: Mapping[str, str]) -> str:
    """Return a format of Python with fields replaced by Jinja, and other text as Jinja writes it unchanged.

    Raises:
        ValueError: it is not a format, or has other fields.
    """
    text = ""
    for literal, name, spec, conversion in string.Formatter().parse(form):
        if name is not None and (name not in values or spec or conversion):
            raise ValueError(f"only {', '.join(f'{{{known}}}' for known in values)} can be written in a format")
        # Any brace could begin a tag of Jinja with its neighbour, so each is written by an expression.
        text += literal.replace("{", "{{ '{' }}")
        text += values[name] if name is not None else ""
    return text


def _edges(text: str) -> str:
    """Return a text next to a block tag: Jinja drops the line break after a tag, and spaces before one."""
    match = re.fullmatch(r"(\s*)(.*?)([ \t]*)", text, re.DOTALL)
    assert match is not None
    start, end = ("{{ " + repr(part) + " }}" if part else "" for part in (match[1], match[3]))
    return f"{start}{match[2]}{end}"
