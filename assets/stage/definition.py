"""How a stage is described: what it reads, what it makes of one chunk, and what every chunk of its output obeys.

A stage's computation is a plain function from one input chunk to a `ChunkOutput`. It knows nothing of the store,
of other chunks, or of what runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pydantic_core import to_jsonable_python

from tokenloom.assets.stage.rejects import no_rejects
from tokenloom.config import PipelineConfig

if TYPE_CHECKING:
    from tokenloom.resources.store import ArtifactStore, KeyParts, Manifest
    from tokenloom.resources.tokenizers import TokenizerSpec


@dataclass(frozen=True)
class ChunkSize:
    """Sizes of chunks in bytes: on average, and at most."""

    target: int = 4 << 20
    maximum: int = 16 << 20

    @property
    def reach(self) -> int:
        """The size of the smallest chunks, but for a file's only one."""
        return max(self.target // 2, 1)


@dataclass(frozen=True)
class InputChunk:
    """One unit of work: `digest` identifies its content, `load` brings it when it must be computed.

    The others are handed on to the output: the split, the file or split of the source, and where in it the chunk
    begins: so many lines or rows (`unit`) behind its begin, or -1 where that is not known. `reads` names what `load`
    reads from the store: the stage and the digest of each object. `size` is the number of bytes of a file's text that
    it was cut from, or -1.
    """

    digest: str
    split: str
    source: str
    load: Callable[[], Any]
    offset: int = -1
    unit: str = "row"
    reads: tuple[tuple[str, str], ...] = ()
    size: int = -1

    def loading(self, load: Callable[[], Any], digest: str | None = None, split: str | None = None) -> InputChunk:
        """The same chunk with other content."""
        return replace(self, load=load, digest=digest or self.digest, split=split or self.split)


@dataclass(frozen=True)
class ChunkOutput:
    """What a stage made of one chunk.

    Args:
        table: the rows that go on.
        rows_in: rows that came in.
        rejects: rows set aside, in the layout of `tokenloom.assets.stage.rejects.REJECTS`.
        filtered: rows that the settings dropped.
        rows_out: rows that went on, where it is not the number of rows of `table` (packing, sketches).
        tokens: tokens in `table`.
        counters: further counts, summed over chunks.
        engine: key of the certificate that the output relies on (tokens made by a second engine), or "".
    """

    table: pa.Table
    rows_in: int
    rejects: pa.Table = field(default_factory=no_rejects)
    filtered: int = 0
    rows_out: int | None = None
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    engine: str = ""

    def counts(self) -> dict[str, int]:
        """The counts that an action records."""
        rows_out = self.table.num_rows if self.rows_out is None else self.rows_out
        return {
            "rows_in": self.rows_in,
            "rows_out": rows_out,
            "rejected": self.rejects.num_rows,
            "filtered": self.filtered,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class Work:
    """A stage made ready for one dataset.

    Args:
        chunks: what to compute, in output order.
        compute: from what an input chunk loads to its output; pure.
        sides: digests of side inputs, by name; part of every key.
        settings: settings in force that follow from more than the YAML, such as a resolved mapping; part of every key.
        notes: when all chunks are done, what is worth telling of them; kept in the manifest, but in no digest.
        holds_lock: `compute` is Python code, a row at a time, which threads would not speed up; it can be pickled then.
    """

    chunks: Iterable[InputChunk]
    compute: Callable[[Any], ChunkOutput]
    sides: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[], dict[str, Any]] = dict
    holds_lock: bool = False


class Context(Protocol):
    """What a stage is handed: the config, what is upstream, and where things lie."""

    @property
    def config(self) -> PipelineConfig: ...

    @property
    def store(self) -> ArtifactStore: ...

    @property
    def limit(self) -> int | None: ...

    @property
    def chunk_size(self) -> ChunkSize: ...

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer that the config names or trains, as far as its files tell."""
        ...

    def manifest(self, stage: str) -> Manifest:
        """The output of an upstream stage."""
        ...

    def input_chunks(self, stage: str) -> Iterator[InputChunk]:
        """The output chunks of an upstream stage, as input."""
        ...

    @property
    def rereading(self) -> bool:
        """Whether sources are read even where their chunks are known."""
        ...

    def key_parts(self, stage: Stage, work: Work) -> KeyParts:
        """What the keys of a stage's chunks have in common."""
        ...

    def has_action(self, stage: Stage, key: str) -> bool:
        """Whether a chunk of a stage is covered, by its key."""
        ...

    def restore(self, manifest: Manifest, digests: Collection[str]) -> None:
        """Make anew what is missing of some outputs of an intermediate stage."""
        ...

    def known_facts(self, stage: str) -> dict[str, Any]:
        """The facts of the stage's latest manifest in the store, or none."""
        ...


Check = Callable[[pa.Table], bool]


def read_settings(config: PipelineConfig, *names: str) -> dict[str, Any]:
    """Settings of the YAML as JSON, by their dotted names."""
    return {name: to_jsonable_python(attrgetter(name)(config)) for name in names}


class Stage(ABC):
    """One stage of the pipeline."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Bumped by hand when the stage's code changes its output."""
    upstream: ClassVar[tuple[str, ...]]
    libraries: ClassVar[tuple[str, ...]]
    """Distributions whose behaviour the output may depend on; another version of one has the probe run again."""
    droppable: ClassVar[bool] = False
    """Whether `keep: sequences` lets its output go."""
    compressed: ClassVar[bool] = True
    loaded: ClassVar[bool] = False
    """Whether loaders read the output."""
    output_schema: ClassVar[Mapping[str, Sequence[pa.DataType]] | None]
    """Columns that every chunk has, with the types allowed; None: any columns. Pairs have them under
    `chosen_` and `rejected_`."""
    optional_columns: ClassVar[Mapping[str, Sequence[pa.DataType]]] = {}
    """Columns that a chunk may have besides."""
    checks: ClassVar[Mapping[str, Check]] = {}
    """Named properties that every output chunk has."""

    @abstractmethod
    def settings(self, config: PipelineConfig) -> dict[str, Any]:
        """Exactly the settings that the stage reads, as JSON by their dotted names; they are part of every key."""

    def shaping(self, config: PipelineConfig) -> dict[str, Any]:
        """Settings that say which chunks there are. The chunks' digests stand for them in keys."""
        return {}

    def probe(self) -> Sequence[pa.Table]:
        """What the stage makes of fixed rows: its digest tells library versions apart. It covers what the stage leaves
        to libraries."""
        return import_module(f"tokenloom.assets.{self.name}.probe").probe()

    def declared(self, config: PipelineConfig) -> dict[str, Any]:
        """Everything in the YAML that may change the output; wider than `settings` where those are resolved later."""
        return self.settings(config)

    @abstractmethod
    def prepare(self, context: Context) -> Work:
        """Resolve side inputs and list the chunks.

        Raises:
            ConfigError: what the YAML names does not fit what was found upstream.
        """

    def facts(self, context: Context, manifest: Manifest) -> dict[str, Any]:
        """What a reader of the output must know; kept in its manifest."""
        return {}


def stage_named(name: str) -> Stage:
    """The stage of that name; its package is imported when first asked for."""
    return import_module(f"tokenloom.assets.{name}.stage").STAGE
