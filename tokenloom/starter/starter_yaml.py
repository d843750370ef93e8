"""Writes the YAML to start from: settings that build, or a choice to make, with the reasons as comments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenloom.assets.columns.content_parts import IMAGE_TYPES
from tokenloom.assets.columns.unused import unused_notice
from tokenloom.assets.schema.candidates import Ambiguity, FormatCandidate
from tokenloom.assets.schema.profiles import Profile, Steps, profiles
from tokenloom.assets.stage.forms import FORMS, TRAINED_BY, allowed_forms, form_named
from tokenloom.assets.stage.images import IMAGE_COLUMNS
from tokenloom.config import DEFAULT_SPECIAL_TOKENS, TokenizerConfig, TrainConfig
from tokenloom.config.yaml_file import CHOICE, comment, scalar
from tokenloom.resources.templates.named import IM_END, IM_START
from tokenloom.starter import STYLES

if TYPE_CHECKING:
    from tokenloom.resources.tokenizers import TokenizerSpec


_PLACE = re.compile(r"data:image/|https?://|.*\.(jpe?g|png|webp|gif|bmp|tiff?|ppm)\Z", re.IGNORECASE)


def image_columns(paths: Mapping[Steps, Profile]) -> list[str]:
    """Return the columns with images: structs of bytes and a path, content parts, and what is named `image` or `images`
    and holds bytes, paths or URLs."""
    return list(dict.fromkeys(profile.column.name for profile in paths.values() if _has_images(profile)))


def _has_images(profile: Profile) -> bool:
    last, facts = profile.steps[-1], profile.facts
    texts = [str(text) for text in facts.get("values") or facts.get("examples") or ()]
    binary = "binary" in str(facts.get("type"))
    if binary and last == "bytes":
        return (*profile.steps[:-1], "path") in profile.within
    if len(profile.steps) > 1 and last == "type":
        return bool({*texts} & {*IMAGE_TYPES})
    named = profile.steps in [(name, *items) for name in IMAGE_COLUMNS for items in ((), (None,))]
    return named and (binary or any(map(_PLACE.match, texts)))


FILL_IN = "<fill in>"
"""Placeholder for a source that the user must choose. No column has this name, so a build reports it."""

_ROLES = dict.fromkeys(FORMS["completion"].required, FILL_IN)
OWN = FormatCandidate("a mapping of your own", "completion", _ROLES, 0.0, ())
"""Written where the rows have no known format."""

TOKENIZER = "<folder or hub id>"
"""Placeholder for the tokenizer of pre-tokenized rows."""

CHARACTERS_PER_TOKEN = 3
"""A low estimate, so that `max_length` is rather too long than too short."""

LONGEST = 8192
"""Largest `max_length` that is written."""

SHOWN_COLUMNS = 20
"""Columns that a comment lists."""


def starter_yaml(
    dataset: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    choice: FormatCandidate | Ambiguity,
    tokenizer: tuple[str, TokenizerSpec] | None = None,
    comments: Sequence[str] = (),
    prompt: Mapping[str, Any] | None = None,
    style: str | None = None,
    joined: Callable[[FormatCandidate], bool] = lambda choice: False,
    asked: Mapping[str, str] | None = None,
) -> str:
    """Return a dataset's YAML: one that builds if the format is clear, else one that asks.

    Where several formats are close, each is a comment that builds once it is uncommented, and so is a `column_mapping`
    to fill in; where none is, only the latter is written.

    Args:
        dataset: settings of the `dataset` section; a `column_mapping` among them is kept.
        columns: profiles of the columns.
        choice: the format that the data was read as, or close candidates.
        tokenizer: a tokenizer's name and facts; None: the YAML trains one.
        comments: lines about the source.
        prompt: settings of the `prompt_template` section that belong to the mapping.
        style: one of `STYLES`; default: the tokenizer's chat template, or one that suits the columns.
        joined: whether most rows of a format have white space of their own between prompt and completion.
        asked: settings to write as comments: a column for the role `weight`, a field for `train_ranges`, and what
            stands for a `processor`.
    """
    own_mapping = dataset.get("column_mapping")
    rows = {name: value for name, value in dataset.items() if name != "column_mapping"}
    lines = [*(comment(line)[2:] for line in comments), "dataset:", *_settings(rows)]

    def rest(reading: FormatCandidate) -> list[str]:
        """Return all lines after `dataset.name` that depend on the format."""
        declared = ["  # the mapping of the inspected YAML", *_settings({"column_mapping": own_mapping or {}})]
        mapping = declared if own_mapping else _mapping(columns, reading)
        own = _question(asked or {}, "weight", "    ", "multiplies the loss weight of the row's trained tokens")
        ranges = _question(asked or {}, "train_ranges", "  ", "only these ranges of the messages are trained")
        sections = _sections(columns, reading, tokenizer, prompt or {}, style, joined(reading), asked or {})
        return [*mapping, *own, *sections, *ranges]

    if isinstance(choice, FormatCandidate):
        lines += rest(choice)
    elif own_mapping or not choice.close:
        unclear = f"  # Not clear which columns to train on:{comment(str(choice))[3:]}."
        lines += [*([] if own_mapping else [unclear]), *rest(choice.close[0] if choice.close else OWN)]
    else:
        lines += ["", "# Not clear which columns to train on: make one of these choices."]
        lines += ["# Remove the '# ' before each line of it, below its heading."]
        for number, reading in enumerate((*choice.close, OWN), 1):
            doubts = "; ".join(f"{role}: {reason}" for role, reason in reading.doubts.items())
            what = reading.format + ("" if reading is OWN else f", from {', '.join(reading.roles.values())}")
            lines += ["", f"{CHOICE}{number}: {comment(f'{what}; but {doubts}' if doubts else what)[4:]}"]
            lines += [f"# {line}" for line in rest(reading)]
    return "\n".join(lines) + "\n"


def _sections(
    columns: Sequence[Mapping[str, Any]],
    reading: FormatCandidate,
    tokenizer: tuple[str, TokenizerSpec] | None,
    prompt: Mapping[str, Any],
    asked: str | None,
    joined: bool,
    further: Mapping[str, str],
) -> Iterator[str]:
    """Yield the sections `tokenizer` and `prompt_template`."""
    style = prompt_style(reading, tokenizer[1] if tokenizer else None, prompt, asked, joined)
    yield "tokenizer:"
    if tokenizer is not None:
        setting = "name_or_path" if tokenizer[1].processor is None else "processor"
        yield f"  {setting}: {scalar(tokenizer[0])}"
    elif reading.form == "tokens":
        yield f"  name_or_path: {scalar(TOKENIZER)}  # the tokenizer that the ids come from"
    else:
        yield from _trained_tokenizer(style.template in CHATML)
    replaced = "name_or_path" if tokenizer else "train, special_tokens and chat_template"
    yield from _question(further, "processor", "  ", f"trains on the images too; replaces {replaced}")
    split = style.format_type == "text" or (style.format_type == "tokens" and not {*TRAINED_BY} & {*reading.roles})
    longer = "longer rows are split" if split else "longer rows are shortened, see length.strategy"
    yield f"  max_length: {_max_length(columns, reading)}  # tokens; {longer}"
    if style.template:
        yield f"  chat_template: {style.template}{comment(style.note)}"
    yield "prompt_template:"
    if "template" not in prompt and "format_type" not in prompt:
        yield f"  format_type: {style.format_type}{'' if style.template else comment(style.note)}"
    yield from _settings(prompt)
    if tokenizer is not None and tokenizer[1].eos is None and reading.form != "tokens" and "add_eos" not in prompt:
        yield "  add_eos: false  # the tokenizer has no EOS token"


def _question(asked: Mapping[str, str], name: str, indent: str, effect: str) -> list[str]:
    """Return a setting as a comment, if it is asked about."""
    if name not in asked:
        return []
    return [f"{indent}# {name}: {scalar(asked[name])}{comment(f'uncomment to use it: {effect}')}"]


def _settings(dataset: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    for name, value in dataset.items():
        if isinstance(value, Mapping):
            yield f"{indent}{scalar(name)}:"
            yield from _settings(value, indent + "  ")
        else:
            yield f"{indent}{scalar(name)}: {scalar(value)}"


def _mapping(columns: Sequence[Mapping[str, Any]], reading: FormatCandidate) -> Iterator[str]:
    if reading is OWN:
        yield from _roles_to_map(columns)
    else:
        yield f"  # {reading.format}, confidence {reading.confidence:.2f}"
    yield "  column_mapping:"
    reasons = dict(reason.split(": ", 1) for reason in reading.evidence if ": " in reason)
    for role, source in reading.roles.items():
        yield f"    {role}: {scalar(source)}{comment(reasons.get(role, ''))}"
    if reading.unused:
        yield comment(unused_notice(reading.unused))


def _roles_to_map(columns: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield comments that say what a mapping can be."""
    shown = [profile.name for profile in profiles(columns).values() if profile.is_column]
    more = f" and {len(shown) - SHOWN_COLUMNS} more" if len(shown) > SHOWN_COLUMNS else ""
    yield f"  # Columns:{comment(', '.join(shown[:SHOWN_COLUMNS]))[3:]}{more}."
    yield "  # Give each role of one format a column, a path such as answers[0].text, or a text with {column} in it,"
    yield "  # and set prompt_template.format_type to that format:"
    for form in FORMS.values():
        also = f"; optional: {', '.join(form.optional)}" if form.optional else ""
        yield f"  #   {form.format_types[0]}: {', '.join(form.required)}{also}"


def _trained_tokenizer(chatml: bool) -> Iterator[str]:
    vocabulary = TrainConfig().vocab_size
    reason = "largest size of the tokenizer trained on these rows; to use another one, set name_or_path"
    yield f"  train: {{vocab_size: {vocabulary}}}  # {reason}"
    yield "  special_tokens:"
    if not chatml:
        yield from (f"    {role}: {scalar(token)}" for role, token in DEFAULT_SPECIAL_TOKENS.items())
        return
    yield f"    eos: {scalar(IM_END)}  # ends every message"
    yield f"    pad: {scalar(DEFAULT_SPECIAL_TOKENS['pad'])}"
    yield f"    additional: [{scalar(IM_START)}]"


def _max_length(columns: Sequence[Mapping[str, Any]], reading: FormatCandidate) -> int:
    """Return 2048, or the next power of two up to `LONGEST` that nearly all rows fit into by a rough estimate.

    Plain text is split, so that its length does not matter.
    """
    length = TokenizerConfig.model_fields["max_length"].default
    if reading.form == "text":
        return length
    # The sum of the columns' 99th percentiles: rows that are long in one column are often long in others.
    ids = reading.roles.get("input_ids")
    tokens = sum(
        (profile.facts.get("lengths") or {}).get("p99", 0) / (CHARACTERS_PER_TOKEN if ids is None else 1)
        for profile in profiles(columns).values()
        if (profile.kind == "text" and profile.source in reading.roles.values()) or profile.source == ids
    )
    while length < min(tokens, LONGEST):
        length *= 2
    return length


CHATML = {
    "chatml": "<|im_start|> and <|im_end|> around each message",
    "chatml-eos": "ChatML whose messages end with EOS, since the tokenizer has no <|im_end|>",
}
"""Built-in chat templates for messages."""

JOINED = "most prompts or answers already have white space between them, so none is added"


@dataclass(frozen=True)
class PromptStyle:
    """How rows become text.

    Args:
        format_type: `prompt_template.format_type`.
        template: the built-in chat template to name; None: the tokenizer's own, or none.
        note: why, as a comment.
    """

    format_type: str
    template: str | None = None
    note: str = ""


def prompt_style(
    choice: FormatCandidate,
    tokenizer: TokenizerSpec | None,
    declared: Mapping[str, Any],
    asked: str | None,
    joined: bool,
) -> PromptStyle:
    """Return how the rows of a format become text.

    Args:
        choice: the format that the rows are read as.
        tokenizer: facts of the tokenizer; None: the YAML trains one.
        declared: the settings of `prompt_template` that the inspected YAML has.
        asked: one of `STYLES`, or None.
        joined: whether most rows have white space of their own between prompt and completion.
    """
    # Conversations need a chat template; prompts and completions of text get one where nothing says that they have
    # a layout of their own: a declared format, or white space between them.
    form, texts = form_named(choice.form), choice.form == "completion"
    spoken, plain = bool(form.spoken or (texts and {"system", "history"} & {*choice.roles})), form.format_types[0]
    if "format_type" in declared:
        spoken = any(FORMS[name].spoken for name in allowed_forms(declared["format_type"]))
    if not spoken and not texts:
        return PromptStyle(plain)
    if asked in (None, "chat"):
        if not (spoken or asked) and (declared or joined):
            return PromptStyle(plain, note=JOINED if joined and not declared else "")
        if tokenizer is not None and tokenizer.chat_template is not None:
            return PromptStyle("chat" if texts else plain)
    if asked not in (None, "chat"):
        template = asked
    elif spoken or asked:
        template = "chatml" if tokenizer is None or IM_END in tokenizer.control else "chatml-eos"
    elif choice.format == "question/answer" or "question" in choice.roles.get("prompt", "").lower():
        template = "qa"
    else:
        template = "alpaca" if choice.format == "alpaca" else "lines"
    return PromptStyle("chat" if texts else plain, template, {**STYLES, **CHATML}[template])
