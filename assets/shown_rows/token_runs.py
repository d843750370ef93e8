"""Reads rows as the model sees them: runs of trained, masked and control tokens and images, or text with brackets
around what is trained and a mark in place of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.prompts.spans import IMAGE, SPAN_ROLES
from tokenloom.assets.sequences.shown import LOSSES, Gap, Gaps, dropped_tokens
from tokenloom.assets.sequences.trees import begin_branches
from tokenloom.assets.stage.definition import explained, stage_named
from tokenloom.assets.stage.names import LOADED, PROMPTS, RAW, STAGES, TOKENIZERS, TOKENS
from tokenloom.assets.stage.rejects import OVERLAP, ROW, fate
from tokenloom.errors import visible
from tokenloom.resources.processors.certificate import CERTIFICATE, ImageTokens
from tokenloom.resources.store import ArtifactStore, Manifest
from tokenloom.resources.store.objects import MEDIA
from tokenloom.resources.tables.ragged import list_parts, offsets_of, sides
from tokenloom.resources.tables.sequence_schema import POSITIONS, without_padding
from tokenloom.resources.tokenizers import TOKENIZER, naming_tokenizer

if TYPE_CHECKING:
    from tokenloom.assets.tokens.encode import ContentEncoder


@dataclass(frozen=True)
class ShownImage:
    """An image of a row.

    Args:
        media: the digest of its bytes.
        width, height: in pixels.
    """

    media: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Mapping[str, Any]) -> ShownImage:
        """Return an image of a row's `media`."""
        return cls(image[MEDIA], image["width"], image["height"])

    def mark(self, tokens: int = 0) -> str:
        """Return what is shown in place of the image.

        Args:
            tokens: the number of its tokens; 0: it has none yet.
        """
        return f"[image {self.width:,}×{self.height:,}{f', {counted(tokens)}' if tokens else ''}]"


def counted(tokens: int) -> str:
    """Return a number of tokens in words."""
    return f"{tokens:,} {'token' if tokens == 1 else 'tokens'}"


def image_ids(folder: Path) -> list[int]:
    """Return the ids of the tokens of images, given the folder of a stored tokenizer; none without a processor."""
    file = folder / CERTIFICATE
    return ImageTokens.from_bytes(file.read_bytes()).ids if file.is_file() else []


def image_places(ids: np.ndarray, tokens_of_images: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first token of each image of a sequence, and the token after its last.

    The first and last tokens of an image can be others than `tokens_of_images`: as many before as after these, or one
    more, such as `<fake_token_around_image><global-img>` and `<fake_token_around_image>`.

    Args:
        ids: int [length].
        tokens_of_images: ids that only images have.
        counts: the number of tokens of each image, in order.
    """
    places = np.flatnonzero(np.isin(ids, tokens_of_images))
    for count in counts:
        if not len(places):
            return
        # tokens that only images have, of this image: the others of its tokens are around them
        inside = places[places < places[0] + count]
        around = count - int(inside[-1] - inside[0] + 1)
        start = max(int(inside[0]) - (around + 1) // 2, 0)
        yield start, min(start + count, len(ids))
        places = places[len(inside) :]


MOST_SHOWN = 16
"""Maximum number of sequences shown of a row that has several texts, or is split."""


@dataclass(frozen=True)
class TokenRun:
    """Consecutive tokens of one kind, and the text that they decode to.

    Args:
        dropped: the row has these tokens here, but the sequence does not: the row was cut.
        opens: marks where a row starts in a packed sequence; the text is the row's place in the source, without tokens.
        image: the image whose tokens these are; the text is its mark.
    """

    text: str
    trained: bool
    control: bool
    tokens: int
    dropped: bool = False
    opens: bool = False
    image: ShownImage | None = None


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
        code: the code of its rejection.
        label: the label of a kto row.
        notes: where the prompt's tokens are not those that it has at inference.
    """

    row: int
    split: str
    place: str
    sides: Mapping[str, tuple[TokenRun, ...]]
    absence: str = ""
    code: str = ""
    label: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> list[TokenRun]:
        """The runs of all sides."""
        return [run for runs in self.sides.values() for run in runs]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(run.tokens for run in self.runs if not run.dropped)

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(run.tokens for run in self.runs if run.trained)

    @property
    def dropped(self) -> int:
        """Number of tokens that were cut."""
        return sum(run.tokens for run in self.runs if run.dropped)


Shown = tuple[dict[str, tuple[TokenRun, ...]], bool | None]
"""`sides` and `label` of a `ShownRow`."""


class Decoder:
    """Decodes tokens to runs of one kind.

    Args:
        tokenizer: a tokenizer.json.
        control: the control tokens.
        images: the ids of the tokens of images.
    """

    def __init__(self, tokenizer: bytes, control: Sequence[str], images: Sequence[int] = ()):
        from tokenizers import Tokenizer

        with naming_tokenizer("cannot be loaded"):
            self._tokenizer = Tokenizer.from_buffer(tokenizer)
        self._control = [index for index in map(self._tokenizer.token_to_id, control) if index is not None]
        self._images = images

    def runs(
        self,
        ids: Any,
        trained: Any,
        gaps: Sequence[Gap] = (),
        starts: Mapping[int, str] = MappingProxyType({}),
        images: Sequence[Mapping[str, Any]] = (),
    ) -> Iterator[TokenRun]:
        """Yield runs of one kind.

        Args:
            ids: int [length].
            trained: bool [length].
            gaps: where tokens were cut, in order.
            starts: the place of each row, by the number of tokens before it.
            images: the images of the sequence.
        """
        control = np.isin(ids, self._control)
        places = image_places(ids, self._images, [image["tokens"] for image in images])
        shown = {start: (end, ShownImage.of(image)) for (start, end), image in zip(places, images, strict=False)}
        inside = np.zeros(len(ids) + 1, bool)
        for start, (end, _) in shown.items():
            # the tokens of an image are one run, whatever is trained or control among them
            inside[start + 1 : end] = True
        edges = (bound for start, (end, _) in shown.items() for bound in (start, end))
        changes = np.flatnonzero((np.diff(trained) != 0) | (np.diff(control) != 0)) + 1
        changes = changes[~inside[changes]]
        bounds = sorted({0, *changes.tolist(), *edges, *(gap.position for gap in gaps), *starts, len(ids)})
        for start, end in zip(bounds, [*bounds[1:], None], strict=True):
            here = [gap for gap in gaps if gap.position == start]
            yield from (self._dropped(gap) for gap in here if gap.ends)
            if start in starts:
                yield TokenRun(starts[start], False, False, 0, opens=True)
            yield from (self._dropped(gap) for gap in here if not gap.ends)
            if end is not None and start in shown:
                yield image_run(shown[start][1], end - start)
            elif end is not None:
                yield TokenRun(self._text(ids[start:end]), bool(trained[start]), bool(control[start]), end - start)

    def sequences(self, table: pa.Table, position: int, gaps: Gaps, place: Callable[[int], str]) -> Shown:
        """Return what is shown of a row, without padding; nothing if no sequence has it.

        Args:
            table: sequences.
            position: position of the row in its raw chunk.
            gaps: where the rows of the sequences were cut.
            place: returns the place in the source of a position.
        """
        table = without_padding(table)
        offsets, rows = list_parts(table["rows"])
        matches = np.flatnonzero(rows.to_numpy() == position)
        if not len(matches):
            return {}, None
        numbers = np.unique(np.searchsorted(offsets, matches, side="right")[:MOST_SHOWN] - 1).tolist()
        return {
            " ".join(filter(None, (f"{number} of {len(numbers)}" if len(numbers) > 1 else "", side))): tuple(
                self.runs_of(columns, sequence, gaps.get(side, {}).get(sequence, ()), place)
            )
            for number, sequence in enumerate(numbers, 1)
            for side, columns in sides(table).items()
        }, table["label"][numbers[0]].as_py() if "label" in table.column_names else None

    def documents(self, texts: pa.Table) -> Iterator[TokenRun]:
        """Yield the runs of pre-tokenized documents, whose spans are in tokens."""
        for document in texts.select(["input_ids", "spans"]).to_pylist():
            trained = [span["weight"] > 0 for span in document["spans"] for _ in range(span["start"], span["end"])]
            yield from self.runs(np.array(document["input_ids"]), np.array(trained))

    def prompt(self, prompts: pa.Table, position: int) -> dict[str, tuple[TokenRun, ...]]:
        """Return the `sides` of a row's prompt for inference, empty if it has none.

        Args:
            prompts: as `PromptEngine.prompt_only` returns them; can have the images of each, as `media`.
        """
        matches = np.flatnonzero(prompts[ROW].to_numpy() == position)
        if not len(matches):
            return {}
        ids = np.array(prompts["input_ids"][matches[0]].as_py())
        images = prompts[MEDIA][matches[0]].as_py() if MEDIA in prompts.column_names else ()
        return {"": tuple(self.runs(ids, np.zeros(len(ids), bool), images=images))}

    def runs_of(
        self, table: pa.Table, sequence: int, gaps: Sequence[Gap], place: Callable[[int], str]
    ) -> Iterator[TokenRun]:
        """Yield the runs of one sequence.

        Args:
            table: sequences, of one side if they are pairs.
            sequence: its number.
            gaps: where its rows were cut, in order.
            place: returns the place in the source of a position.
        """
        ids, trained, rows, lengths = (
            np.array(table[name][sequence].as_py()) for name in ("input_ids", "trained", "rows", "document_lengths")
        )
        places, shown = [*map(place, rows.tolist())], np.ones(len(rows), bool)
        if POSITIONS in table.column_names:
            positions = np.array(table[POSITIONS][sequence].as_py())
            shown = begin_branches(positions, lengths)
            begins = zip(places, positions.tolist(), strict=True)
            places = [f"{at}, after its first {counted(after)}" if after else at for at, after in begins]
        starts = dict(zip(offsets_of(lengths)[:-1][shown].tolist(), compress(places, shown), strict=True))
        images = table[MEDIA][sequence].as_py() if MEDIA in table.column_names else ()
        yield from self.runs(ids, trained == 1, gaps, starts if len(rows) > 1 else {}, images)

    def _dropped(self, gap: Gap) -> TokenRun:
        """Return a gap, with the number of its tokens in place of each run of tokens of images."""
        is_image, ids = np.isin(gap.ids, self._images), np.asarray(gap.ids)
        parts = np.split(ids, np.flatnonzero(np.diff(is_image)) + 1)
        texts = (
            f"[image, {counted(len(part))}]" if np.isin(part[:1], self._images).any() else self._text(part)
            for part in parts
        )
        return TokenRun("".join(texts), False, False, len(ids), dropped=True)

    def _text(self, ids: Any) -> str:
        with naming_tokenizer("cannot decode its own tokens"):
            return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def image_run(image: ShownImage, tokens: int = 0) -> TokenRun:
    """Return the run of an image, shown as control tokens are."""
    return TokenRun(image.mark(tokens), False, True, tokens, image=image)


def text_runs(texts: pa.Table) -> Iterator[TokenRun]:
    """Yield the texts of rendered rows in runs of one kind, without tokens.

    Args:
        texts: `text` and `spans`, of one side if they are pairs; with a processor also `media`.
    """
    for row in texts.select([name for name in ("text", "spans", MEDIA) if name in texts.column_names]).to_pylist():
        text, images = row["text"].encode(), iter(row.get(MEDIA) or ())
        kinds = groupby(row["spans"], key=lambda span: (span["role"] == _IMAGE, span["weight"] > 0, span["control"]))
        for (is_image, trained, control), spans in kinds:
            if is_image:
                yield from (image_run(ShownImage.of(image)) for _, image in zip(spans, images, strict=False))
                continue
            parts = b"".join(text[span["start"] : span["end"]] for span in spans)
            yield TokenRun(parts.decode(errors="replace"), trained, control, 0)


_IMAGE = SPAN_ROLES.index(IMAGE)

FILTERED = ("filtered", "")
"""The `absence` and the `code` of a `ShownRow` that was filtered."""


def reject_reason(reject: Mapping[str, Any]) -> tuple[str, str]:
    """Return the `absence` and the `code` of a `ShownRow`, given its row of a rejects table."""
    stage, code = reject["stage"], reject["code"]
    return f"{fate(code)} by {stage}: {code}: {explained(stage, code, reject['message'])}", code


class RowReader:
    """Reads the sequences of a built dataset by raw row.

    Args:
        store: the store.
        dataset: name of the dataset.
        stages: names of its stages; default: those of its latest version.
    """

    def __init__(self, store: ArtifactStore, dataset: str, stages: Sequence[str] = ()):
        self._store = store
        latest = store.versions.of(dataset)[-1:]
        # stages that could reject a row of this version
        of_latest = [stage for stage in STAGES if any(stage in version.stages for version in latest)]
        rejecting = [stage for stage in stages or of_latest or STAGES if stage_named(stage).remedies]
        self._manifests = {stage: store.manifest(dataset, stage) for stage in rejecting}
        facts = store.manifest(dataset, TOKENIZERS).facts
        folder = store.tokenizer_folder(facts["digest"])
        self._tokenizer, self._control = Path(folder, TOKENIZER).read_bytes(), facts["control"]
        self._decoder = Decoder(self._tokenizer, self._control, image_ids(Path(folder)))
        self._encoder: ContentEncoder | None = None
        self._cut = any(self._manifests[LOADED].counters.get(name) for name in LOSSES)
        self._gaps_of: dict[int, Gaps] = {}
        chunks = self._raw.chunks
        self._first_row = offsets_of(chunks.numbers("rows_out") + chunks.numbers("rejected"))

    @property
    def _raw(self) -> Manifest:
        return self._manifests[RAW]

    def __len__(self) -> int:
        """Return the number of raw rows, without those that the raw stage filtered."""
        return int(self._first_row[-1])

    @property
    def version(self) -> str:
        """The digest of the dataset."""
        return self._manifests[LOADED].digest

    def reach(self, rows: Sequence[int]) -> int:
        """Return how many raw chunks, from the first one, it takes to reach all of some rows."""
        return max(map(self._number, rows), default=-1) + 1

    def has_chunks(self, rows: Sequence[int]) -> bool:
        """Return whether the store has what it takes to show some rows; `gc` can drop chunks of raw rows and tokens."""
        needed = [self._raw, *([self._manifests[TOKENS]] if self._cut else [])]
        outputs = {manifest.chunks[self._number(row)].output for row in rows for manifest in needed}
        return None not in map(self._store.objects.size, outputs)

    def read(self, row: int) -> ShownRow:
        """Return the sequences that hold a raw row, at most `MOST_SHOWN`; if packed, with the other rows in them."""
        number = self._number(row)
        raw, chunk = self._raw.chunks[number], self._manifests[LOADED].chunks[number]
        # raw rows are numbered with the rejected ones among them, which are stored in a table of their own
        objects = [raw.output, *([raw.rejects] if raw.rejects else [])]
        positions = np.concatenate([self._store.objects.get_intact(digest)[ROW].to_numpy() for digest in objects])
        position = int(np.sort(positions)[row - int(self._first_row[number])])
        table = self._store.objects.get_intact(chunk.output)
        if self._cut and number not in self._gaps_of:  # they are kept for the next row of the chunk
            tokens = self._store.objects.get_intact(self._manifests[TOKENS].chunks[number].output)
            self._gaps_of = {number: dropped_tokens(tokens, table, self._manifests[LOADED].parts["settings"])}
        shown, label = self._decoder.sequences(table, position, self._gaps_of.get(number, {}), chunk.place)
        reason = ("", "") if shown else self._reason(number, position)
        notes = self._border_notes(number, position) if shown else ()
        return ShownRow(row, chunk.split, chunk.place(position), shown, *reason, label, notes)

    def _border_notes(self, number: int, position: int) -> tuple[str, ...]:
        from tokenloom.assets.tokens.answer_borders import border_notes, broken
        from tokenloom.assets.tokens.encode import ContentEncoder

        manifest, output = self._manifests[TOKENS], self._manifests[PROMPTS].chunks[number].output
        spaced = self._manifests[PROMPTS].notes.get("ends_before_space", False)
        if not broken(manifest.counters, spaced) or self._store.objects.size(output) is None:
            return ()
        if self._encoder is None:
            policy = manifest.parts["settings"]["tokenizer.control_tokens_in_content"]
            self._encoder = ContentEncoder(self._tokenizer, self._control, policy == "keep")
        prompts = self._store.objects.get_intact(output)
        row = prompts.filter(pc.equal(prompts[ROW], position)).combine_chunks()
        notes = [border_notes(side, self._encoder, spaced).get(position, []) for side in sides(row).values()]
        return tuple(note for found in notes for note in found)

    def _number(self, row: int) -> int:
        return int(np.searchsorted(self._first_row, row, side="right")) - 1

    def _reason(self, number: int, position: int) -> tuple[str, str]:
        for manifest in self._manifests.values():
            rejects = manifest.chunks[number].rejects
            for reject in self._store.objects.get_intact(rejects).to_pylist() if rejects else []:
                if reject[ROW] == position and reject["code"] != OVERLAP:
                    return reject_reason(reject)
        return FILTERED


BRACKETS = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
"""Around trained text."""


def bracketed(runs: Iterable[TokenRun]) -> str:
    """Return the text of runs, with brackets around what is trained."""
    parts = []
    for trained, group in groupby(runs, key=lambda run: run.trained):
        text = "".join(map(plain_text, group))
        parts.append(text.join(BRACKETS) if trained else text)
    return "".join(parts)


def plain_text(run: TokenRun) -> str:
    """Return a run's text as it is shown: control characters escaped, dropped tokens as their number."""
    if run.opens:
        return f"\n\N{BOX DRAWINGS LIGHT HORIZONTAL} {visible(run.text)}\n"
    return f"[{cut_marker(run.tokens)}]" if run.dropped else visible(run.text)


def cut_marker(tokens: int) -> str:
    """Return what is shown in place of tokens that were cut from a row."""
    return f"\N{BLACK SCISSORS} cut: {counted(tokens)} dropped here"
