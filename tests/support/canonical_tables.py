"""Rows in canonical form through the later stages: for tests of pairs, weights and tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.building.report import StageReport
from tokenloom.assets.prompts.render import renderer
from tokenloom.assets.prompts.stage import STAGE
from tokenloom.assets.stage.definition import ChunkOutput, validate, validate_rejects
from tokenloom.assets.stage.forms import FORMS
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, Manifest, ManifestChunk, Run
from tokenloom.resources.tokenizers import resolve_tokenizer

Row = dict[str, Any]

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"

TOOLS = (
    "{% if tools %}{{ '<|im_start|>tools\n' }}{{ tools | tojson }}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + (' ' + m.name if m.name else '') + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '<call>' + (call.function | tojson) + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)
"""The same with generation marks, names, tools and tool calls."""


def said(role: str | None, content: str | None = "", **more: Any) -> Row:
    """A canonical message. `reasoning` and `weight` are columns; other fields are passed to the template."""
    columns = {name: more.pop(name, None) for name in ("reasoning", "weight")}
    thought = {} if columns["reasoning"] is None else {"reasoning_content": None}
    fields = {**thought, **{name: value for name, value in more.items() if value is not None}}
    written = json.dumps({"role": None, "content": None, **fields}, ensure_ascii=False) if fields else None
    return {"role": role, "content": content, **columns, "fields": written}


def call(name: str, arguments: Any, identity: str | None = None) -> Row:
    """A tool call in OpenAI's layout."""
    identified = {} if identity is None else {"id": identity}
    return {**identified, "type": "function", "function": {"name": name, "arguments": arguments}}


def field_of(message: Row, name: str) -> Any:
    """Return one of a canonical message's further fields, or None."""
    return json.loads(message["fields"] or "{}").get(name)


def chatml(messages: Sequence[Row]) -> str:
    return "".join(f"<|im_start|>{found['role']}\n{found['content']}<|im_end|>\n" for found in messages)


def table_of(form: str, rows: Sequence[Row], first: int = 0) -> pa.Table:
    """Rows in the exact types of a form; those of `messages` describe no tools unless they say so."""
    fields = [(ROW, pa.int32()), *FORMS[form].types.items()]
    numbered = [{ROW: first + index, "tools": "", "template_kwargs": "", **row} for index, row in enumerate(rows)]
    return pa.table({name: pa.array([row[name] for row in numbered], kind) for name, kind in fields})


def config_of(
    folder: Path, prompt: Row | None = None, template: str | None = CHATML, **sections: Any
) -> PipelineConfig:
    tokenizer = {"name_or_path": str(folder), "chat_template": template, **sections.pop("tokenizer", {})}
    prompt = {"format_type": "chat", **(prompt or {})}
    return PipelineConfig.from_mapping(
        {"dataset": {"name": "x"}, "tokenizer": tokenizer, "prompt_template": prompt, **sections}
    )


def prompts_of(form: str, table: pa.Table, config: PipelineConfig) -> ChunkOutput:
    """Return the prompts stage's output for canonical rows, checked against its contract."""
    out = renderer(config, {"form": form}, resolve_tokenizer(config))(table)
    validate(STAGE, out.table)
    validate_rejects(out.rejects)
    assert out.rows_in == table.num_rows == out.table.num_rows + out.rejects.num_rows + out.filtered
    return out


def weighted_parts(text: str, spans: list[Row]) -> list[tuple[str, float]]:
    """Maximal runs of bytes of one weight other than 0, decoded."""
    data, parts, end, weight = text.encode(), [], -1, 0.0
    for span in spans:
        piece = data[span["start"] : span["end"]]
        if span["weight"] and span["start"] == end and span["weight"] == weight:
            parts[-1][0] += piece
        elif span["weight"]:
            parts.append([piece, span["weight"]])
        end, weight = span["end"], span["weight"]
    return [(piece.decode(), found) for piece, found in parts]


def build_canonical(
    config: PipelineConfig, store: ArtifactStore, form: str, tables: Sequence[pa.Table]
) -> tuple[Build, dict[str, StageReport]]:
    """Build a dataset from its canonical chunks on; the stages before them seem to have run."""
    build = Build(config, store)
    store.prepare()
    chunks = []
    for number, table in enumerate(tables):
        output = ChunkOutput(table, table.num_rows)
        action = store.put_action(f"{number:064x}", table, output.rejects, output.counts(), {}, True)
        counts = vars(action)
        place = {"split": "train", "runs": (Run(str(number), offset=0),), "unit": "row"}
        chunks.append(ManifestChunk(**place, input=f"{number:064x}", key=f"{number:064x}", **counts))
    for stage in ("raw", "columns"):
        store.put_manifest(Manifest(build.name, stage, tuple(chunks), {"mapping": {"form": form}}))
    return build, {stage: build.run(stage) for stage in ("prompts", "tokenizer", "tokens", "sequences")}
