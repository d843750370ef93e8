"""The forms of rows: `FORMS` says in one object a form what it is, and every stage derives from it what it needs.

A form of texts needs no more than its object and a function that detects it, in `tokenloom.assets.schema.formats`. A
form with other columns also needs a converter, in `tokenloom.assets.columns.canonical`. No stage asks for the name of
a form: what only some forms do is a field or a property of `Form`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.stage.contract import Column, column
from tokenloom.resources.tables.ragged import Flags, flags_of
from tokenloom.resources.tables.sequence_schema import LABELLED, PAIR, PROMPT, SEQUENCE

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Fields of messages with the assistant's reasoning before the answer, in data and in templates; the first counts."""

ROW_WEIGHT = "_weight"
"""Column with the number, float32, that multiplies the weights of a row's trained tokens; only if it is mapped."""

IMAGES = "tokenloom:images"
"""Field of a message with the images that its content parts refer to, and the types of these parts."""

RANGES = "tokenloom:ranges"
"""Name in a message's `fields` of the weights of parts of its text, which templates do not get: for `content` and
`reasoning`, lists of start and end in bytes, and a weight, or null for the message's own. A start of -1 is that of the
message's turn."""

SPACED = "tokenloom:spaced"
"""Field of a message whose text parts have white space where they meet: templates can trim each of them."""

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning", pa.string()),
        ("weight", pa.float32()),
        ("fields", pa.string()),
    ]
)
"""One message.

- role: one of `tokenloom.config.trained_kinds.MESSAGE_ROLES`, or any role that only a chat template knows.
- content: text, never null. For content that is neither text nor text parts: its JSON text.
- reasoning: null if the message has none.
- weight: the loss weight of its trained tokens that the data declares (`train: false` is 0); null if
  `prompt_template.train_on` decides.
- fields: the message as a JSON object with all fields that are not null, in the source's order; null if it has only a
  role and a text. Values that other columns hold are null in it: `role`, unless the source has another name for the
  role; `content`, or its text in a list with one text part; the reasoning. `tool_calls` are in OpenAI's layout.
"""

MESSAGES = pa.list_(MESSAGE)
CONVERSATIONS = ("messages", "prompt", "completion")
"""The roles of columns whose values can be conversations."""

SEGMENT = pa.struct([("text", pa.string()), ("weight", pa.float32())])
"""A part of a text, with its loss weight; neither is null."""

SEGMENTS = pa.list_(SEGMENT)


MASKS = ("loss_mask", "assistant_masks", "completion_mask")
"""Roles of pre-tokenized rows with a 0 or 1 for each token."""

COUNTS = ("prompt_length", "num_actions")
"""Roles of pre-tokenized rows with one number for each row."""

TRAINED_BY: tuple[str, ...] = ("labels", *MASKS, "weights", *COUNTS)
"""Roles that say which tokens of pre-tokenized rows are trained."""

LAYOUT = ("attention_mask", "position_ids", "seq_lengths")
"""Roles that say which tokens of pre-tokenized rows are padding, and where documents begin."""


_SCALARS = frozenset({"text", "number", "boolean", "other"})
_NESTED = frozenset({"list", "struct", "binary"})


@dataclass(frozen=True)
class Need:
    """What the values of a role must be.

    Args:
        words: the same for messages.
        values: the kinds that fit, as in `tokenloom.assets.schema.sketch.kind_of`; lists fit by their items.
        items: the kinds of items of the lists that fit.
    """

    words: str
    values: frozenset[str] = frozenset()
    items: frozenset[str] = frozenset()


ANYTHING = Need("anything", _SCALARS | _NESTED)
TEXT = Need("text", _SCALARS)
TEXT_OR_MESSAGES = Need("text or a list of messages", _SCALARS, frozenset({"struct"}))
NUMBER = Need("a number", frozenset({"number"}))
NUMBERS = Need("a list of numbers", items=frozenset({"number", "boolean"}))
LIST = Need("a list", items=_SCALARS | _NESTED)
TEXTS = Need("a list of texts", items=_SCALARS)
TEXT_OR_TEXTS = Need("text or a list of texts", _SCALARS, _SCALARS)
PAIRS = Need("a list of [question, answer]", items=frozenset({"struct", "list"}))
TEXTS_OR_PAIRS = Need("a list of texts or of [question, answer]", items=_SCALARS | {"list"})
LABELLED_TEXTS = Need("a list of {text, label}", items=frozenset({"struct"}))

AROUND: Mapping[str, Need] = {"tools": ANYTHING, "template_kwargs": ANYTHING, "history": PAIRS}
"""What the values of roles beside conversations must be, if it is not text."""


@dataclass(frozen=True)
class Form:
    """A form of row.

    Args:
        name: its name in mappings and messages.
        columns: its columns, in addition to the row's position; none is null.
        required, optional: the roles that a mapping gives a source.
        format_types: values of `prompt_template.format_type` that allow it; `tokenloom inspect` writes the first.
        filled: the roles whose value must not be empty; default: `required`.
        written: for texts that need no chat template, the role in the text of each column, in order: `text` or
            `answer`, which are trained, or `input`.
        batch: what a row is to loaders and losses.
        needs: the values that the required roles need, in words.
        promptless: for rows without prompts, what they are, in words.
        border: what to do if answers start within a token of their prompt, in words.
        covered: roles of unused columns that do not change its text or sign, or that other checks cover.
        reads: what the values of roles must be that are neither texts nor messages.
        parts: whether rows have named parts, which `length.strategy: smart` shortens.
        of_texts: the form of the same rows if all their roles are texts.
        continued: the form of rows that have the same roles and earlier turns.
    """

    name: str
    columns: Mapping[str, Column]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    format_types: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    batch: str = SEQUENCE
    needs: str = ""
    promptless: str = ""
    border: str = ""
    covered: tuple[str, ...] = ()
    reads: Mapping[str, Need] = field(default_factory=lambda: AROUND)
    parts: bool = True
    of_texts: str = ""
    continued: str = ""

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column."""
        return {name: column.types[0] for name, column in self.columns.items()}

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles, the required ones first."""
        return self.required + self.optional

    @property
    def spoken(self) -> tuple[str, ...]:
        """The roles that can be lists of messages."""
        return tuple(name for name, kind in self.types.items() if kind == MESSAGES)

    @property
    def prompted(self) -> bool:
        """Whether prompts are messages. Rows then always go through the chat template, and only completions train."""
        return "prompt" in self.spoken

    @property
    def trained(self) -> bool:
        """Whether rows train anything."""
        return self.batch != PROMPT

    @property
    def judged(self) -> bool:
        """Whether rows are for a preference loss: pairs of answers, or answers with a label."""
        return self.batch in (PAIR, LABELLED)

    @property
    def answered(self) -> bool:
        """Whether rows have answers, all of which are trained as wanted ones."""
        return self.trained and not self.judged and not self.promptless

    @property
    def encoded(self) -> bool:
        """Whether rows are token ids instead of texts."""
        return "input_ids" in self.columns

    def need(self, role: str) -> Need:
        """Return what the values of a role must be."""
        return self.reads.get(role, TEXT_OR_MESSAGES if role in self.spoken else TEXT)

    def mapped(self, roles: Collection[str]) -> Form:
        """Return the form whose roles a mapping has: conversations can also be mapped as a prompt, an answer and
        earlier turns."""
        others = (form for form in FORMS.values() if form.continued == self.name)
        return self if {*self.required} <= {*roles} else next(others, self)


_TOOLS = "Declarations of tools as the JSON text of a list; empty if the row has none."
_KWARGS = "Variables of the chat template as the JSON text of an object; empty if the row has none."
_SHARED = {"tools": column(_TOOLS, pa.string()), "template_kwargs": column(_KWARGS, pa.string())}
_AROUND = ("context", "system", "history")
_SPOKEN = (*_AROUND, *_SHARED)
_BEFORE = column("The messages before the answer.", MESSAGES)
_ANSWER = column("The answer, as messages.", MESSAGES)
_CONVERSATION = (
    "The conversation. Each message has a role (system, user, assistant, tool, or another that the chat template "
    "knows) and a content; reasoning, weight (loss weight of its trained tokens) and fields (its other fields, as "
    "JSON text) are null if the data has none."
)

_ALL = (
    Form(
        "messages",
        {"messages": column(_CONVERSATION, MESSAGES), **_SHARED},
        required=("messages",),
        optional=("system", *_SHARED),
        format_types=("chat",),
    ),
    Form(
        "completion",
        {
            "prompt": column("The prompt.", pa.string()),
            "completion": column("The answer.", pa.string()),
            "system": column("The system prompt; empty if the row has none.", pa.string()),
        },
        required=("prompt", "completion"),
        optional=_AROUND,
        format_types=("completion", "chat"),
        filled=("completion",),
        written={"prompt": "input", "completion": "answer"},
        border="end prompts with a space, a line break or a control token, and strip white space from completions",
        covered=("completion",),
    ),
    Form(
        "dialogue",
        {"prompt": column("The messages before the answer; not trained.", MESSAGES), "completion": _ANSWER, **_SHARED},
        required=("prompt", "completion"),
        optional=_SPOKEN,
        format_types=("chat",),
        covered=("completion",),
        of_texts="completion",
        continued="messages",
    ),
    Form(
        "text",
        {"text": column("The text to train on.", pa.string())},
        required=("text",),
        format_types=("text",),
        written={"text": "text"},
        promptless="plain text",
        covered=("label",),
        parts=False,
    ),
    Form(
        "segments",
        {"segments": column("The parts of a text, in order, each with the loss weight of its tokens.", SEGMENTS)},
        required=("segments",),
        format_types=("text",),
        promptless="text in segments",
        reads={"segments": LABELLED_TEXTS},
        border="move the white space before trained segments into them",
    ),
    Form(
        "tokens",
        {
            "input_ids": column("The token ids of the row, without padding.", pa.list_(pa.uint32())),
            "weights": column("The loss weight of each token.", pa.list_(pa.float32())),
            "lengths": column("The number of tokens of each document of the row.", pa.list_(pa.int32())),
        },
        required=("input_ids",),
        optional=(*TRAINED_BY, *LAYOUT),
        format_types=("tokens",),
        promptless="pre-tokenized data",
        covered=(
            *("label", "rejected", "history", "messages", "prompt", "completion", "context", "system", "tools"),
            *("template_kwargs", "choices"),
        ),
        reads={role: NUMBER if role in COUNTS else NUMBERS for role in ("input_ids", *TRAINED_BY, *LAYOUT)},
        parts=False,
    ),
    Form(
        "preference",
        {
            "prompt": _BEFORE,
            "chosen": column("The preferred answer, as messages.", MESSAGES),
            "rejected": column("The other answer, as messages.", MESSAGES),
            **_SHARED,
        },
        required=("chosen", "rejected"),
        optional=("prompt", *_SPOKEN),
        format_types=("preference",),
        batch=PAIR,
        needs="texts or lists of messages in both",
        covered=("completion", "label", "messages"),
    ),
    Form(
        "kto",
        {
            "prompt": _BEFORE,
            "completion": _ANSWER,
            "label": column("Whether the answer is desired.", pa.bool_()),
            **_SHARED,
        },
        required=("completion", "label"),
        optional=("prompt", *_SPOKEN),
        format_types=("kto",),
        filled=("prompt", "completion", "label"),
        batch=LABELLED,
        needs="texts, and labels such as true and false, 1 and 0, or 1 and -1",
        covered=("completion",),
    ),
    Form(
        "prompt_only",
        {"prompt": column("The messages before an answer that the data does not have.", MESSAGES), **_SHARED},
        required=("prompt",),
        optional=_SPOKEN,
        format_types=("prompt_only",),
        batch=PROMPT,
        covered=("completion", "label", "rejected"),
    ),
)
FORMS = {form.name: form for form in _ALL}
"""The forms by name, in the order in which mapped roles are tried."""

COMPLETION, TOKENS = FORMS["completion"], FORMS["tokens"]

FIELDS = Form(
    "fields",
    {},
    format_types=("custom", "jinja"),
    reads={},
    border="write a space, a line break or a control token before {answer}, and strip white space from answers",
)
"""The form of rows that a template with named fields renders: a column for each field of the YAML's template."""

ANSWERED = tuple(form.name for form in (FIELDS, *_ALL) if form.answered)
"""The names of the forms whose answers are all trained as wanted ones."""


def form_named(name: str) -> Form:
    """Return a form by its name; `FIELDS` for names that are not in `FORMS`."""
    return FORMS.get(name, FIELDS)


def allowed_forms(format_type: str) -> tuple[str, ...]:
    """Return the names of the forms that a `format_type` allows; none if it leaves the form to the data."""
    return tuple(name for name, form in FORMS.items() if format_type in form.format_types)


def has_calls(messages: pa.Array) -> Flags:
    """Return bool [messages]: which messages have tool calls.

    Args:
        messages: of type `MESSAGE`.
    """
    fields = pc.struct_field(messages, "fields")
    called = flags_of(pc.match_substring(fields, '"tool_calls"'))
    # The name can also be part of a text inside the fields: only these few are parsed.
    for index in np.flatnonzero(called):
        called[index] = bool(json.loads(fields[index].as_py()).get("tool_calls"))
    return called
