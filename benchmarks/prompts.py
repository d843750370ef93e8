"""Time the rendering of chats: by Arrow's kernels or, if the template does more than place contents, by Jinja.

usage: prompts.py [--rows N] [--runs N] TEMPLATE…

Prints, for each chat template, rows per second of the stage's function on all cores, and the ratio to plain rendering
of the same rows in one process: Jinja's sandbox, set up as in `transformers`, returning only texts.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import jinja2
import jinja2.sandbox
import pyarrow as pa
from alpaca import source
from timing import median_seconds

from tokenloom.assets.prompts.chat import ChatFormat
from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PromptTemplateConfig
from tokenloom.resources.engines.engine import ComputeEngine, cpu_count
from tokenloom.resources.templates.jinja import JinjaTemplate

CHUNK = 10_000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def chunks(count: int) -> list[pa.Table]:
    """Return prompts and completions as the stage `columns` outputs them."""
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as folder:
        rows, _ = source(Path(folder))
    rows = (rows * (count // len(rows) + 1))[:count]
    columns = {
        ROW: pa.array(range(count), pa.int32()),
        "prompt": [f"{row['instruction']}\n\n{row['input']}".strip() for row in rows],
        "completion": [row["output"] for row in rows],
        "system": [""] * count,
    }
    table = pa.table(columns)
    return [table.slice(start, CHUNK).combine_chunks() for start in range(0, count, CHUNK)]


def as_transformers(source: str) -> jinja2.Template:
    """Compile the template in the environment that `transformers` uses."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = json.dumps

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source))


def plain(template: jinja2.Template, tables: list[pa.Table]) -> None:
    for table in tables:
        for row in table.to_pylist():
            messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
            template.render({"messages": messages, "add_generation_prompt": False, **TOKENS})


def rendered(engine: ComputeEngine, chat: ChatFormat, tables: list[pa.Table]) -> int:
    """Render all rows as a build does. Return their number."""
    render = chat.render if chat.opacity is None else engine.apart(chat.render)
    return sum(output.table.num_rows for output in engine.map(render, tables))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=520_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("templates", nargs="+", metavar="TEMPLATE")
    parsed = parser.parse_args()
    tables, some = chunks(parsed.rows), chunks(20_000)
    engine = ComputeEngine()
    print(f"{parsed.rows:,} rows, {cpu_count()} cores, medians of {parsed.runs} runs")
    for path in map(Path, parsed.templates):
        source = path.read_text(encoding="utf-8")
        prompt = PromptTemplateConfig(format_type="chat")
        chat = ChatFormat(JinjaTemplate(source), prompt, TOKENS, CONTROL, None, "</s>")
        taken = median_seconds(lambda chat=chat: rendered(engine, chat, tables), parsed.runs)
        known = as_transformers(source)
        alone = median_seconds(lambda known=known: plain(known, some), parsed.runs) / 20_000 * parsed.rows
        how = "compiled" if chat.opacity is None else f"Jinja: {chat.opacity}"
        print(f"{path.name:28} {parsed.rows / taken:12,.0f} rows/s  {alone / taken:6.1f} × plain Jinja  ({how})")


if __name__ == "__main__":
    main()
