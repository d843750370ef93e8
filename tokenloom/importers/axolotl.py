"""Reads a configuration of axolotl: its datasets, their types, its tokenizer and lengths.

After `utils/schemas/`, `prompt_strategies/` and `utils/data/` of axolotl 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenloom.assets.schema.conventions import kind_of
from tokenloom.assets.stage.forms import FORMS
from tokenloom.config.trained_kinds import MESSAGE_ROLES
from tokenloom.importers import axolotl_types as types
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
    set_validation_fraction,
)

TEMPLATES = {"chatml": "chatml", "alpaca": "alpaca"}
"""Built-in templates that write what axolotl's of the same name writes."""

COLUMNS = {"chat_template": "messages", "messages": "messages", "messages.chat": "messages"}
COLUMNS |= dict.fromkeys(("sharegpt", "llama2_chat", "pygmalion"), "conversations")
"""Types of conversations, with the column of their messages."""

_BUILDERS = ("json", "csv", "parquet", "text", "arrow")
"""Paths that are formats of `data_files`."""

_EOS = "the stop that the template writes after a trained turn is trained"

_LLAMA3 = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

_BOS = "the BOS of a text, if the tokenizer adds one, is masked, because nothing predicts it; axolotl gives it a label"

_PACKED = "axolotl joins the rows of a batch into one row, which is as long as all of them"


def read(keys: Keys, folder: Path) -> list[Sheet]:
    """Return one sheet per dataset.

    Raises:
        ConfigError: a key holds something else than axolotl reads, or has no counterpart.
    """
    base = Sheet("", folder)
    _set_tokenizer(keys, base)
    base.take(keys, "top")
    base.take(keys, "loader")
    padded = keys.get("pad_to_sequence_len", bool)
    if padded or (padded is None and (keys.get("sample_packing", bool) or keys.get("reward_model", bool))):
        base.set("tokenizer.padding", "max_length", keys, "pad_to_sequence_len")
    keys.note("taken", "pad_to_sequence_len", "tokenizer.padding")
    format_type = base.get("prompt_template.format_type") or ""
    entries, streams = keys.sections("datasets"), _pretrained(keys)
    if keys.get("streaming", bool) and keys.get("sample_packing", bool):
        entries = _first(entries, keys, "datasets")
        keys.warn("micro_batch_size", _PACKED)
    sheets = [_stream(entry, keys, base) for entry in streams]
    sheets += [] if streams else [_dataset(entry, keys, base, format_type) for entry in entries]
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


def _set_tokenizer(keys: Keys, sheet: Sheet) -> None:
    if keys.get("tokenizer_use_mistral_common", bool):
        raise keys.refuse(
            "tokenizer_use_mistral_common",
            "tokenizers of mistral-common are not read; use a tokenizer.json of the same model, and set this to false",
        )
    named = next((name for name in ("tokenizer_config", "base_model") if name in keys), "base_model")
    model = keys.get(named, str)
    if model is None:
        raise keys.refuse("base_model", "missing; it names the tokenizer")
    setting = "processor" if keys.get("processor_type", str) else "name_or_path"
    sheet.set(f"tokenizer.{setting}", sheet.path(model, keys) or model, keys, named)
    keys.note("taken", "processor_type", "tokenizer.processor")
    if named != "base_model":
        keys.note("elsewhere", "base_model", f"names the model; the tokenizer is {named}'s")
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
    keys.note("taken", "special_tokens", "tokenizer.special_tokens")


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
        sheet.take_type(entry, str(kind))
        _set_template(entry, top, sheet)
        _note_fields(entry)
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
    if sheet.get("prompt_template.train_on") == "all" and sheet.get("prompt_template.format_type") == "chat":
        why = "contents and stops, not the template's text"
        sheet.set("prompt_template.train_on", [*MESSAGE_ROLES], top, "train_on_inputs", why)
    entry.rest(f"with type: {kind}" if isinstance(kind, str) else "with this type")
    return sheet


def _label(entry: Keys) -> str:
    path = entry.get("path", str)
    if not path:
        raise entry.refuse("path", "missing; it names the dataset")
    return "-".join(filter(None, (label_of(path), entry.get("name", str))))


def _set_source(entry: Keys, sheet: Sheet, split: str) -> None:
    path, files = entry.get("path", str), entry.texts("data_files")
    local, builder = sheet.path(path, entry), path in _BUILDERS
    name, key = local or path, "path"
    if files:
        if len(files) > 1:
            raise entry.refuse("data_files", "several files; name them by one glob, such as data/*.jsonl")
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
    if name in COLUMNS:
        if name != "chat_template":
            entry.warn("type", f"{name} is read as chat_template; compare `tokenloom preview`")
        _set_messages(entry, top, sheet, COLUMNS[name])
    elif name == "input_output":
        sheet.take_type(entry, name)
    elif name in ("completion", "pretrain"):
        sheet.take_type(entry, "completion")
        sheet.take(entry, "text" if name == "completion" else "stream")
        entry.warn("type", _BOS)
    elif name == "metharme":
        sheet.take_type(entry, name)
        entry.warn("type", "metharme trains three EOS tokens after an answer; here it is one, the one generated")
    elif name in types.TYPES and (not style or style in types.STYLES):
        prompt = types.TYPES[name]
        if style:
            prompt = types.Prompt(style, prompt.before, prompt.columns, prompt.label)
        sheet.set("prompt_template.format_type", "jinja", entry, "type")
        sheet.set("prompt_template.template", types.jinja_prompt(prompt), entry, "type")
        sheet.set("prompt_template.label_column", prompt.label, entry, "type")
        if (prompt.columns or {"input": "input"}).get("input") == "input":
            sheet.set("dataset.column_mapping.input", "input?", entry, "type", "the column, if there is one")
    else:
        raise entry.refuse("type", f"no counterpart for {kind!r}; write its prompt as prompt_template.template")


def _set_messages(entry: Keys, top: Keys, sheet: Sheet, column: str) -> None:
    """Set what `type: chat_template` reads, renders and trains.

    Args:
        column: the messages, if the entry names none.
    """
    sheet.take_type(entry, "messages")
    column = entry.get("field_messages", str, default=column)
    sheet.set("dataset.column_mapping.messages", column, entry, "field_messages")
    tools = entry.get("field_tools", str, default="tools")
    sheet.set("dataset.column_mapping.tools", f"{tools}?", entry, "field_tools", "the column, if there is one")
    if tools != "tools":
        entry.warn("field_tools", f"axolotl 0.19 documents it, but reads the column tools; here {tools} is read")
    _set_template(entry, top, sheet)
    _note_fields(entry)
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
    entry.note("taken", "roles_to_train", "prompt_template.train_on")
    entry.note("taken", "train_on_eos", "prompt_template.train_on")
    if stop in ("last", "all"):
        entry.warn("train_on_eos", f"{stop}: here the stop of each trained turn is trained, which ends it at inference")
    if entry.get("train_on_eot", str, default=stop) != stop:
        entry.warn("train_on_eot", f"differs from train_on_eos; here {_EOS}")
    entry.note("elsewhere", "train_on_eot", f"as train_on_eos: {_EOS}")
    top.note("elsewhere", "eot_tokens", _EOS)
    if "eot_tokens" not in top and not sheet.get("tokenizer.special_tokens.eos") and stop != "none":
        top.warn("eot_tokens", f"not set: axolotl trains a stop only if it is the tokenizer's EOS; here {_EOS}")
    sheet.take(entry, "messages")


def _role(entry: Keys, role: str) -> str:
    """Return the role that a name in `roles_to_train` stands for."""
    mapped = entry.get("roles", dict, default={})
    target = next((to for to, names in mapped.items() if isinstance(names, list) and role in names), role)
    return role_of(target)


def _note_fields(entry: Keys) -> None:
    """Report the fields of messages, which are found by their names."""
    properties = entry.section("message_property_mappings")
    for name in properties.settings:
        note_field(properties, name, name)
    for name in ("role", "content"):
        note_field(entry, f"message_field_{name}", name)
    note_field(entry, "field_thinking", "reasoning_content")
    entry.note("elsewhere", "message_property_mappings", "fields of messages are found by their names")
    for target, names in entry.get("roles", dict, default={}).items():
        note_speakers(entry, "roles", str(target), names if isinstance(names, list) else [])
    entry.note("elsewhere", "roles", "the usual names of speakers are known")
    if flag := entry.get("message_field_training", str):
        known = kind_of(flag) == "trained"
        text = "flags of messages are found by their names" if known else "rename this field to `train` in the data"
        entry.note("elsewhere" if known else "differs", "message_field_training", text)
    if entry.get("drop_system_message", bool):
        entry.note("differs", "drop_system_message", "system messages stay; remove them from the data")
    if entry.get("split_thinking", bool):
        entry.note("elsewhere", "split_thinking", "a thought at the start of a content is known as reasoning")


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
    elif choice == "tokenizer_default":
        keys.note("taken", "chat_template", "the tokenizer's own template")
    elif fallback != choice:
        keys.note("taken", "chat_template", "the tokenizer's own template")
        keys.warn("chat_template", f"if the tokenizer has no template, set tokenizer.chat_template: {fallback}")
    elif choice in TEMPLATES:
        sheet.set("tokenizer.chat_template", TEMPLATES[choice], keys, "chat_template")
        if choice == "alpaca":
            sheet.set("prompt_template.add_bos", "auto", keys, "chat_template")
            keys.warn("chat_template", "axolotl always writes BOS; here only if the tokenizer adds it (add_bos: true)")
    else:
        text = f"the tokenizer's own template is used; ids were not compared with axolotl's {choice}. For a tokenizer "
        text += f"without one, save axolotl's {choice}.jinja and name it as tokenizer.chat_template"
        keys.warn("chat_template", text)


def _set_preference(entry: Keys, top: Keys, sheet: Sheet, format_type: str, kind: str) -> None:
    """Set what a strategy of preferences or KTO reads and renders."""
    sheet.set("prompt_template.format_type", format_type, entry, "type")
    family, _, name = kind.partition(".")
    name = name or "default"
    mapping = types.columns_of(format_type, name)
    if family in ("chatml", "llama3") and mapping is not None:
        sheet.set("tokenizer.chat_template", "chatml" if family == "chatml" else _LLAMA3, entry, "type")
        text = "TRL adds EOS after the answer's end-of-turn token; here the template ends it; its line break is masked"
        entry.warn("type", text)
        if name not in ("argilla", "argilla_chat"):
            mapping["system"] = "system?"
    elif kind in ("", "passthrough", "passthrough.default"):
        mapping = {role: role for role in FORMS[format_type].required} | {"prompt": "prompt"}
        _set_template(entry, top, sheet)
        entry.warn("type", "messages alone are templated there: texts that hold a prompt already get a second one")
    elif family == "chat_template" and format_type == "preference":
        _set_template(entry, top, sheet)
        mapping = {} if name.startswith("argilla") else {"prompt": entry.get("field_messages", str, default="messages")}
        answers = ("chosen", "rejected")
        mapping |= {role: entry.get(f"field_{role}", str, default=role) for role in answers}
        text = "the line break (\\n) that a template writes after the stop stays, masked; axolotl removes it"
        if name == "argilla":
            text = "ORPO trains the line break (\\n) after the stop, and another EOS; here the stop is the last one"
        entry.warn("type", text)
        for role in mapping:
            key = f"field_{'messages' if role == 'prompt' else role}"
            entry.note("taken", key, f"dataset.column_mapping.{role}")
        _note_fields(entry)
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
        prompt = types.Prompt((with_input, without, system), (default, default), columns, names["output"])
        template = types.jinja_prompt(prompt)
    except ValueError as error:
        raise own.refuse("format", str(error)) from None
    sheet.set("prompt_template.format_type", "jinja", own, "format")
    sheet.set("prompt_template.template", template, own, "format")
    sheet.set("prompt_template.label_column", names["output"], own, "field_output")
    for role in ("system", "input"):
        if role in columns:
            why = "the column, if there is one"
            sheet.set(f"dataset.column_mapping.{names[role]}", f"{names[role]}?", own, f"field_{role}", why)
    for name in ("field_instruction", "field_input", "no_input_format", "system_format", "system_prompt"):
        own.note("taken", name, "prompt_template.template")
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
        answer = {types.filled(form, dict.fromkeys(answers, "{{ message.content }}")) for form in formats}
        values = {"prompt": "{{ message.content }}", "system": "{{ system.value }}"}
        prompt = types.filled(asked, values)
    except ValueError as error:
        raise own.refuse("prompt_format", str(error)) from None
    if len(answer) > 1:
        raise own.refuse("rejected_format", "chosen and rejected answers with different formats have no counterpart")
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
    sheet.take_type(entry, "completion")
    sheet.take(entry, "stream")
    entry.warn("type", _BOS)
    if top.get("sample_packing", bool):
        top.warn("micro_batch_size", _PACKED)
        if kind == "pretrain":
            text = "axolotl's windows of a long text overlap and each has an EOS; here no token is trained twice"
            entry.warn("type", text)
        if top.get("pretrain_multipack_attn", bool) is False:
            top.warn("pretrain_multipack_attn", "texts of a row see each other there; here they do not")
        top.note("elsewhere", "pretrain_multipack_attn", "texts of a row never see each other")
    else:
        sheet.set("length.strategy", "truncate_right", top, "sample_packing", "axolotl drops the end of long texts")
        if top.get("pretraining_sample_concatenation", bool):
            sheet.set("length.packing", "best_fit", top, "pretraining_sample_concatenation")
            text = "axolotl writes a PAD after each EOS, and texts of a row see each other; here they do not"
            top.warn("pretraining_sample_concatenation", text)
        else:
            sheet.set("prompt_template.add_eos", False, top, "pretraining_sample_concatenation", "axolotl adds none")
        top.warn("sequence_len", "without sample_packing, texts have two tokens less there")
    entry.rest("in a stream")
    return sheet
