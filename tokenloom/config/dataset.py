"""The YAML's schema: frozen pydantic models, one a section, each setting with its meaning and default.

The field descriptions are the text of `tokenloom schema` and of docs/configuration.md. `PipelineConfig` is
built from a file by `PipelineConfig.from_file`, which names the line of every fault. A YAML that mixes datasets is a
`MixtureConfig` instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from tokenloom.config.cron import Cron
from tokenloom.errors import ConfigError, Fault

Names = Annotated[tuple[str, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]

_KEYS = r"(?:`[^`]+`|[^.`\[\]]+)(?:\.(?:`[^`]+`|[^.`\[\]]+))*"
_ROOT = re.compile(rf"(?:{_KEYS})?\[\](?:\.{_KEYS}\[\])*")

DATASET_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
DEFAULT_SPECIAL_TOKENS = {"eos": "<|endoftext|>", "pad": "<|pad|>"}


class Section(BaseModel):
    """A part of the YAML: immutable, and without room for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class ReaderConfig(Section):
    """Options of a file format."""

    header: Literal["auto"] | bool = "auto"
    """CSV and TSV: the first record names the columns; without it they are `column_0`, `column_1`, … `auto`: it does,
    unless a field of it is empty, a number, prose, or there twice."""
    delimiter: Annotated[str, Field(pattern=r"^[\t\x20-\x21\x23-\x7e]$")] | None = None
    """CSV and TSV: the field separator, one ASCII character; default: a comma, or a tab for `tsv`; else
    the one of `;`, tab, `|` that the first record holds."""
    lines_per_row: Literal["line", "paragraph", "file"] = "line"
    """Plain text: what one row is."""
    root: str | None = None
    """Nested JSON: the path to the rows, e.g. `data[].paragraphs[].qas[]` (odd keys in backticks); what stands around
    them is repeated. Default: found where an object holds one list of objects."""

    @field_validator("root")
    @classmethod
    def _path_to_rows(cls, value: str | None) -> str | None:
        if value is not None and not _ROOT.fullmatch(value):
            raise ValueError(f"{value!r} is no path to rows; write it like data[].paragraphs[].qas[]")
        return value


class Constant(Section):
    """A value that every row has."""

    constant: str | bool | int | float
    """The value."""


class DatasetConfig(Section):
    """Where the rows come from."""

    name: Annotated[str, Field(min_length=1)]
    """A hub id, a file, a folder, a glob, a `save_to_disk` folder, or an fsspec URL. Relative paths start at the
    YAML's folder, then at the working directory."""
    config: str | None = None
    """Hub subset."""
    revision: str | None = None
    """Hub revision: a branch, a tag or a commit."""
    splits: Names | None = None
    """The splits to use; default: all. Bare files are split `train`."""
    val_split: Share = 0.0
    """Share of `train` that moves to `validation`, chosen by each row's content: appending never moves a row."""
    format: Literal["auto", "json", "jsonl", "csv", "tsv", "parquet", "arrow", "text", "hub"] = "auto"
    """How to read files; `auto` goes by the name's ending, then by the first bytes."""
    encoding: str = "auto"
    """Encoding of text formats; `auto` follows a byte-order mark, else it is UTF-8, or for CSV, TSV and plain text
    that is not UTF-8 what charset-normalizer finds."""
    reader: ReaderConfig = ReaderConfig()
    """Options of the format."""
    streaming: bool = False
    """True: `get_dataloader` iterates the source without materializing anything."""
    columns: Names | None = None
    """Keep only these source columns."""
    column_mapping: dict[str, str | Constant] = {}
    """Role to where its values come from: a column, a path such as `answers[0].text`, a text with `{column}` in it,
    `choices[{answer}]`, or `{constant: value}`; e.g. `{prompt: question, completion: answer}`."""
    filters: Names = ()
    """Row conditions, e.g. `len(output) > 0`; what they drop is counted as filtered."""

    @field_validator("columns")
    @classmethod
    def _no_column_twice(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (twice := [name for index, name in enumerate(value) if name in value[:index]]):
            raise ValueError(f"{twice[0]} is listed twice")
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
                    f"{value!r} is not a text encoding that Python knows, such as utf-8 or latin-1"
                ) from None
        return value


class TrainConfig(Section):
    """A tokenizer trained on this dataset's prompts: byte-level BPE."""

    vocab_size: Annotated[int, Field(ge=257, le=2**24)] = 8000
    """Number of ids, special tokens included."""
    min_frequency: Positive = 2
    """A pair seen less often is not merged."""


class SpecialTokensConfig(Section):
    """Special tokens by role."""

    bos: str | None = None
    """Begins a sequence."""
    eos: str | None = None
    """Ends an answer."""
    pad: str | None = None
    """Fills a batch; default: the EOS token, with attention 0 and label -100."""
    unk: str | None = None
    """Stands for what the vocabulary lacks."""
    additional: Names = ()
    """Further control tokens, such as the role marks of a chat template."""


class TokenizerConfig(Section):
    """The tokenizer, and what only it decides."""

    name_or_path: str | None = None
    """Hub id, folder, tokenizer.json, SentencePiece `.model`, or tiktoken ranks."""
    train: TrainConfig | None = None
    """Train a byte-level BPE on this dataset's prompts instead."""
    max_length: Positive = 2048
    """Longest sequence, in tokens."""
    padding: Literal["max_length", "longest"] | Positive = "max_length"
    """What a loader pads to: `max_length`, `longest` (of the batch), or a multiple such as 64."""
    padding_side: Literal["left", "right"] = "right"
    """Which side of a row is padded."""
    special_tokens: SpecialTokensConfig = SpecialTokensConfig()
    """Default: the tokenizer's own. Required with `train`."""
    chat_template: str | None = None
    """Jinja text, or a file that holds it; default: the tokenizer's own."""
    control_tokens_in_content: Literal["split", "reject", "keep"] = "split"
    """Literal control strings inside the data: become plain text, reject their row, or stay control tokens."""

    @model_validator(mode="after")
    def _one_tokenizer(self) -> TokenizerConfig:
        if self.train and self.name_or_path:
            raise ValueError("name_or_path and train exclude each other: keep one")
        if self.train and not self.special_tokens.eos:
            offered = ", ".join(f'{role}: "{token}"' for role, token in DEFAULT_SPECIAL_TOKENS.items())
            raise ValueError(f"train needs special_tokens; for example {{{offered}}}")
        return self


class FewShotConfig(Section):
    """Worked examples before each prompt."""

    count: Annotated[int, Field(ge=0, le=256)] = 0
    """Examples a row; 0: zero-shot. None of them is trained."""
    source: str | None = None
    """A file of examples with the data's columns; null: other rows of the same chunk and split."""
    seed: int = 0
    """Chooses the examples."""


class PromptTemplateConfig(Section):
    """How a row becomes text, and which part of it is trained on."""

    format_type: Literal["custom", "jinja", "chat", "completion", "text", "preference", "kto"] = "custom"
    """`custom`: a template with `{column}`; `jinja`: one with `{{ column }}`; `chat`: a chat template; `completion`:
    prompt and completion joined; `text`: the text alone; `preference`, `kto`: chosen and rejected completions, or ones
    with a label, through the chat template. Custom without a template follows the data: text as it is,
    anything else through the chat template where there is one."""
    template: str | None = None
    """Text of the custom or jinja template. One final newline is dropped."""
    input_columns: Names | None = None
    """Columns that the template reads besides the label; checked against it."""
    label_column: str | None = None
    """What is trained on in a custom template."""
    system: str | None = None
    """System message put before conversations that have none."""
    few_shot: FewShotConfig = FewShotConfig()
    """Worked examples before each prompt."""
    tools: str | Annotated[tuple[Any, ...], Field(strict=False)] | None = None
    """A JSON file of tool descriptions, or the list itself, for conversations that describe none."""
    train_on: Literal["completions", "all", "last"] | Annotated[tuple[str, ...], Field(strict=False)] = "completions"
    """What is trained: completions, all text, the last completion, or a list of roles."""
    add_bos: Literal["auto"] | bool = "auto"
    """`auto`: one BOS where the tokenizer itself would add it."""
    add_eos: bool = True
    """Put EOS after the answer, trained."""
    date_string: str | None = None
    """A frozen date for templates that ask for one."""

    @field_validator("train_on")
    @classmethod
    def _known_roles(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        roles = ("system", "user", "assistant", "tool")
        if isinstance(value, tuple) and (unknown := [role for role in value if role not in roles]):
            raise ValueError(f"{unknown[0]!r} is not one of the roles {', '.join(roles)}")
        return value

    @model_validator(mode="after")
    def _template_given(self) -> PromptTemplateConfig:
        if self.format_type == "jinja" and not self.template:
            raise ValueError("format_type jinja needs a template")
        if self.template and self.format_type not in ("custom", "jinja"):
            raise ValueError(f"template is for custom and jinja, not for {self.format_type}")
        if self.format_type == "custom" and self.template and self.label_column is None and self.train_on != "all":
            raise ValueError("a custom template needs label_column, or train_on: all")
        return self


class LengthConfig(Section):
    """What happens to rows longer than `tokenizer.max_length`, and how rows share a sequence."""

    strategy: Literal["truncate_right", "truncate_left", "truncate_middle", "smart", "drop_turns", "split", "drop"] = (
        "truncate_right"
    )
    """An over-long row gives up tokens, part by part (`smart`) or by turns, is split, or goes, counted as filtered."""
    give_up: Names = ("context", "question", "system")
    """smart: which parts, by column or role, lose tokens first. The answer goes last, its stop never."""
    stride: Count = 0
    """split: overlap in tokens, trained in the first piece only."""
    packing: Literal["none", "concat", "best_fit"] = "none"
    """Several rows in one sequence, within one chunk of tokens: `concat` joins them and cuts at max_length, so that
    nothing is truncated; `best_fit` keeps whole what the strategy leaves of each row."""


class ValidationConfig(Section):
    """When a run fails for its data."""

    max_reject_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """A stage that rejects a larger share of its rows fails the run."""


class DataLoaderConfig(Section):
    """How training code gets its batches."""

    batch_size: Positive = 8
    """Rows a rank and batch."""
    token_budget: Positive | None = None
    """Instead of batch_size: padded tokens a rank and batch."""
    num_workers: Count = 0
    """Worker processes."""
    shuffle: Literal["full", "block", "none"] = "full"
    """Order of training splits; other splits are never shuffled."""
    seed: int = 0
    """Chooses the order."""
    drop_last: bool = False
    """Leave out the last, smaller batch."""
    pin_memory: bool | None = None
    """null: chosen for the hardware."""
    prefetch_factor: Positive | None = None
    """null: chosen for the hardware."""
    persistent_workers: bool | None = None
    """null: chosen for the hardware."""


class ComputeConfig(Section):
    """What runs the stages. It never changes a byte of the result."""

    engine: Literal["local", "ray"] = "local"
    """This machine, or a Ray cluster."""
    workers: Literal["auto"] | Positive = "auto"
    """Parallel chunks; `auto`: one a core."""
    address: str | None = None
    """Address of the Ray cluster."""


def _version_text(value: Any) -> Any:
    return "1.0" if isinstance(value, float) and value == 1.0 else value


class Declaration(Section):
    """What every YAML says, whatever it declares."""

    type: Literal["data_module"] = "data_module"
    """The only type; another one is refused."""
    version: Annotated[Literal["1.0"], BeforeValidator(_version_text)] = "1.0"
    """The only version; another one is refused."""
    name: Annotated[str, Field(pattern=f"^{DATASET_NAME}$")] | None = None
    """In the store, asset keys and `open_dataset`; default: the file's stem."""

    _origin: Any = PrivateAttr(default=None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a YAML file.

        Raises:
            ConfigError: with one fault for each thing wrong, naming its line and the nearest right name.
        """
        from tokenloom.config.yaml_file import load_config

        return cls._own(load_config(path))

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Self:
        """The same settings from Python; faults name them by their dotted path.

        Raises:
            ConfigError: with one fault for each thing wrong.
        """
        from tokenloom.config.yaml_file import check_config

        return cls._own(check_config(settings))

    @classmethod
    def _own(cls, found: Any) -> Self:
        if isinstance(found, cls):
            return found
        raise found.fault("mixture", f"mixture: {found._otherwise}")

    @property
    def _otherwise(self) -> str:
        """What to say where a YAML of the other kind is wanted."""
        raise NotImplementedError

    @property
    def dataset_name(self) -> str:
        """The name in the store, in asset keys and in `open_dataset`."""
        return self.name or (self._origin.path.stem if self._origin else "dataset")

    @property
    def folder(self) -> str | None:
        """The folder of the YAML file, where relative paths start; None for a config that came from no file."""
        return str(self._origin.path.parent) if self._origin else None

    @property
    def file(self) -> str | None:
        """The YAML file, or None."""
        return str(self._origin.path) if self._origin else None

    def fault(self, setting: str, message: str, offset: int | None = None) -> ConfigError:
        """Make a `ConfigError` that names a setting, at its line in the file.

        Args:
            setting: dotted name; the message is prefixed with it unless it starts with it already.
            message: what is wrong, and what to do about it.
            offset: position of the fault inside a block of text, in characters.
        """
        message = message if message.startswith(setting) else f"{setting}: {message}"
        at = tuple(int(part) if part.isdecimal() else part for part in setting.split("."))
        return ConfigError([Fault(self._origin.place(at, offset) if self._origin else setting, message)])


class PipelineConfig(Declaration):
    """One dataset, as its YAML declares it."""

    dataset: DatasetConfig
    """Where the rows come from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer, and what only it decides."""
    prompt_template: PromptTemplateConfig = PromptTemplateConfig()
    """How a row becomes text, and which part of it is trained on."""
    length: LengthConfig = LengthConfig()
    """What happens to over-long rows, and packing."""
    validation: ValidationConfig = ValidationConfig()
    """When a run fails for its data."""
    dataloader: DataLoaderConfig = DataLoaderConfig()
    """How training code gets its batches."""
    mixture: None = None
    """null: this YAML declares one dataset. A list mixes others, instead of the sections that make one."""
    compute: ComputeConfig = ComputeConfig()
    """What runs the stages."""
    schedule: Cron | None = None
    """Cron line on which Dagster rebuilds the dataset, e.g. `0 3 * * *`."""
    keep: Literal["all", "sequences"] = "all"
    """What `tokenloom gc` may drop of what is in use: nothing, or the outputs of stages before sequences."""
    training: dict[str, Any] | None = None
    """The trainer's settings, handed on unread."""

    @property
    def _otherwise(self) -> str:
        return "missing; it is required"
