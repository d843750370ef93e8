"""Writes the page of `tokenloom preview`: one HTML file that loads nothing and runs only its own script."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tokenloom.assets.sequences.lengths import AFTER, BEFORE, Histogram
from tokenloom.assets.shown_rows.token_runs import ShownRow, cut_marker
from tokenloom.assets.stage.names import LOADED, TOKENIZERS
from tokenloom.assets.stage.rejects import ROW, fate
from tokenloom.cli.options import write_file
from tokenloom.cli.tables import trained_counts
from tokenloom.errors import visible
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.manifest import TRAINED

LISTED = 20
"""Rejected rows listed per code."""


@dataclass(frozen=True)
class Reject:
    """A rejected row; `field` is the column at fault, or empty."""

    place: str
    split: str
    stage: str
    code: str
    field: str
    message: str
    excerpt: str


@dataclass(frozen=True)
class Lengths:
    """Histograms of the lengths of rows, and of the sequences that they became."""

    max_length: int
    rows: Histogram
    sequences: Histogram

    @property
    def labels(self) -> list[str]:
        """The lengths in each bucket, such as "65 to 128"."""
        bounds = self.rows.bounds
        starts = [low + 1 for low in (0, *bounds)]
        within = (f"{low:,} to {high:,}" for low, high in zip(starts, bounds, strict=False))
        return [*within, f"{starts[-1]:,} and more"]

    @property
    def table(self) -> list[tuple[str, tuple[int, int]]]:
        """The numbers of rows and of sequences in each bucket, with its label."""
        return list(zip(self.labels, zip(self.rows.counts, self.sequences.counts, strict=True), strict=True))


@dataclass(frozen=True)
class Page:
    """The contents of the page. Everything after `thumbnails` is omitted from a page without it.

    Args:
        dataset: its name.
        rows: the rows shown.
        shown_as: where they are from, in words.
        thumbnails: thumbnails of the rows' images as data URLs, by digest.
        facts: what the head lists, by name.
        splits: rows, sequences and tokens of each split, by its name.
        stages: rows in, rows out, rejected rows and filtered rows of each stage, by its name.
        lengths: of rows and sequences.
        trained: trained tokens by role and by part of answers.
        turns: trained tokens by turn.
        codes: number of rejected rows by code.
        rejects: the first rejected rows of each code.
    """

    dataset: str
    rows: Sequence[ShownRow]
    shown_as: str = ""
    thumbnails: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stages: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: Lengths | None = None
    trained: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    rejects: Sequence[Reject] = ()


def built_page(page: Page, store: ArtifactStore, stages: Sequence[str]) -> Page:
    """Return a page with everything that the manifests of its dataset's stages add."""
    manifests = {stage: store.manifest(page.dataset, stage) for stage in stages if stage != TOKENIZERS}
    sequences = manifests[LOADED]
    counters, longest = sequences.counters, sequences.facts["max_length"]
    counts = ("rows_out", "table_rows", "tokens")
    splits = {
        split: tuple(sum(getattr(chunk, count) for chunk in sequences.of_split(split)) for count in counts)
        for split in sequences.splits
    }
    counts = ("rows_in", "rows_out", "rejected", "filtered")
    counted = {stage: tuple(map(manifest.total, counts)) for stage, manifest in manifests.items()}
    totals = {"rows": 0, "sequences": 1, "tokens": 2}
    settings = sequences.parts["settings"]
    facts = {
        "stage": sequences.stage,
        "version": sequences.digest[:12],
        "split": ", ".join(splits),
        **{name: f"{sum(counts[at] for counts in splits.values()):,}" for name, at in totals.items()},
        "trained tokens": f"{counters[TRAINED]:,}",
        "rejected rows": f"{sum(counts[2] for counts in counted.values()):,}",
        "filtered rows": f"{sum(counts[3] for counts in counted.values()):,}",
        "max_length": f"{longest:,}",
        "strategy": settings["length.strategy"],
        "packing": settings["length.packing"],
    }
    lengths = Lengths(longest, *(Histogram.of(counters, name, longest) for name in (BEFORE, AFTER)))
    trained, turns = trained_counts(counters)
    codes: Counter[str] = Counter()
    rejects = list(chain.from_iterable(_rejects(store, manifest, codes) for manifest in manifests.values()))
    return replace(
        page, facts=facts, splits=splits, stages=counted, lengths=lengths, trained=trained, turns=turns,
        codes=dict(codes.most_common()), rejects=rejects,
    )  # fmt: skip


def _rejects(store: ArtifactStore, manifest: Manifest, codes: Counter[str]) -> Iterator[Reject]:
    """Yield the rejected rows of a stage that are listed; adds all of them to `codes`."""
    for chunk in manifest.chunks:
        if not chunk.rejects:
            continue
        table = store.objects.get_intact(chunk.rejects)
        for code in pc.unique(table["code"]).to_pylist():
            found = table.filter(pc.equal(table["code"], code))
            for reject in found.slice(0, max(LISTED - codes[code], 0)).to_pylist():
                yield Reject(chunk.place(reject.pop(ROW)), chunk.split, **reject)
            codes[code] += found.num_rows


LONGEST_CUT = 2000
"""Characters shown of the text that was cut in one place."""


def write_page(target: str, page: Page) -> None:
    """Write the page to the file that `--html` names.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_file("--html", target, rendered_page(page))


def rendered_page(page: Page) -> str:
    """Return the page as HTML. Every value is escaped; the policy allows this style and this script by their hashes."""
    template, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "finalize": _shown}
    environment = Environment(autoescape=True, undefined=StrictUndefined, **options)
    return environment.from_string(template).render(
        page=page, style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script),
        cut_marker=cut_marker, fate=fate, listed=LISTED, longest_cut=LONGEST_CUT,
    )  # fmt: skip


def _shown(value: Any) -> Any:
    return visible(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
