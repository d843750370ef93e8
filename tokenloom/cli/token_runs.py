"""Rows as the model will see them: runs of tokens that are trained, masked, or control tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.assets.stage.rejects import ROW
from tokenloom.config import PipelineConfig
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.ragged import list_parts
from tokenloom.resources.tables.sides import sides
from tokenloom.resources.tokenizers import TOKENIZER


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one kind, and the text that they decode to."""

    text: str
    trained: bool
    control: bool
    tokens: int


@dataclass(frozen=True)
class ShownRow:
    """The sequences of a row for the eye, or the reason why it has none.

    `row` counts the raw rows of all files and splits, from 0; `place` says where it stands. `sides` are a pair's chosen
    and rejected sequence, by name; anything else has one, under "". `label` is what kto data says of it.
    """

    row: int
    split: str
    place: str
    sides: Mapping[str, tuple[Run, ...]]
    absence: str = ""
    label: bool | None = None

    @property
    def tokens(self) -> int:
        return sum(run.tokens for runs in self.sides.values() for run in runs)

    @property
    def trained(self) -> int:
        return sum(run.tokens for runs in self.sides.values() for run in runs if run.trained)


class RowReader:
    """Reads built sequences by raw row.

    Args:
        store, dataset: what was built.
    """

    def __init__(self, store: ArtifactStore, dataset: str):
        from tokenizers import Tokenizer

        self._store = store
        self._manifests = {
            stage: store.manifest(dataset, stage) for stage in ("raw", "columns", "prompts", "tokens", "sequences")
        }
        facts = store.manifest(dataset, "tokenizer").facts
        self._tokenizer_folder = str(store.tokenizer_folder(facts["digest"]))
        self._tokenizer = Tokenizer.from_file(f"{self._tokenizer_folder}/{TOKENIZER}")
        found = (self._tokenizer.token_to_id(token) for token in facts["control"])
        self._control = [index for index in found if index is not None]
        self._first_row = np.cumsum([0, *(chunk.rows_out + chunk.rejected for chunk in self._raw.chunks)])

    @property
    def _raw(self) -> Manifest:
        return self._manifests["raw"]

    def __len__(self) -> int:
        """Number of raw rows, those that `raw` filtered apart."""
        return int(self._first_row[-1])

    def raw_outputs(self, rows: Sequence[int], inference: bool = False) -> list[str]:
        """Digests of the raw chunks that showing some rows reads, or showing what is given to the model of them."""
        return [self._raw.chunks[self._number(row)].output for row in rows] + (self._heads() if inference else [])

    def read(self, row: int) -> ShownRow:
        """The sequence that holds a raw row; with packing, together with its neighbours."""
        number, position, chunk = self._place(row)
        table = self._store.objects.get(chunk.output)
        offsets, rows = list_parts(table["rows"])
        found = np.flatnonzero(rows.to_numpy() == position)
        place = chunk.place(position)
        if not len(found):
            return ShownRow(row, chunk.split, place, {}, self._absence(number, position))
        sequence = int(np.searchsorted(offsets, found[0], side="right")) - 1
        runs = {side: tuple(self._runs(columns, sequence)) for side, columns in sides(table).items()}
        label = table["label"][sequence].as_py() if "label" in table.column_names else None
        return ShownRow(row, chunk.split, place, runs, label=label)

    def read_prompts(self, config: PipelineConfig, rows: Sequence[int]) -> Iterator[ShownRow]:
        """What the model is given of raw rows when it is to answer them."""
        from tokenloom.assets.building.prompt_engine import PromptEngine, with_tokenizer

        if config.tokenizer.train is not None:
            config = with_tokenizer(config, self._tokenizer_folder)
        heads = [self._store.objects.get(digest) for digest in self._heads()]
        for row in rows:
            number, position, chunk = self._place(row)
            engine = PromptEngine(config, heads)
            prompts = engine.prompt_only(self._store.objects.get(self._raw.chunks[number].output))
            where = (row, chunk.split, chunk.place(position))
            if len(found := np.flatnonzero(prompts[ROW].to_numpy() == position)):
                ids = np.array(prompts["input_ids"][found[0]].as_py())
                yield ShownRow(*where, {"": tuple(self._of_kinds(ids, np.zeros(len(ids), bool)))})
                continue
            why = [reject for reject in engine.rejects.to_pylist() if reject[ROW] == position]
            told = [f"rejected: {reject['code']}: {reject['message']}" for reject in why]
            yield ShownRow(*where, {}, told[0] if told else self._absence(number, position))

    def _place(self, row: int) -> tuple[int, int, Any]:
        """A raw row's chunk by number, its position in it, and that chunk's sequences."""
        number = self._number(row)
        position = self._position(number, row - int(self._first_row[number]))
        return number, position, self._manifests["sequences"].chunks[number]

    def _number(self, row: int) -> int:
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def _heads(self) -> list[str]:
        """The first raw chunk of each file or split."""
        return list({chunk.source: chunk.output for chunk in reversed(self._raw.chunks)}.values())

    def _position(self, number: int, local: int) -> int:
        """The position within its chunk of the raw row that is the chunk's `local`-th."""
        chunk = self._raw.chunks[number]
        objects = [chunk.output, *([chunk.rejects] if chunk.rejects else [])]
        positions = np.concatenate([self._store.objects.get(digest)[ROW].to_numpy() for digest in objects])
        return int(np.sort(positions)[local])

    def _runs(self, table: Any, sequence: int) -> Iterator[Run]:
        ids = np.array(table["input_ids"][sequence].as_py())
        yield from self._of_kinds(ids, np.array(table["trained"][sequence].as_py()) == 1)

    def _of_kinds(self, ids: Any, trained: Any) -> Iterator[Run]:
        control = np.isin(ids, self._control)
        changes = np.flatnonzero((np.diff(trained) != 0) | (np.diff(control) != 0)) + 1
        for begin, end in zip([0, *changes], [*changes, len(ids)], strict=True):
            text = self._tokenizer.decode(ids[begin:end].tolist(), skip_special_tokens=False)
            yield Run(text, bool(trained[begin]), bool(control[begin]), int(end - begin))

    def _absence(self, number: int, position: int) -> str:
        """Why a raw row has no sequence."""
        for stage, manifest in self._manifests.items():
            rejects = manifest.chunks[number].rejects
            for reject in self._store.objects.get(rejects).to_pylist() if rejects else []:
                if reject[ROW] == position:
                    return f"rejected by {stage}: {reject['code']}: {reject['message']}"
        return "filtered"
