"""The interface of a stage: what it reads, how it computes one chunk, what it records about its output, its keys, and
the check of its output against its contract.

A stage's computation is a plain function from one input chunk to a `ChunkOutput`. It knows nothing of the store,
of other chunks, or of the code that runs it.
"""

from __future__ import annotations

import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module, metadata
from itertools import takewhile
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
from pydantic_core import to_jsonable_python

from tokenloom.assets.stage.contract import Contract
from tokenloom.assets.stage.names import STAGES, stages_of
from tokenloom.assets.stage.rejects import REJECTS, count_rejected, no_rejects
from tokenloom.config import PipelineConfig
from tokenloom.errors import DataValidationError
from tokenloom.resources.digest import digest_bytes, digest_json
from tokenloom.resources.engines.engine import ComputeEngine
from tokenloom.resources.store import ArtifactStore, KeyParts, Run
from tokenloom.resources.store.objects import encode_table
from tokenloom.resources.tables.ragged import sides

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore, Manifest
    from tokenloom.resources.tokenizers import TokenizerSpec


FIXED_TEXTS = (
    "Below is an instruction that describes a task; it's what we'll answer, isn't it?",
    "Größe, naïve café, ĳsland, ﬁne; e\u0301 and \u00e9; İstanbul, ΣΊΣΥΦΟΣ, straße",
    "Привет мир, как дела? 你好，世界 今天。 こんにちは カタカナ 한국어 \u1112\u1161\u11ab",
    "مرحبا بالعالم ١٢٣ שלום नमस्ते दुनिया ไทย တမန်မာ ქართული Հայերեն",
    "👩‍👩‍👧 🌊🏽 🇩🇪 \U0001f9ff \U00020000 \u2028\u00a0\u3000\ufeff x\u200db",
    "  tabs\tand\r\nlines\n\n\n    return x[1] == 3.14e-5 and (a_b != 'c') # 1234567 ½ ² Ⅷ",
    "",
    " ",
)


@dataclass(frozen=True)
class ChunkSize:
    """Chunk sizes in bytes: the average and the maximum."""

    target: int = 4 << 20
    maximum: int = 16 << 20

    @property
    def max_rows(self) -> int:
        """The maximum number of rows in a chunk. Only rows of less than 16 bytes on average reach it."""
        return max(self.maximum // 16, 1)

    @property
    def reach(self) -> int:
        """The minimum size of a chunk in bytes; a file's only chunk can be smaller."""
        return max(self.target // 2, 1)


@dataclass(frozen=True)
class InputChunk:
    """One unit of work.

    Args:
        digest: identifies the content.
        split: split of the rows; passed on to the output.
        runs: which rows come from which file, or split of the source; passed on to the output.
        load: returns the content; called only if the chunk must be computed.
        unit: what `offset` of the runs counts, "line" or "row"; passed on.
        reads: stage and digest of each object that `load` reads from the store.
        size: bytes of file text that the chunk was cut from, or -1.
    """

    digest: str
    split: str
    runs: tuple[Run, ...]
    load: Callable[[], Any]
    unit: str = "row"
    reads: tuple[tuple[str, str], ...] = ()
    size: int = -1

    def loading(self, load: Callable[[], Any], digest: str | None = None, split: str | None = None) -> InputChunk:
        """Return the same chunk with other content."""
        return replace(self, load=load, digest=digest or self.digest, split=split or self.split)


@dataclass(frozen=True)
class ChunkOutput:
    """The result of a stage for one chunk.

    Args:
        table: the rows passed on.
        rows_in: number of rows received.
        rejects: rejected rows, and records of others, in the layout of `tokenloom.assets.stage.rejects.REJECTS`.
        filtered: number of rows that the settings dropped.
        rows_out: number of rows passed on, if it differs from the number of rows of `table` (packing, sketches).
        tokens: number of tokens in `table`.
        counters: further counts, summed over chunks.
        engine: key of the certificate that the output relies on (tokens computed by a second engine), or "".
        media: the bytes of images that the rows refer to and the store can lack, by digest.
    """

    table: pa.Table
    rows_in: int
    rejects: pa.Table = field(default_factory=no_rejects)
    filtered: int = 0
    rows_out: int | None = None
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    engine: str = ""
    media: Mapping[str, bytes] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return the counts that an action records."""
        rows_out = self.table.num_rows if self.rows_out is None else self.rows_out
        return {
            "rows_in": self.rows_in,
            "rows_out": rows_out,
            "rejected": count_rejected(self.rejects),
            "filtered": self.filtered,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class OutputChunks:
    """The output chunks of an upstream stage, as input chunks, one to one.

    Args:
        read: yields them, once the stage is complete.
        manifest: returns the manifest of the stage.
    """

    stage: str
    read: Callable[[str], Iterator[InputChunk]]
    manifest: Callable[[str], Manifest]

    def __len__(self) -> int:
        return len(self.manifest(self.stage).chunks)

    def __iter__(self) -> Iterator[InputChunk]:
        return self.read(self.stage)


@dataclass(frozen=True)
class Work:
    """A stage prepared for one dataset.

    Args:
        chunks: what to compute, in output order.
        compute: pure function from the loaded content of an input chunk to its output.
        sides: digests of side inputs, by name; part of every key.
        settings: effective settings that depend on more than the YAML, such as a resolved mapping; part of every key.
        notes: called after the last chunk; returns facts for display. They are stored in the manifest and not part of
            any digest.
        holds_lock: whether `compute` is row-by-row Python code, which threads do not speed up. It can be pickled then.
        load: loads what `compute` would load for its first chunk.
        source_bytes: returns the sum of `size` over all chunks without reading them, or None if it is unknown.
    """

    chunks: Iterable[InputChunk]
    compute: Callable[[Any], ChunkOutput]
    sides: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[], dict[str, Any]] = dict
    holds_lock: bool = False
    load: Callable[[], None] = lambda: None
    source_bytes: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Context:
    """Everything that a stage receives to prepare its work.

    Args:
        config: the dataset's declaration.
        store: where the outputs of upstream stages are stored.
        manifest: returns the manifest of an upstream stage.
        facts: returns the facts of an upstream stage, which need not be complete.
        read_chunks: yields the output chunks of an upstream stage, as input chunks.
        resolve_tokenizer: returns the tokenizer that the config names or trains.
        is_cached: whether the store has the output of the chunk with a given key; by default nothing is cached.
        latest: the stage's latest manifest, if the store has one.
        limit: number of rows of each split to read; None: all.
        chunk_size: sizes of raw chunks.
        ensure: computes outputs of an upstream stage again, given their digests, if `gc` dropped them.
        engine: reads large files of the source.
    """

    config: PipelineConfig
    store: ArtifactStore
    manifest: Callable[[str], Manifest]
    facts: Callable[[str], Mapping[str, Any]]
    read_chunks: Callable[[str], Iterator[InputChunk]]
    resolve_tokenizer: Callable[[], TokenizerSpec]
    is_cached: Callable[[str], bool] = lambda key: False
    latest: Manifest | None = None
    limit: int | None = None
    chunk_size: ChunkSize = field(default_factory=ChunkSize)
    ensure: Callable[[str, Collection[str]], None] = lambda stage, digests: None
    engine: ComputeEngine = field(default_factory=lambda: ComputeEngine(1))

    def input_chunks(self, stage: str) -> OutputChunks:
        """Return the output chunks of an upstream stage, as input chunks."""
        return OutputChunks(stage, self.read_chunks, self.manifest)

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer that the config names or trains; before it is trained, only what the settings determine."""
        return self.resolve_tokenizer()


Where = Literal["keys", "chunks", "chat", "later"]
"""Where settings count: in every key; in which chunks there are, whose digests keys hold; in the keys of rows that go
through a chat template; or only in what keys hold of them once they are resolved, such as a mapping or a digest."""


@dataclass(frozen=True)
class Reads:
    """Settings that a stage reads; mostly made by `settings`.

    Args:
        values: returns them by their dotted names, as JSON.
    """

    values: Callable[[PipelineConfig], Mapping[str, Any]]
    where: Where = "keys"


def settings(
    section: str,
    *names: str,
    when: str | Callable[[PipelineConfig], object] = "",
    given: bool = False,
    where: Where = "keys",
) -> Reads:
    """Declare settings of a section.

    Args:
        when: whether the stage reads them: a setting that is neither off nor empty, or a condition; default: always.
        given: whether it reads only those that are neither off nor empty.
    """

    def values(config: PipelineConfig) -> dict[str, Any]:
        if when and not (attrgetter(when) if isinstance(when, str) else when)(config):
            return {}
        by_name = {f"{section}.{name}": attrgetter(f"{section}.{name}")(config) for name in names}
        return {name: to_jsonable_python(value) for name, value in by_name.items() if value or not given}

    return Reads(values, where)


@dataclass(frozen=True)
class Picture:
    """A PNG, and what it shows."""

    png: bytes
    caption: str


class Stage(ABC):
    """One stage of the pipeline. Its module also has its `CONTRACT` and the function `probe`."""

    name: ClassVar[str]
    description: ClassVar[str]
    """What the output is."""
    section: ClassVar[str] = "dataset"
    """The section of the YAML that decides most about the output."""
    remedies: ClassVar[Mapping[str, str]] = {}
    """What to do about rejected rows, by code. Stored rejects do not have it, so better advice changes no digest."""
    version: ClassVar[int]
    """Increase this by hand when a change of the stage's code changes its output."""
    reads: ClassVar[tuple[Reads, ...]] = ()
    """Exactly the settings that it reads."""
    upstream: ClassVar[tuple[str, ...]]
    """The stages whose outputs it reads; its input chunks are those of the first."""
    replaces: ClassVar[str] = ""
    """The stage whose rows an optional stage passes on, in the same columns; later stages read them from this one."""
    libraries: ClassVar[tuple[str, ...]]
    """Distributions that can affect the output; a new version of one runs the probe again."""
    droppable: ClassVar[bool] = False
    """Whether `gc` drops the output under `keep: sequences`."""
    facts_ahead: ClassVar[bool] = False
    """Whether `facts` depends only on the context, so that later stages can be prepared before there is any output."""
    compressed: ClassVar[bool] = True
    loaded: ClassVar[bool] = False
    """Whether loaders read the output."""
    marked: ClassVar[bool] = False
    """Whether its rows are shown with what is trained marked: texts with spans, or sequences."""

    def above(self, config: PipelineConfig) -> tuple[str, ...]:
        """Return the stages of a dataset whose outputs it reads: `upstream`, or what replaces them."""
        # An optional stage passes on the rows of another: later stages read the last one that does.
        before = takewhile(lambda name: name != self.name, stages_of(config))
        last = {stage_named(name).replaces: name for name in before}
        return tuple(last.get(name, name) for name in self.upstream)

    def inputs(self, context: Context) -> OutputChunks:
        """Return the output chunks of the first stage that it reads."""
        return context.input_chunks(self.above(context.config)[0])

    def read(self, config: PipelineConfig, *where: Where) -> dict[str, Any]:
        """Return the settings that it reads and that count somewhere, as JSON by their dotted names; default: all."""
        counted = [each.values(config) for each in self.reads if not where or each.where in where]
        return {name: value for values in counted for name, value in values.items()}

    @abstractmethod
    def prepare(self, context: Context) -> Work:
        """Resolve side inputs and list the chunks.

        Raises:
            ConfigError: the YAML does not fit the data or the output of upstream stages.
        """

    def lengths(self, table: pa.Table) -> pa.Table | None:
        """Return the number of tokens of each row of an output, if loaders batch rows by it."""
        return None

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """Return what a reader of the output needs to know; stored in its manifest."""
        return {}

    def notices(self, context: Context, manifest: Manifest) -> list[str]:
        """Return what a build reports about the counters of a complete stage, as sentences."""
        return []

    def shown(self, config: PipelineConfig, manifest: Manifest, first: pa.Table) -> dict[str, Any]:
        """Return what a page shows of a complete stage, most telling first: numbers, texts, lists of table rows, Arrow
        tables and `Picture`s.

        Args:
            first: the output of its first chunk.
        """
        return {"sample": first.slice(0, 5)}

    def summary(self, config: PipelineConfig, manifest: Manifest) -> dict[str, Any]:
        """Return what a build's JSON says of a complete stage besides its counts."""
        return {}

    def contract(self, columns: pa.Schema) -> Contract:
        """Return the contract that an output chunk with these columns must satisfy: that of the stage that it replaces,
        if it does."""
        return stage_named(self.replaces).contract(columns) if self.replaces else _module_of(self).CONTRACT

    def fits(self, columns: pa.Schema, facts: Mapping[str, Any]) -> bool:
        """Whether a stored output chunk with these columns fits the facts in its manifest."""
        return True

    def probe(self) -> Sequence[pa.Table]:
        """Return the stage's output for fixed rows.

        Its digest shows whether another version of a library changes the output. The rows cover everything that the
        stage leaves to libraries.
        """
        return _module_of(self).probe()


def _module_of(stage: Stage) -> Any:
    """The module of a stage's class, which also has its `CONTRACT` and `probe`."""
    return sys.modules[type(stage).__module__]


@cache
def stage_named(name: str) -> Stage:
    """Return the stage with that name; its package is imported on first use."""
    return import_module(f"tokenloom.assets.{name}.stage").STAGE


def explained(stage: str, code: str, message: str) -> str:
    """Return the message of a reject with its remedy, unless it names one itself, after a semicolon."""
    remedies = stage_named(stage).remedies if stage in STAGES and "; " not in message else {}
    return f"{message}; {remedies[code]}" if code in remedies else message


Versions = tuple[tuple[str, str], ...]


@cache
def _version(library: str, path: tuple[str, ...]) -> str:
    """Return the version of a library that is found on `path`; parses the package's metadata."""
    return metadata.version(library)


def library_versions(stage: Stage) -> dict[str, str]:
    """Return the versions of Python and of the libraries that a stage calls."""
    # The search path is part of the cache's key: a process can be given other libraries while it runs.
    path = tuple(map(str, sys.path))
    return {"python": platform.python_version(), **{name: _version(name, path) for name in stage.libraries}}


def probe_digest(stage: Stage, store: ArtifactStore) -> str:
    """Return the hex digest of the stage's probe under the installed versions; computed once per store."""
    versions = library_versions(stage)
    compute = partial(_computed, stage, stage.version, tuple(versions.items()))
    return store.probes.recalled(stage.name, stage.version, versions, compute)


@cache
def _computed(stage: Stage, version: int, versions: Versions) -> str:
    """Run the probe, once per process and set of versions for any number of stores."""
    tables = (encode_table(table, stage.compressed) for table in stage.probe())
    return digest_json([digest_bytes(memoryview(table)) for table in tables])


def key_parts(stage: Stage, config: PipelineConfig, store: ArtifactStore, work: Work | None = None) -> KeyParts:
    """Return what the keys of a stage's chunks have in common.

    Args:
        store: caches the digest of the stage's probe.
        work: adds resolved settings and side inputs; None if the stage has none, or they are unknown.
    """
    settings, sides = (work.settings, work.sides) if work else ({}, {})
    return KeyParts(
        stage.name,
        stage.version,
        probe_digest(stage, store),
        {**stage.read(config, "keys"), **settings},
        dict(sides),
        library_versions(stage),
        stage.read(config, "chunks"),
    )


# pandera imports engines while it validates; a thread that comes upon a half-imported one fails.
_PANDERA = Lock()


def validate(stage: Stage, table: pa.Table, by_pandera: bool = False) -> None:
    """Check one chunk of a stage's output.

    Args:
        by_pandera: whether pandera, which must come to the same verdict, checks a chunk without problems too.

    Raises:
        DataValidationError: the chunk breaks the contract; the message lists every violation.
    """
    contract = stage.contract(table.schema)
    tables = sides(table) if contract.pairs else {"": table}
    problems = [f"{side} {problem}".strip() for side, rows in tables.items() for problem in contract.problems(rows)]
    if by_pandera and not problems:
        problems = [problem for rows in tables.values() for problem in _found_by_pandera(contract, rows)]
    if problems:
        raise DataValidationError(f"{stage.name}: output breaks its contract: {'; '.join(problems)}")


def validate_rejects(table: pa.Table) -> None:
    """Check a rejects table.

    Raises:
        DataValidationError: it has other columns than `REJECTS`.
    """
    if table.schema != REJECTS:
        raise DataValidationError(f"rejects have other columns than expected: {table.schema}")


def _found_by_pandera(contract: Contract, table: pa.Table) -> Iterator[str]:
    from pandera.errors import SchemaError, SchemaErrors

    try:
        with _PANDERA:
            contract.schema().validate(table, lazy=True)
    except (SchemaErrors, SchemaError) as error:
        for case in getattr(error, "schema_errors", [error]):
            yield str(getattr(case, "args", [case])[0]).splitlines()[0]
