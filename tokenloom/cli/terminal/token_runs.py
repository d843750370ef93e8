"""Reads rows as the model sees them: runs of trained, masked and control tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.assets.stage.rejects import ROW
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.tables.preference_pairs import sides
from tokenloom.resources.tables.ragged import list_parts
from tokenloom.resources.tokenizers import TOKENIZER, naming_tokenizer

MOST_SHOWN = 16
"""Maximum number of sequences shown of a row that has several texts, or is split."""


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of one kind, and the text that they decode to."""

    text: str
    trained: bool
    control: bool
    tokens: int


@dataclass(frozen=True)
class ShownRow:
    """The sequences of a row, or the reason why it has none.

    Args:
        row: its number among the raw rows of all files and splits, counted from 0.
        split: its split.
        place: its file and position.
        sides: the chosen and rejected sequences of a pair, by name; other rows have one sequence, under "", or several,
            numbered.
        absence: why the row has no sequence.
        label: the label of a kto row.
    """

    row: int
    split: str
    place: str
    sides: Mapping[str, tuple[Run, ...]]
    absence: str = ""
    label: bool | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(run.tokens for runs in self.sides.values() for run in runs)

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(run.tokens for runs in self.sides.values() for run in runs if run.trained)


class Decoder:
    """Decodes tokens to runs of one kind.

    Args:
        tokenizer: a tokenizer.json.
        control: the control tokens.
    """

    def __init__(self, tokenizer: bytes, control: Sequence[str]):
        from tokenizers import Tokenizer

        with naming_tokenizer("cannot be loaded"):
            self._tokenizer = Tokenizer.from_buffer(tokenizer)
        ids = map(self._tokenizer.token_to_id, control)
        self._control = [index for index in ids if index is not None]

    def runs(self, ids: Any, trained: Any) -> Iterator[Run]:
        """Yield runs of one kind.

        Args:
            ids: int [length].
            trained: bool [length].
        """
        control = np.isin(ids, self._control)
        changes = np.flatnonzero((np.diff(trained) != 0) | (np.diff(control) != 0)) + 1
        for start, end in zip([0, *changes], [*changes, len(ids)], strict=True):
            with naming_tokenizer("cannot decode its own tokens"):
                text = self._tokenizer.decode(ids[start:end].tolist(), skip_special_tokens=False)
            yield Run(text, bool(trained[start]), bool(control[start]), int(end - start))

    def sequences(self, table: pa.Table, position: int) -> tuple[dict[str, tuple[Run, ...]], bool | None]:
        """Return the `sides` and the `label` of a `ShownRow`, without sides if no sequence has the row.

        Args:
            table: sequences.
            position: position of the row in its raw chunk.
        """
        offsets, rows = list_parts(table["rows"])
        matches = np.flatnonzero(rows.to_numpy() == position)
        if not len(matches):
            return {}, None
        found = np.unique(np.searchsorted(offsets, matches, side="right")[:MOST_SHOWN] - 1).tolist()
        runs = {
            " ".join(filter(None, (f"{number} of {len(found)}" if len(found) > 1 else "", side))): tuple(
                self._runs_of(columns, sequence)
            )
            for number, sequence in enumerate(found, 1)
            for side, columns in sides(table).items()
        }
        return runs, table["label"][found[0]].as_py() if "label" in table.column_names else None

    def prompt(self, prompts: pa.Table, position: int) -> dict[str, tuple[Run, ...]]:
        """Return the `sides` of a row's prompt for inference, empty if it has none.

        Args:
            prompts: as `PromptEngine.prompt_only` returns them.
        """
        matches = np.flatnonzero(prompts[ROW].to_numpy() == position)
        if not len(matches):
            return {}
        ids = np.array(prompts["input_ids"][matches[0]].as_py())
        return {"": tuple(self.runs(ids, np.zeros(len(ids), bool)))}

    def _runs_of(self, table: pa.Table, sequence: int) -> Iterator[Run]:
        ids = np.array(table["input_ids"][sequence].as_py())
        yield from self.runs(ids, np.array(table["trained"][sequence].as_py()) == 1)


def reject_reason(reject: Mapping[str, Any]) -> str:
    """Return why a row has no sequence, given its row of a rejects table."""
    return f"rejected by {reject['stage']}: {reject['code']}: {reject['message']}"


class RowReader:
    """Reads the sequences of a built dataset by raw row.

    Args:
        store: the store.
        dataset: name of the dataset.
    """

    def __init__(self, store: ArtifactStore, dataset: str):
        self._store = store
        self._manifests = {
            stage: store.manifest(dataset, stage) for stage in ("raw", "columns", "prompts", "tokens", "sequences")
        }
        facts = store.manifest(dataset, "tokenizer").facts
        folder = store.tokenizer_folder(facts["digest"])
        self._decoder = Decoder(Path(folder, TOKENIZER).read_bytes(), facts["control"])
        self._first_row = np.cumsum([0, *(chunk.rows_out + chunk.rejected for chunk in self._raw.chunks)])

    @property
    def _raw(self) -> Manifest:
        return self._manifests["raw"]

    def __len__(self) -> int:
        """Return the number of raw rows, without those that the raw stage filtered."""
        return int(self._first_row[-1])

    @property
    def version(self) -> str:
        """The digest of the dataset."""
        return self._manifests["sequences"].digest

    def reach(self, rows: Sequence[int]) -> int:
        """Return how many of the first raw chunks have all of some rows."""
        return max(map(self._number, rows), default=-1) + 1

    def has_raw(self, rows: Sequence[int]) -> bool:
        """Return whether the raw chunks of some rows are stored; `gc` can drop them."""
        outputs = {self._raw.chunks[self._number(row)].output for row in rows}
        return None not in map(self._store.objects.size, outputs)

    def read(self, row: int) -> ShownRow:
        """Return the sequences that hold a raw row, at most `MOST_SHOWN`; if packed, with the other rows in them."""
        number, position, chunk = self._place(row)
        found, label = self._decoder.sequences(self._store.objects.get_intact(chunk.output), position)
        absence = "" if found else self._absence(number, position)
        return ShownRow(row, chunk.split, chunk.place(position), found, absence, label)

    def _place(self, row: int) -> tuple[int, int, Any]:
        """Return a raw row's chunk number, its position in that chunk, and the chunk of its sequences."""
        number = self._number(row)
        position = self._position(number, row - int(self._first_row[number]))
        return number, position, self._manifests["sequences"].chunks[number]

    def _number(self, row: int) -> int:
        """Return the number of a raw row's chunk."""
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def _position(self, number: int, local: int) -> int:
        """Return the position of the `local`-th raw row of a chunk, counting rejected rows."""
        chunk = self._raw.chunks[number]
        objects = [chunk.output, *([chunk.rejects] if chunk.rejects else [])]
        positions = np.concatenate([self._store.objects.get_intact(digest)[ROW].to_numpy() for digest in objects])
        return int(np.sort(positions)[local])

    def _absence(self, number: int, position: int) -> str:
        """Return why a raw row has no sequence."""
        for manifest in self._manifests.values():
            rejects = manifest.chunks[number].rejects
            for reject in self._store.objects.get_intact(rejects).to_pylist() if rejects else []:
                if reject[ROW] == position:
                    return reject_reason(reject)
        return "filtered"
