"""The YAML schema: one frozen model per section. Each field's docstring describes the setting.

`tokenloom schema` and docs/configuration/ print these descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tokenloom.config.address import AddressText, SourceText
from tokenloom.config.trained_kinds import KINDS, MESSAGE_ROLES, checked_weights, completed_weights
from tokenloom.errors import did_you_mean

Names = Annotated[tuple[str, ...], Field(strict=False)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Weights = Annotated[
    dict[str, Annotated[float, Field(ge=0.0)]],
    Field(json_schema_extra={"propertyNames": {"enum": [*KINDS, *MESSAGE_ROLES]}}),
]
_KEYS = r"(?:`[^`]+`|[^.`\[\]]+)(?:\.(?:`[^`]+`|[^.`\[\]]+))*"
_ROOT = re.compile(rf"(?:{_KEYS})?\[\](?:\.{_KEYS}\[\])*")

DATASET_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
DEFAULT_SPECIAL_TOKENS = {"eos": "<|endoftext|>", "pad": "<|pad|>"}
RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "date_string", "raise_exception", "strftime_now")
)
"""Variables of chat templates that `template_kwargs` cannot set; nor can it set the tokenizer's tokens (`…_token`)."""


_COLUMNS_OF_ROWS = ("input_ids", "attention_mask", "labels", "position_ids", "loss_weights", "cu_seqlens", "max_seqlen")
BATCH_KEYS = (
    *(f"{side}{name}" for side in ("", "chosen_", "rejected_") for name in (*_COLUMNS_OF_ROWS, "seq_lengths")),
    *("attention_ends", "label"),
)
"""Names that batches and exports use for themselves."""


class Section(BaseModel):
    """A section of the YAML. Immutable; unknown settings are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class ReaderConfig(Section):
    """Options for a file format."""

    header: Literal["auto"] | bool = "auto"
    """CSV and TSV: whether the first record holds the column names. If not, the columns are named `column_0`,
    `column_1`, … `auto`: it does, unless one of its fields is empty, a number, prose, or a duplicate."""
    delimiter: Annotated[str, Field(pattern=r"^[\t\x20-\x21\x23-\x7e]$")] | None = None
    """CSV and TSV: the field separator, one ASCII character. Default: a comma, or a tab for `tsv`; if the first record
    has none, whichever of `;`, tab, `|` and comma is most frequent in it."""
    quote: Literal['"', "'", "none"] = '"'
    """CSV and TSV: the character around fields that hold delimiters or line breaks. `none`: quotes are text."""
    escape: Literal["auto", "backslash", "none"] = "auto"
    """CSV and TSV: whether a backslash makes the quote, backslash, delimiter or line break after it text, as MySQL and
    Spark write it. `auto`: it does if the first rows are regular only when read so."""
    lines_per_row: Literal["line", "paragraph", "file"] = "line"
    """Plain text: the unit of a row: a line, a paragraph, or a whole file."""
    max_record_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 64 << 20
    """Largest size of a row in bytes. A larger one is rejected, and skipped without being held in memory."""
    root: str | None = None
    """Nested JSON: the path to the rows, e.g. `data[].paragraphs[].qas[]`. Put keys with special characters in
    backticks. Fields around the rows are repeated in every row. Default: detected if an object holds one list of
    objects."""

    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64"] | None = None
    """Flat arrays of token ids, and columns of bytes in MDS: the type of an id, little-endian. Default for flat arrays:
    the smallest unsigned one, of at least 16 bits, that fits the tokenizer's vocabulary."""
    eos_id: Count | None = None
    """Flat arrays of token ids: the id that ends each document. Default: the tokenizer's EOS."""

    @field_validator("root")
    @classmethod
    def _path_to_rows(cls, value: str | None) -> str | None:
        if value is not None and not _ROOT.fullmatch(value):
            raise ValueError(f"{value!r} is not a valid path to rows; write it like data[].paragraphs[].qas[]")
        return value


class Constant(Section):
    """The same value for every row."""

    constant: str | bool | int | float
    """The value."""

    @field_validator("constant")
    @classmethod
    def _of_64_bits(cls, value: str | bool | float) -> str | bool | float:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} is not an integer of 64 bits; put it in quotes")
        return value


class MediaConfig(Section):
    """Where the images of rows are."""

    folder: AddressText | None = None
    """Folder that paths of images are relative to. Default: the folder of the file that names them. Images outside of
    it are not read."""
    allow_urls: Names = ()
    """Hosts from which images are downloaded, such as `images.example.org`. Rows with an image of another host are
    rejected."""
    max_pixels: Annotated[int, Field(ge=1, le=178_956_970)] = 89_478_485
    """Largest number of pixels of an image; rows with a larger one are rejected before it is decoded."""


class DatasetConfig(Section):
    """Where the rows come from."""

    name: Annotated[SourceText, Field(min_length=1)]
    """A hub id, a file, a folder, a glob, a `save_to_disk` folder, or an fsspec URL; or the files of each split, as in
    `{train: a.jsonl, validation: b.jsonl}`. Relative paths are looked up in the YAML's folder, then in the working
    directory."""
    config: str | None = None
    """Config (subset) of a hub dataset, or of a local folder whose README.md declares configs."""
    revision: str | None = None
    """Hub revision: a branch, tag or commit."""
    splits: Names | None = None
    """Splits to use. Default: all. A local folder has those that `datasets.load_dataset` reads in it; a file, a glob or
    a URL has one, `train`."""
    val_split: Fraction = 0.0
    """Fraction of `train` to move to `validation`, for sources without one. The split of a row depends only on its
    content, so appending rows never moves existing ones."""
    max_rows: Positive | None = None
    """Number of rows to read from the start of each split of the source, before anything else. null: all."""
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Fraction of the rows to use. Which ones depends only on their content; a larger fraction has all rows of a
    smaller one."""
    format: Literal[
        "auto",
        "json",
        "jsonl",
        "csv",
        "tsv",
        "parquet",
        "arrow",
        "text",
        "megatron",
        "flat_tokens",
        "mds",
        "litdata",
        "claude_code",
        "codex",
        "atif",
        "swe_agent",
        "hub",
    ] = "auto"
    """File format. `auto` detects it from the file extension, then from the first bytes. `megatron`: pairs of `.bin`
    and `.idx`; `flat_tokens`: arrays of token ids, such as nanoGPT's `.bin` and OLMo-core's `.npy`; `mds` and
    `litdata`: folders with an `index.json` of MosaicML Streaming or litdata; `claude_code`, `codex`, `atif` and
    `swe_agent`: sessions of agents. Of a folder, files with this format are read; default: with the most frequent
    one."""
    encoding: str = "auto"
    """Encoding of text formats. `auto` follows the byte-order mark if there is one, else assumes UTF-8; CSV, TSV and
    plain text that is not UTF-8 is read in the encoding that charset-normalizer detects."""
    reader: ReaderConfig = ReaderConfig()
    """Options for the file format."""
    struct_nulls: Literal["omit", "keep"] = "omit"
    """Parquet and Arrow: fields of structs that are null, such as arguments of a tool call that only other rows have.
    `omit` leaves them out, as in the same rows as JSON Lines; `keep` writes them as null."""
    streaming: bool = False
    """true: `get_dataloader` reads rows from the source on the fly and stores nothing."""
    columns: Names | None = None
    """Source columns to keep. Default: all."""
    column_mapping: dict[str, str | Constant] = {}
    """Maps each role to the source of its values: a column, a path such as `answers[0].text`, a text with `{column}`
    placeholders, `choices[{answer}]`, or `{constant: value}`; `column?` is one that the data may lack.
    Example: `{prompt: question, completion: answer}`."""
    keep_columns: Names = ()
    """Source columns, or paths such as `answers[0].text`, whose values come with each batch as lists, such as
    `batch["answer"]`. They are not tokenized, and need not be part of the template."""
    token_columns: Names = ()
    """Pre-tokenized rows: source columns with one number per token, such as `logprobs`. They follow their tokens
    through truncation and packing; `batch["logprobs"]` is float32 with the shape of `input_ids`, 0 in padding."""
    media: MediaConfig = MediaConfig()
    """Where images are read from, if `tokenizer.processor` is set."""
    filters: Names = ()
    """Row conditions, e.g. `len(output) > 0`. Rows that fail a condition are dropped and counted as filtered."""

    @field_validator("columns")
    @classmethod
    def _no_column_twice(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (duplicate := first_duplicate(value)) is not None:
            raise ValueError(f"{duplicate} is listed twice")
        return value

    @field_validator("keep_columns", "token_columns")
    @classmethod
    def _free_of_batch_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if (duplicate := first_duplicate(value)) is not None:
            raise ValueError(f"{duplicate} is listed twice")
        if taken := [name for name in value if name in BATCH_KEYS]:
            raise ValueError(f"{taken[0]} is a key of every batch; rename this column in the source")
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        if value != "auto":
            try:
                b"".decode(value)
                "".encode(value)
            except (LookupError, UnicodeError):
                raise ValueError(
                    f"{value!r} is not a text encoding that Python supports, such as utf-8 or latin-1"
                ) from None
        return value


class TrainConfig(Section):
    """A byte-level BPE tokenizer trained on this dataset's prompts."""

    vocab_size: Annotated[int, Field(ge=257, le=2**24)] = 8000
    """Largest vocabulary size, including special tokens."""
    min_frequency: Positive = 2
    """Pairs that occur less often than this are not merged."""


class SpecialTokensConfig(Section):
    """Special tokens by role."""

    bos: str | None = None
    """Starts a sequence."""
    eos: str | None = None
    """Ends an answer."""
    pad: str | None = None
    """Pads a batch. Default: the EOS token, with attention mask 0 and label -100."""
    unk: str | None = None
    """Replaces text that the vocabulary cannot encode."""
    additional: Names = ()
    """More control tokens, such as the role markers of a chat template. Those that the tokenizer lacks are added, with
    new ids after its own."""


class TokenizerConfig(Section):
    """The tokenizer, sequence length and padding."""

    name_or_path: str | None = None
    """A hub id, a folder, a `tokenizer.json`, a SentencePiece `.model`, or a tiktoken ranks file."""
    processor: str | None = None
    """Rows with images: a folder or hub id with the files of an image processor, as `save_pretrained` writes them.
    `name_or_path` defaults to the same folder."""
    train: TrainConfig | None = None
    """Train a byte-level BPE tokenizer on this dataset's prompts instead of loading one."""
    max_length: Positive = 2048
    """Maximum sequence length, in tokens."""
    padding: Literal["max_length", "longest"] | Positive = "max_length"
    """The length that a loader pads rows to: `max_length`, the `longest` row of the batch, or the next multiple of an
    integer such as 64."""
    padding_side: Literal["left", "right"] = "right"
    """Side of a row that is padded."""
    special_tokens: SpecialTokensConfig = SpecialTokensConfig()
    """Special tokens. Default: the tokenizer's own. Required with `train`."""
    chat_template: str | None = None
    """Jinja text, a file that contains it, or a built-in template: `alpaca`, `chatml`, `chatml-eos`, `llama-2`,
    `plain`, `qa` or `zephyr`. Default: the tokenizer's own template."""
    control_tokens_in_content: Literal["split", "reject", "keep"] = "split"
    """What to do with control tokens that appear as text in the data: `split` tokenizes them as plain text, `reject`
    rejects the row, `keep` leaves them as control tokens."""

    @model_validator(mode="before")
    @classmethod
    def _of_processor(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("processor") and not given.get("name_or_path"):
            return {**given, "name_or_path": given["processor"]}
        return given

    @model_validator(mode="after")
    def _one_tokenizer(self) -> TokenizerConfig:
        if self.train and self.processor:
            raise ValueError("set processor or train, not both: a processor has a tokenizer of its own")
        if self.train and self.name_or_path:
            raise ValueError("set name_or_path or train, not both")
        if self.train and not self.special_tokens.eos:
            offered = ", ".join(f'{role}: "{token}"' for role, token in DEFAULT_SPECIAL_TOKENS.items())
            raise ValueError(f"train needs special_tokens; for example {{{offered}}}")
        return self


class FewShotConfig(Section):
    """Worked examples placed before each prompt."""

    count: Annotated[int, Field(ge=0, le=256)] = 0
    """Examples per row; 0: zero-shot. Examples are never trained."""
    source: AddressText | None = None
    """A file of examples with the same columns as the data. null: other rows of the same chunk and split."""
    seed: int = 0
    """Seed for choosing examples."""


class PromptTemplateConfig(Section):
    """How a row becomes text, and which part of the text is trained."""

    format_type: Literal[
        "custom", "jinja", "chat", "completion", "text", "tokens", "preference", "kto", "prompt_only"
    ] = "custom"
    """How the text is built. `custom`: from a template with `{column}`; `jinja`: from a template with `{{ column }}`;
    `chat`: by the chat template; `completion`: prompt and completion joined; `text`: the text alone; `tokens`: not at
    all, because rows are token ids already; `preference`: chosen and rejected completions, by the chat template; `kto`:
    completions with a label, by the chat template; `prompt_only`: prompts without answers, so that nothing is trained.
    `custom` without a template depends on the data: plain text is used unchanged, and anything else goes through the
    chat template if there is one."""
    template: str | None = None
    """Text of the custom or Jinja template. One trailing newline is dropped."""
    input_columns: Names | None = None
    """Columns that the template reads, except the label column; checked against the template."""
    label_column: str | None = None
    """Column that is trained in a custom or Jinja template."""
    system: str | None = None
    """System message added to conversations that have none."""
    few_shot: FewShotConfig = FewShotConfig()
    """Worked examples placed before each prompt."""
    tools: str | Annotated[tuple[Any, ...], Field(strict=False)] | None = None
    """Tool descriptions for conversations that have none: a JSON file, or the list itself."""
    template_kwargs: dict[str, Any] = {}
    """Variables for the chat template, such as `{enable_thinking: false}`. A row's own `chat_template_kwargs` take
    precedence."""
    train_on: Literal["completions", "all", "last"] | Annotated[tuple[str, ...], Field(strict=False)] | Weights = (
        "completions"
    )
    """What is trained: `completions`, `all` text, the `last` completion, a list of roles, or weights by kind of text
    and by role, such as `{content: 1, reasoning: 0, tool_calls: 1, stop: 1}`. A kind without a weight has that of
    `assistant`, by default 1. A role without a weight is not trained. With `format_type: jinja` a list names columns,
    which are trained in addition to `label_column`."""
    train_ranges: str | None = None
    """Field of messages with the ranges of the content that are trained, as axolotl's `train_detail`: a list of
    `{begin_offset, end_offset, train}` in characters, both ends included. Text in no range is not trained."""
    turns: Literal["together", "exact"] = "together"
    """Texts of a conversation with several trained turns. `together`: one. `exact`: as many as it takes to train each
    turn in the context that the model has at inference."""
    add_bos: Literal["auto", "template"] | bool = "auto"
    """Start each text with a BOS token. `auto`: only if the tokenizer itself would add one. `template`: the same, but
    texts of a chat template have the one that the template writes, or none, as in `apply_chat_template`."""
    add_eos: bool = True
    """Add a trained EOS token after the answer."""
    date_string: Annotated[str, Field(min_length=1)] | None = None
    """Fixed date for templates that use the current date, such as `2024-07-26` or `26 Jul 2024`. `strftime_now` writes
    it in the format that the template asks for, the variable `date_string` is this text."""

    @field_validator("train_on", mode="before")
    @classmethod
    def _clear_weights(cls, value: Any) -> Any:
        return checked_weights(value) if isinstance(value, dict) else value

    @field_validator("train_on")
    @classmethod
    def _known_roles(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("format_type") == "jinja":
            return value  # names of columns, which are checked against the template
        if isinstance(value, tuple) and (unknown := [role for role in value if role not in MESSAGE_ROLES]):
            hint = did_you_mean(unknown[0], MESSAGE_ROLES)
            raise ValueError(f"{unknown[0]!r} is not one of the roles {', '.join(MESSAGE_ROLES)}{hint}")
        return value

    @field_validator("date_string", mode="before")
    @classmethod
    def _dates_as_text(cls, value: Any) -> Any:
        return value.isoformat() if isinstance(value, date) else value

    @field_validator("template_kwargs")
    @classmethod
    def _free_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        if reserved := [name for name in value if is_reserved_variable(name)]:
            setting = f"; use prompt_template.{reserved[0]}" if reserved[0] in cls.model_fields else ""
            raise ValueError(f"{reserved[0]!r} is a variable that tokenloom itself passes to templates{setting}")
        return value

    @model_validator(mode="after")
    def _template_given(self) -> PromptTemplateConfig:
        if self.format_type == "jinja" and not self.template:
            raise ValueError("format_type jinja needs a template")
        if self.template and self.format_type not in ("custom", "jinja"):
            raise ValueError(f"template works with format_type custom or jinja, not {self.format_type}")
        if self.format_type == "custom" and self.template and self.label_column is None and self.train_on != "all":
            raise ValueError("a custom template needs label_column, or train_on: all")
        if self.format_type == "custom" and self.template and isinstance(self.train_on, tuple):
            raise ValueError("train_on names columns only with format_type jinja; set label_column, or train_on: all")
        return self

    @property
    def weights(self) -> dict[str, float] | None:
        """The weight of each kind and of each role but the assistant, if `train_on` has weights."""
        return completed_weights(self.train_on) if isinstance(self.train_on, dict) else None

    @property
    def trained_columns(self) -> tuple[str, ...]:
        """The columns of the template that are trained: `label_column`, and for Jinja those that `train_on` lists."""
        label = (self.label_column,) if self.label_column else ()
        listed = self.train_on if self.format_type == "jinja" and isinstance(self.train_on, tuple) else ()
        return tuple(dict.fromkeys((*label, *listed)))


class LengthConfig(Section):
    """What happens to rows longer than `tokenizer.max_length`, and how rows are packed into sequences."""

    strategy: (
        Literal["truncate_right", "truncate_left", "truncate_middle", "smart", "drop_turns", "split", "drop"] | None
    ) = None
    """What happens to rows longer than `tokenizer.max_length`: truncate, truncate part by part (`smart`), drop turns,
    split, or drop the row (counted as filtered). null: `split` for plain text, `smart` for other rows."""
    give_up: Names = ("context", "question", "system")
    """`smart`: parts, named by column or role, in the order in which they are shortened, each down to a floor. A row
    that is still too long loses the end of its answer, and the stop with it."""
    keep: Literal["start", "end"] = "start"
    """`smart`: which end of a shortened part is kept."""
    stride: Count = 0
    """`split`: overlap between pieces, in tokens. The overlap is trained in the first piece only."""
    packing: Literal["none", "concat", "best_fit", "tree"] = "none"
    """Packs several rows of a chunk into one sequence. `concat` joins rows and cuts at `max_length`, so nothing is
    truncated. `best_fit` applies the strategy to each row and then packs the results whole. `tree` does so too, and
    stores the tokens with which the texts of a row, or rows with the same prompt, begin only once."""
    document_multiple: Annotated[int, Field(ge=2)] | None = None
    """Pads every document at its end with untrained tokens to a multiple of this, before packing. For context
    parallelism: 2 × the number of context-parallel ranks. null: no padding."""
    media_budget: Positive | None = None
    """Rows with images: maximum number of image patches per sequence, which bounds the memory of the model's vision
    part. Rows with more are rejected. null: no limit."""

    def about_multiple(self, max_length: int, padding: str | int) -> Iterator[tuple[str, str]]:
        """Yield what conflicts with `document_multiple`, which is set, and why."""
        multiple = self.document_multiple or 1
        if max_length % multiple:
            fits = max_length // multiple * multiple or multiple
            message = f"tokenizer.max_length {max_length} is not a multiple of {multiple}; set max_length: {fits}"
            yield "length.document_multiple", message
        if not isinstance(padding, str) and padding % multiple and multiple % padding:
            message = f"tokenizer.padding {padding} is not a multiple of {multiple}; set it to one, or to longest"
            yield "length.document_multiple", message
        if self.packing not in ("none", "best_fit"):
            message = f"documents of packing: {self.packing} cannot be padded; set packing: none or best_fit"
            yield "length.document_multiple", message


class DriftConfig(Section):
    """How far a version can differ from the one before, without a warning in Dagster."""

    length: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.2
    """Largest relative change of the mean number of tokens per row, before truncation: 0.2 allows 100 → 120."""
    trained: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """Largest absolute change of the fraction of tokens that are trained: 0.1 allows 40% → 50%."""


class ValidationConfig(Section):
    """When bad data fails a run, or is worth a warning."""

    max_reject_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A stage that rejects a larger fraction of its rows fails the run."""
    max_unstopped_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A build warns if a larger fraction of the answers lost their stop to `tokenizer.max_length`."""
    drift: DriftConfig = DriftConfig()
    """When a version differs so much from the one before that Dagster's check `drift` warns."""


class DataLoaderConfig(Section):
    """How training code gets its batches."""

    batch_size: Positive = 8
    """Rows per rank and batch."""
    token_budget: Positive | None = None
    """Padded tokens per rank and batch; replaces `batch_size`."""
    num_workers: Count = 0
    """Worker processes."""
    shuffle: Literal["full", "block", "none"] = "full"
    """How training splits are shuffled: all rows (`full`), in blocks (`block`), or not at all. Other splits are never
    shuffled."""
    seed: int = 0
    """Seed of the shuffled order."""
    drop_last: bool = False
    """Drop the last batch if it is smaller."""
    pin_memory: bool | None = None
    """Copy batches to pinned memory. null: chosen for the hardware."""
    prefetch_factor: Positive | None = None
    """Batches prefetched per worker. null: chosen for the hardware."""
    persistent_workers: bool | None = None
    """Keep workers alive between epochs. null: chosen for the hardware."""


class ComputeConfig(Section):
    """How the stages run. This never changes a byte of the result."""

    engine: Literal["local", "ray"] = "local"
    """Where stages run: on this machine (`local`), or on a Ray cluster (`ray`)."""
    workers: Literal["auto"] | Positive = "auto"
    """Chunks processed in parallel. `auto` uses one worker per CPU core, of this machine or of the Ray cluster."""
    address: str | None = None
    """Address of the Ray cluster: `host:port`, or `ray://host:port` for Ray Client. null or `auto`: $RAY_ADDRESS, else
    the cluster that runs on this machine."""


class MixtureSource(Section):
    """One dataset of a mixture."""

    dataset: Annotated[str, Field(pattern=f"^{DATASET_NAME}$")]
    """Name of a dataset that a YAML in the same folder declares, or that the store holds."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["size"] = 1.0
    """Fraction of the mixture, relative to the other weights. `size`, for all entries: as many rows as the dataset has,
    so that an epoch has each row of all datasets once."""
    by: Literal["rows", "tokens"] = "tokens"
    """The unit of weights. All datasets of a mixture use the same unit, so one entry can set it for all."""
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Maximum number of passes over the dataset. null: no limit."""

    @property
    def number(self) -> float:
        """The weight as a number: 1 for `size`, which is then the unit."""
        return 1.0 if self.weight == "size" else self.weight


def is_reserved_variable(name: str) -> bool:
    """Return whether tokenloom itself gives templates a variable of this name."""
    return name in RESERVED_VARIABLES or name.startswith("_") or name.endswith("_token")


def first_duplicate(names: tuple[str, ...]) -> str | None:
    """Return the first name that appears twice, or None."""
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
