"""Writes the YAML of `tokenloom inspect`: settings that build, with the reasons as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from tokenloom.assets.columns.forms import PROMPTED, REASONING_FIELDS
from tokenloom.assets.columns.mapping import ROLES, unused_notice
from tokenloom.assets.schema.choose_format import Ambiguity
from tokenloom.assets.schema.evidence.profiles import Profile, message_fields, profiles
from tokenloom.assets.schema.evidence.speakers import CALL_ROLES, role_of
from tokenloom.assets.schema.formats.candidate import FormatCandidate
from tokenloom.config import DEFAULT_SPECIAL_TOKENS, TokenizerConfig, TrainConfig
from tokenloom.resources.templates.chatml import IM_END, IM_START, chatml

if TYPE_CHECKING:
    from tokenloom.resources.tokenizers import TokenizerSpec

FILL_IN = "<fill in>"
"""Placeholder for a source that the user must choose. No column has this name, so a build reports it."""

FORMATS = {"messages": "chat", "dialogue": "chat", "segments": "text"}
"""Names of forms in `prompt_template.format_type`, where they differ."""

CHATS = ("messages", *PROMPTED)
"""Forms that a chat template renders."""

STYLES = {
    "alpaca": "'### Instruction:' before the prompt, '### Response:' before the answer",
    "chat": "the tokenizer's chat template, or ChatML",
    "plain": "a blank line between prompt and answer",
    "qa": "'Question:' before the prompt, 'Answer:' before the answer",
}
"""How prompts and answers can be rendered."""

LINE_BREAKS = set("\r\n\x85\u2028\u2029")
"""Characters that end a line in YAML."""

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
    separated: bool = False,
) -> str:
    """Return a dataset's YAML: one that builds if the format is clear, else one with a `column_mapping` to fill in.

    Args:
        dataset: settings of the `dataset` section; a `column_mapping` among them is kept.
        columns: profiles of the columns.
        choice: the format that the data was read as, or close candidates.
        tokenizer: a tokenizer's name and facts; None: the YAML trains one.
        comments: lines about the source.
        prompt: settings of the `prompt_template` section that belong to the mapping.
        style: one of `STYLES`; default: the tokenizer's chat template, or one that suits the columns.
        separated: whether prompts or completions of texts have white space of their own between them.
    """
    own_mapping, prompt = dataset.get("column_mapping"), prompt or {}
    rows = {name: value for name, value in dataset.items() if name != "column_mapping"}
    mapping = _own_mapping(own_mapping) if own_mapping else _mapping(columns, choice)
    lines = [*(_comment(line)[2:] for line in comments), "dataset:", *_settings(rows), *mapping]
    form = choice.form if isinstance(choice, FormatCandidate) else _form(choice)
    roles = choice.roles if isinstance(choice, FormatCandidate) and form == "completion" else ()
    chat = form in CHATS or bool({"system", "history"} & {*roles})
    if "format_type" in prompt:
        chat = prompt["format_type"] in ("chat", *CHATS)
    named, own_template = None, tokenizer is not None and tokenizer[1].chat_template is not None
    if style == "chat" and form in ("completion", *CHATS):
        chat = True
    elif style and (chat or form == "completion"):
        named = style
    elif form == "completion" and not (chat or prompt or separated):
        chat, named = own_template, None if own_template else _style(choice)
    lines += ["tokenizer:", *_tokenizer(tokenizer, chat and not named)]
    lines.append(
        f"  max_length: {_max_length(columns, choice)}  # tokens; longer rows are shortened, see length.strategy"
    )
    if named:
        lines.append(f"  chat_template: {named}  # {STYLES[named]}")
    elif chat and not own_template:
        lines += [
            "  chat_template: |  # ChatML; {% generation %} marks what is trained",
            *_block(_template(tokenizer, columns, choice)),
        ]
    lines += ["prompt_template:", *_prompt(form, chat or bool(named), tokenizer, prompt)]
    return "\n".join(lines) + "\n"


def _style(choice: FormatCandidate | Ambiguity) -> str:
    """Return the template for prompts and completions of text."""
    if isinstance(choice, Ambiguity):
        return "plain"
    asks = "question" in choice.roles.get("prompt", "").lower()
    return "qa" if asks else "alpaca" if choice.format == "alpaca" else "plain"


def _settings(dataset: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    for name, value in dataset.items():
        if isinstance(value, Mapping):
            yield f"{indent}{scalar(name)}:"
            yield from _settings(value, indent + "  ")
        else:
            yield f"{indent}{scalar(name)}: {scalar(value)}"


def scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    for style in (None, '"'):
        shown = yaml.safe_dump([value], default_flow_style=True, default_style=style, allow_unicode=True, width=1 << 30)
        if not set(shown.strip()) & LINE_BREAKS:
            break
    return shown.strip()[1:-1]


def _own_mapping(mapping: Mapping[str, Any]) -> Iterator[str]:
    yield "  # the mapping of the inspected YAML"
    yield from _settings({"column_mapping": mapping})


def _mapping(columns: Sequence[Mapping[str, Any]], choice: FormatCandidate | Ambiguity) -> Iterator[str]:
    if isinstance(choice, FormatCandidate):
        yield f"  # {choice.format}, confidence {choice.confidence:.2f}"
        yield "  column_mapping:"
        reasons = dict(reason.split(": ", 1) for reason in choice.evidence if ": " in reason)
        for role, source in choice.roles.items():
            yield f"    {role}: {scalar(source)}{_comment(reasons.get(role, ''))}"
        if choice.unused:
            yield _comment(unused_notice(choice.unused))
        return
    yield f"  # Not clear which columns to train on:{_comment(str(choice))[3:]}."
    shown = [profile.name for profile in profiles(columns).values() if profile.is_column]
    more = f" and {len(shown) - SHOWN_COLUMNS} more" if len(shown) > SHOWN_COLUMNS else ""
    yield f"  # Columns:{_comment(', '.join(shown[:SHOWN_COLUMNS]))[3:]}{more}."
    yield "  # Give each role of one format a column, a path such as answers[0].text, or a text with {column} in it,"
    yield "  # and set prompt_template.format_type to that format:"
    for form, (required, optional) in ROLES.items():
        also = f"; optional: {', '.join(optional)}" if optional else ""
        yield f"  #   {FORMATS.get(form, form)}: {', '.join(required)}{also}"
    yield "  column_mapping:"
    form = _form(choice)
    for role in sum(ROLES[form], ()):
        alike = [candidate for candidate in choice.close if candidate.form == form]
        likely = list(dict.fromkeys(candidate.roles[role] for candidate in alike if role in candidate.roles))
        if not likely and role not in ROLES[form][0]:
            continue
        agreed = len(choice.close) > 1 and len(likely) == 1 and all(role in other.roles for other in choice.close)
        hint = "" if agreed or not likely else _comment(f"perhaps {' or '.join(map(repr, likely))}")
        yield f"    {role}: {scalar(likely[0] if agreed else FILL_IN)}{hint}"


def _comment(text: str) -> str:
    """Return a text, which can come from the data, as a comment at the end of a line."""
    line = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return f"  # {shown}" if shown else ""


def _form(choice: Ambiguity) -> str:
    return choice.close[0].form if choice.close else "completion"


def _tokenizer(tokenizer: tuple[str, TokenizerSpec] | None, chat: bool) -> Iterator[str]:
    if tokenizer is not None:
        yield f"  name_or_path: {scalar(tokenizer[0])}"
        return
    vocabulary = TrainConfig().vocab_size
    reason = "largest size of the tokenizer trained on these rows; to use another one, set name_or_path"
    yield f"  train: {{vocab_size: {vocabulary}}}  # {reason}"
    yield "  special_tokens:"
    if not chat:
        yield from (f"    {role}: {scalar(token)}" for role, token in DEFAULT_SPECIAL_TOKENS.items())
        return
    yield f"    eos: {scalar(IM_END)}  # ends every message"
    yield f"    pad: {scalar(DEFAULT_SPECIAL_TOKENS['pad'])}"
    yield f"    additional: [{scalar(IM_START)}]"


def _template(
    tokenizer: tuple[str, TokenizerSpec] | None,
    columns: Sequence[Mapping[str, Any]],
    choice: FormatCandidate | Ambiguity,
) -> str:
    """Return the ChatML template; messages end with EOS if the tokenizer has no `<|im_end|>`."""
    known = tokenizer is None or IM_END in tokenizer[1].control
    tools, reasoning = _has_tools(columns, choice), _has_reasoning(columns, choice)
    return chatml(tools, IM_END if known else "{{ eos_token }}", reasoning)


def _block(text: str) -> Iterator[str]:
    return (f"    {line}" if line else "" for line in text.splitlines())


def _prompt(
    form: str, chat: bool, tokenizer: tuple[str, TokenizerSpec] | None, own: Mapping[str, Any]
) -> Iterator[str]:
    if "template" not in own and "format_type" not in own:
        yield f"  format_type: {'chat' if chat and form == 'completion' else FORMATS.get(form, form)}"
    yield from _settings(own)
    if tokenizer is not None and tokenizer[1].eos is None and "add_eos" not in own:
        yield "  add_eos: false  # the tokenizer has no EOS token"


def _has_tools(columns: Sequence[Mapping[str, Any]], choice: FormatCandidate | Ambiguity) -> bool:
    """Return whether conversations call tools, judged by their roles, message fields and speakers."""
    if not isinstance(choice, FormatCandidate):
        return False
    for profile in _conversations(columns, choice):
        speaker = profile.items.field(message_fields(profile)[0] or "") if profile.items else None
        spoken = (speaker.facts.get("values") or ()) if speaker else ()
        calls = any(role_of(value) == "tool" or value.lower() in CALL_ROLES for value in spoken)
        if calls or (profile.items and {"tool_calls", "function_call"} & set(profile.items.fields)):
            return True
    return "tools" in choice.roles


def _has_reasoning(columns: Sequence[Mapping[str, Any]], choice: FormatCandidate | Ambiguity) -> bool:
    """Return whether messages have a reasoning field."""
    return isinstance(choice, FormatCandidate) and any(
        set(REASONING_FIELDS) & set(profile.items.fields)
        for profile in _conversations(columns, choice)
        if profile.items
    )


def _conversations(columns: Sequence[Mapping[str, Any]], choice: FormatCandidate) -> Iterator[Profile]:
    """Yield the list columns that have a role."""
    for profile in profiles(columns).values():
        if profile.is_column and profile.name in choice.roles.values() and profile.items is not None:
            yield profile


def _max_length(columns: Sequence[Mapping[str, Any]], choice: FormatCandidate | Ambiguity) -> int:
    """Return 2048, or the next power of two up to `LONGEST` that nearly all rows fit into by a rough estimate."""
    default = TokenizerConfig.model_fields["max_length"].default
    if not isinstance(choice, FormatCandidate):
        return default
    tokens = sum(
        (profile.facts.get("lengths") or {}).get("p99", 0) / CHARACTERS_PER_TOKEN
        for profile in profiles(columns).values()
        if profile.kind == "text" and profile.source in choice.roles.values()
    )
    while default < min(tokens, LONGEST):
        default *= 2
    return default
