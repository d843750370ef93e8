"""Rows with the trained part marked, as Markdown, in code blocks: nothing in them is formatted, linked or loaded."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tokenloom.assets.building.build import Build
from tokenloom.assets.shown_rows.marked_text import BRACKETS, bracketed
from tokenloom.assets.shown_rows.token_runs import Decoder, Run
from tokenloom.assets.stage.rejects import no_rejects
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store import Manifest, ManifestChunk
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tokenizers import TOKENIZER

ROWS = 4
LONGEST_RUNS = (900, 300, 120, 60, 24)
"""Most characters of a run that are shown: the first, or where the text must be short, the first one that fits."""

INLINE = 1000
"""Dagster's page shows a Markdown text at once if it is shorter than this, and else a link to it."""

WIDTH = 84
"""Longest line in characters; the viewer does not wrap code blocks."""

LEGEND = f"{'trained'.join(BRACKETS)}; the rest is masked. Long lines are wrapped."
_VERSION = 3


def marked_sequences(build: Build, manifest: Manifest, first: pa.Table) -> dict[str, str]:
    """Return the first sequences, decoded. They are kept in the store, so that a tokenizer is loaded only once.

    Args:
        manifest: of the sequences.
        first: the output of its first chunk.

    Returns:
        `sample`: one that the page shows at once; `more_samples`: several, if they are longer.
    """
    chunk, facts = manifest.chunks[0], build.manifest("tokenizer").facts
    key = digest_json(["marked sequences", _VERSION, chunk.output, chunk.place(0), facts["digest"]])
    action = build.store.find_action(key)
    if action is not None:
        (stored,) = build.store.objects.get_verified(action.output).to_pylist()
        return stored
    tokenizer = Path(build.store.tokenizer_folder(facts["digest"]), TOKENIZER).read_bytes()
    marked = _samples(_decoded(Decoder(tokenizer, facts["control"]), chunk, first.slice(0, ROWS)))
    counts: dict[str, int] = dict.fromkeys(("rows_in", "rows_out", "rejected", "filtered", "tokens"), 0)
    build.store.put_action(key, pa.Table.from_pylist([marked]), no_rejects(), counts, {}, compressed=True)
    return marked


def marked_prompts(manifest: Manifest, first: pa.Table) -> dict[str, str]:
    """Return the first rendered texts, as `marked_sequences` does.

    Args:
        manifest: of the prompts.
        first: the output of its first chunk.
    """
    return _samples(_rendered(manifest.chunks[0], first.slice(0, ROWS)))


Shown = tuple[str, Sequence[Run]]
"""The title of a text, and its runs."""


def _decoded(decoder: Decoder, chunk: ManifestChunk, table: pa.Table) -> Iterator[Shown]:
    for number in range(table.num_rows):
        label = f", label {table['label'][number].as_py()}" if "label" in table.column_names else ""
        for side, columns in sides(table).items():
            runs = [*decoder.runs_of(columns, number, (), chunk.place)]
            place = chunk.place(columns["rows"][number][0].as_py())
            tokens, trained = sum(run.tokens for run in runs), sum(run.tokens for run in runs if run.trained)
            side = f", {side}" if side else ""
            yield f"{chunk.split}, {place}{side}{label}: {tokens:,} tokens, {trained:,} trained", runs


def _rendered(chunk: ManifestChunk, table: pa.Table) -> Iterator[Shown]:
    for number in range(table.num_rows):
        for side, columns in sides(table).items():
            text = columns["text"][number].as_py().encode()
            spans = columns["spans"][number].as_py()
            runs = [
                Run(text[span["start"] : span["end"]].decode(errors="replace"), span["weight"] > 0, span["control"], 0)
                for span in spans
            ]
            side = f", {side}" if side else ""
            yield f"{chunk.split}, {chunk.place(table['_row'][number].as_py())}{side}", runs


def _samples(shown: Iterator[Shown]) -> dict[str, str]:
    texts = [(title, [*runs]) for title, runs in shown]
    every = _markdown(texts, LONGEST_RUNS[0])
    if len(every) < INLINE:
        return {"sample": every}
    short = (_markdown(texts[:1], longest) for longest in LONGEST_RUNS)
    return {"sample": next((text for text in short if len(text) < INLINE), every), "more_samples": every}


def _markdown(shown: Sequence[Shown], longest: int) -> str:
    """Return titles and runs as Markdown.

    Args:
        longest: most characters of a run.
    """
    parts = [LEGEND]
    for title, runs in shown:
        text = bracketed(replace(run, text=_shortened(run.text, longest)) for run in runs)
        lines = [wrapped for line in text.split("\n") for wrapped in _wrapped(line)]
        parts.append(_block([title, "", *lines]))
    return "\n\n".join(parts)


def _shortened(text: str, longest: int) -> str:
    """Return a text without its middle, if it is long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False) or [line]


def _block(lines: Sequence[str]) -> str:
    """Return lines as a code block of Markdown, fenced by more backticks than any of them has in a row."""
    text = "\n".join(lines)
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
