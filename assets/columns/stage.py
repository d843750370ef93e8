"""columns: raw rows in one canonical form, by the mapping that the YAML and the schema determine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from tokenloom.assets.columns.canonical import NULL_FIELDS, to_canonical
from tokenloom.assets.columns.contract import contract_of
from tokenloom.assets.columns.mapping import ColumnMapping, Columns, check_kept_columns, plain_roles, resolve
from tokenloom.assets.columns.repeated_prompts import REMOVED, REPEATED
from tokenloom.assets.columns.unused import unused_by, weight_questions
from tokenloom.assets.raw.formats.record_file import session_notices
from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.definition import FIXED_TEXTS, Context, Reads, Stage, Work, settings
from tokenloom.assets.stage.forms import FORMS, ROW_WEIGHT, TRAINED_BY, form_named
from tokenloom.assets.stage.images import IMAGES_COLUMN, REFERENCES_COLUMN
from tokenloom.assets.stage.names import RAW, SCHEMA
from tokenloom.assets.stage.rejects import ROW, SESSION_REMEDIES
from tokenloom.config import Constant, DatasetConfig, PipelineConfig
from tokenloom.resources.sources.resolve import locate
from tokenloom.resources.sources.source_file import TABLES, SourceFiles
from tokenloom.resources.tables.json_text import json_column, to_json_text
from tokenloom.resources.tables.sequence_schema import OF_TOKENS, PER_TOKEN

if TYPE_CHECKING:
    from tokenloom.resources.store import Manifest


_FIELDS: dict[str, str | Constant] = {
    **{name: name for name in ("text", "n", "share", "when", "yes")},
    "first": "tags[0]",
    "inner": "in.a",
    "joined": "{text}: {tags:letters}",
    "chosen": "tags[{key}]",
    "fixed": Constant(constant=1.5),
}
_MAPPINGS = (
    ColumnMapping("fields", _FIELDS, "text"),
    ColumnMapping("fields", {"share": "share", "in": "in", "joined": "{tags}"}, "share", objects=True),
    ColumnMapping("text", {"text": "text"}),
    ColumnMapping("completion", {"prompt": "text", "completion": "share", "context": "tags[0]", "system": "when"}),
    ColumnMapping("messages", {"messages": "said", "system": "text"}),
    ColumnMapping("messages", {"messages": "as_json", "tools": "tools", "template_kwargs": "in"}),
    ColumnMapping("dialogue", {"prompt": "text", "completion": "as_json"}),
    ColumnMapping("prompt_only", {"prompt": "text"}),
    ColumnMapping("preference", {"prompt": "text", "chosen": "tags[0]", "rejected": "tags[1]"}),
    ColumnMapping("kto", {"prompt": "text", "completion": "tags[1]", "label": "yes"}),
)


def probe() -> list[pa.Table]:
    """Return tables that change if the behaviour of a library changes."""
    rows = pa.Table.from_pylist([_row(number, text) for number, text in enumerate(FIXED_TEXTS)])
    rows = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int32()))
    for name, source in (("as_json", "said"), ("tools", "calls")):
        texts = [to_json_text(value) for value in rows[source].to_pylist()]
        rows = rows.append_column(name, json_column(texts))
    outputs = [to_canonical(rows, mapping) for mapping in _MAPPINGS]
    return [table for output in outputs for table in (output.table, output.rejects)]


def _row(number: int, text: str) -> dict[str, Any]:
    call = {"name": "look", "arguments": {"q": text, "n": number, "share": number / 7, "all": number % 2 == 0}}
    said = [
        {"from": "human", "value": text, "tool_calls": None},
        {"from": "gpt", "value": text[::-1], "tool_calls": [{"function": call}] if number % 2 else None},
    ]
    return {
        "text": text,
        "n": number,
        "key": "AbC2"[number % 4],
        "share": number / 7 * 10.0**number,
        "when": datetime(2024, 2, 29, 12, 30, number),
        "yes": number % 2 == 0,
        "tags": [text, f"{number} {text}", text[:4]],
        "in": {"a": text if number % 2 else None},
        "said": said,
        "calls": [{"name": "look", "parameters": {"q": text}}],
    }


_FEW = 0.01
"""Fraction of answers that can begin with their prompt by chance."""


ALL_TRAINED = (
    "all tokens are trained, because no column says which are; map one with dataset.column_mapping, such as labels: …"
)
"""A notice about pre-tokenized rows."""

_EMPTY = "drop such rows with dataset.filters, or map another column with dataset.column_mapping"
_COLUMN = "map a column of another kind with dataset.column_mapping"


class ColumnsStage(Stage):
    name = "columns"
    description = "The rows in one canonical form: fields, prompt and completion, messages, pairs, or text."
    version = 8
    upstream = (RAW, SCHEMA)
    libraries = ("pyarrow", "numpy", "msgspec")
    # keys hold the resolved mapping, so a setting that does not change it changes nothing
    reads = (
        settings("prompt_template", "template", "format_type", "label_column", where="later"),
        Reads(lambda config: {"dataset.column_mapping": plain_roles(config.dataset.column_mapping)}, "later"),
        settings("dataset", "struct_nulls", when=lambda config: config.dataset.struct_nulls == "keep", where="later"),
        settings("dataset", "token_columns", given=True, where="later"),
    )
    droppable = True
    facts_ahead = True
    remedies: ClassVar = {
        "empty_answer": _EMPTY,
        "empty_prompt": _EMPTY,
        "empty_text": _EMPTY,
        "image_marks": "write one <image> in the texts for each image of the row, or none: images then come first",
        "image_part": "give the image once, as a path, an address, a data URL or {bytes, path}",
        "index_out_of_range": "drop rows with fewer elements with dataset.filters",
        "inner_padding": "write rows without padding, or map no attention_mask and use seq_lengths for packed rows",
        "invalid_documents": "write the lengths of the row's documents, or positions that start at 0 in each",
        "invalid_length": "write a number from 0 to the number of tokens of the row",
        "invalid_json": "write the value as JSON, or " + _COLUMN,
        "invalid_tool_call": "write calls as {name, arguments} in one place of the message",
        "invalid_weight": "give each message one weight: weight: 0.5, or train: false; the weight of a row is a number "
        "from 0 on",
        **SESSION_REMEDIES,
        "missing_messages": "put the messages that an item refers to, or encrypts, into the row",
        "missing_content": "give each message a content, or tool calls",
        "no_tokens": "drop such rows with dataset.filters: len(input_ids) > 0",
        "no_common_prompt": "map the prompt with dataset.column_mapping, or start both answers with the same messages",
        "no_messages": "drop such rows with dataset.filters: len(messages) > 0",
        "not_a_label": "write true or false, or map another column as the label with dataset.column_mapping",
        "not_a_mask": "write 1 for tokens that count, 0 for others; other numbers can be mapped as weights",
        "not_a_number": "write finite numbers, 0 where a token has none",
        "not_messages": "write a list of {role, content}, or " + _COLUMN,
        "not_template_kwargs": "write an object, or its JSON text",
        "not_text": "give it as text, or " + _COLUMN,
        "not_token_ids": "write lists of integers, or map another column as input_ids with dataset.column_mapping",
        "not_tools": "write a list of tools in OpenAI's format, or its JSON text",
        "not_turns": "write a list of [question, answer]",
        "same_answers": "drop such rows with dataset.filters: chosen != rejected",
        "other_label": "write labels as Hugging Face does: the token itself where it is trained, else -100",
        "private_use": "remove the character from the data",
        "started_answer": "move it to the start of the answer, or end the prompt with the user's message",
        "unequal_lengths": "write lists of one length in each row",
        "unknown_role": "rename the role in the data",
    }

    def prepare(self, context: Context) -> Work:
        columns = context.facts(SCHEMA)["columns"]
        check_kept_columns(context.config, columns)
        _check_struct_nulls(context.config)
        mapping = resolve(context.config, columns)
        return Work(
            self.inputs(context),
            lambda table: to_canonical(table, mapping),
            settings={"mapping": mapping.to_json()},
            notes=lambda: _notes(mapping, columns, context.config.dataset),
        )

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        counters, sentences = manifest.counters, session_notices(manifest.counters)
        if (rows := counters.get(NULL_FIELDS)) and "struct_nulls" not in context.config.dataset.model_fields_set:
            sentences.append(
                f"{rows:,} rows have null fields in structs; they are omitted, because Arrow also gives a struct the "
                "fields of other rows. To write them as null, set dataset.struct_nulls: keep"
            )
        if rows := counters.get(REMOVED):
            removed = "rows repeat the prompt at the start of their answers; the repetition is removed"
            sentences.append(f"{rows:,} {removed}")
        if (rows := counters.get(REPEATED, 0)) > _FEW * manifest.total("rows_out"):
            sentences.append(
                f"{rows:,} answers begin with their prompt, or with its last line, which is trained as part of the "
                "answer; remove it in the data if it is repeated"
            )
        return sentences

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return the resolved mapping."""
        return {"mapping": resolve(context.config, context.facts(SCHEMA)["columns"]).to_json()}

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        return {"unused_columns": manifest.notes.get("unused_columns", [])}

    def contract(self, columns: pa.Schema) -> Contract:
        return contract_of(columns)

    def fits(self, columns: pa.Schema, facts: Mapping[str, Any]) -> bool:
        """Whether the columns are those of the mapping in the facts."""
        mapping, own = facts["mapping"], (ROW, ROW_WEIGHT, REFERENCES_COLUMN, IMAGES_COLUMN)
        types = {field.name: field.type for field in columns if field.name not in own}
        if (ROW_WEIGHT in columns.names) != ("weight" in mapping):
            return False
        if mapping["form"] in FORMS:
            of_tokens = dict.fromkeys((f"{PER_TOKEN}{name}" for name in mapping.get("token_columns", ())), OF_TOKENS)
            return types == FORMS[mapping["form"]].types | of_tokens
        texts = mapping.get("objects") or {*types.values()} <= {pa.string()}
        return types.keys() == mapping.get("roles", types).keys() and texts


def _check_struct_nulls(config: PipelineConfig) -> None:
    """Check that `struct_nulls: keep` has an effect.

    Raises:
        ConfigError: all files have a format without structs.
    """
    source = locate(config) if config.dataset.struct_nulls == "keep" else None
    files = source.files if isinstance(source, SourceFiles) else []
    if found := {file.format for file in files} - TABLES:
        message = f"{', '.join(sorted(found))} files keep every null that is written; omit this setting"
        raise config.fault("dataset.struct_nulls", message)


STAGE = ColumnsStage()


def _notes(mapping: ColumnMapping, columns: Columns, dataset: DatasetConfig) -> dict[str, Any]:
    questions = weight_questions(mapping, columns, dataset.keep_columns, dataset.filters)
    if form_named(mapping.form).encoded and not {*TRAINED_BY} & {*mapping.roles}:
        questions = [*questions, ALL_TRAINED]
    unused = {"unused_columns": unused_by(mapping, columns, dataset.keep_columns)}
    return unused | ({"notices": questions} if questions else {})
