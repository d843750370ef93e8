"""Detects the formats that a dataset could have, by the names and values of its columns: one function a format.

The score of a column for a role is the product of how well its name and its values fit. The confidence of a format is
based on the geometric mean of the scores of its roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tokenloom.assets.schema import doubts as doubt
from tokenloom.assets.schema.candidates import (
    MAX_CONFIDENCE,
    MIN_SCORE,
    SETTINGS,
    Fit,
    FormatCandidate,
    Match,
    Profiles,
    asks,
    beside_prompt,
    candidate,
    column_name,
    columns_of,
    fits_reply,
    is_rejected,
    optional,
    pairs,
    ranked,
    siblings,
)
from tokenloom.assets.schema.conventions import DIALECTS, OF_ANSWERS, conflict, dialect_of, token_columns
from tokenloom.assets.schema.doubts import FLAGS, PROMPTS, is_filled, is_message_text, is_spoken, unused_columns
from tokenloom.assets.schema.profiles import (
    ALIASES,
    Profile,
    fits_answer,
    fits_context,
    fits_flag,
    fits_history,
    fits_key,
    fits_label,
    fits_messages,
    fits_text,
    is_metadata,
    likeness,
    message_fields,
    pair_fields,
    profiles,
    ramp,
    role_likeness,
    unsure_flags,
    usual_values,
)
from tokenloom.resources.tables.nested_paths import quoted

UNASKED = 0.3
"""The factor for prompts without answers if other columns have content: certain only if the YAML asks for prompts."""

KTO_LABELS = ("label", "kto_tag", "desirable")
CLASSIFIED = ("text", "sentence", "utterance", "review", "tweet", "headline", "comment", "query", "content", "title")
SUMMARIZED = ("dialogue", "dialog", "article", "document", "passage", "transcript", "conversation", "report", "text")
SUMMARIES = ("summary", "highlights", "tldr", "abstract")
_LETTER = re.compile(r"[A-Ha-h]|\d{1,2}")
_GENERIC = re.compile(r"(?:column|col|field|f|c|_c|v)?_?\d+", re.IGNORECASE)


def format_candidates(columns: Sequence[Mapping[str, object]]) -> list[FormatCandidate]:
    """Return all formats that a dataset could have, the most likely first; one per mapping of roles.

    Args:
        columns: profiles as `tokenloom.assets.schema.merge` returns them.
    """
    paths = profiles(columns)
    best: dict[tuple[str, tuple[tuple[str, str], ...]], FormatCandidate] = {}
    for found in (found for detect in DETECTORS for found in detect(paths)):
        key = found.form, tuple(sorted(found.roles.items()))
        # Several formats can read the same roles: alpaca is also a prompt with a completion.
        if key not in best or found.confidence > best[key].confidence:
            best[key] = found
    return sorted(best.values(), key=lambda found: -found.confidence)


def _unread(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield known formats that no form can hold. They have no roles, and the reason is their doubt."""
    columns = columns_of(paths)
    items = {column.name: column.items.kind if column.items else "" for column in columns}
    name = reason = ""
    if items.get("completions") == "text" and items.get("labels") in ("boolean", "number"):
        name = "stepwise supervision"
        reason = (
            "each item of labels rates a step in completions, and no form has a label per step; to train on all steps, "
            "the wrong ones too, map completion to '{completions}' besides the prompt"
        )
    elif of_answers := [column for column, kind in items.items() if column in OF_ANSWERS and kind == "number"]:
        name = "pre-tokenized preferences"
        reason = f"{' and '.join(of_answers)} hold token ids; give the answers as texts or messages instead"
    elif columns and not token_columns(paths) and all(map(_is_column, columns)):
        name = "columns"
        reason = (
            f"the file is one object with a list for each column ({', '.join(list(items)[:5])}); write an object for "
            "each row, with pandas: to_json(orient='records', lines=True)"
        )
    if reason:
        yield FormatCandidate(name, "", {}, MAX_CONFIDENCE, (reason,), {"rows": reason})


def _token_ids(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield pre-tokenized rows: lists of token ids, and what is trained of them; not beside texts."""
    texts = (profile for profile in columns_of(paths) if profile.kind == "text" and not is_metadata(profile.name))
    if (columns := token_columns(paths)) and not any(texts):
        roles = {
            role: Match(profile.source, 1.0, f"named {profile.name!r}, {profile.shape()}", profile)
            for role, profile in columns.items()
        }
        against = conflict(roles)
        doubts = {"input_ids": f"{against}; map one of them"} if against else {}
        yield candidate(paths, "token ids", "tokens", roles, doubts=doubts)


def _is_column(profile: Profile) -> bool:
    """Return whether the only value is a list of several scalars."""
    scalars = profile.items is not None and profile.items.kind in ("text", "number", "boolean")
    return scalars and profile.facts.get("rows") == 1 and profile.typical_length > 2


def _segments(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield lists of structs with a text and a flag that says whether it is trained (axolotl's `input_output`)."""
    for profile in columns_of(paths):
        name, item = likeness(profile.name, ("segments",)), profile.items
        text, label = (item.field(field) if item else None for field in ("text", "label"))
        if name.score >= 0.87 and text and text.kind == "text" and label and fits_flag(label):
            match = Match(profile.source, name.score, f"{name.reason}, lists of text and label", profile)
            yield candidate(paths, "segments", "segments", {"segments": match})


def _conversations(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    for profile in columns:
        fit = max(fits_messages(profile), float(is_message_text(profile)))
        if not fit or asks(profile) or is_rejected(profile):
            continue
        speaker_field, text_field = message_fields(profile)
        name = role_likeness(profile.name, "messages")
        part = max(role_likeness(profile.name, "chosen").score, likeness(profile.name, ("prompt", "completion")).score)
        # Values say more than names: any name will do, but that of a part of a pair halves the score.
        score = fit * (0.9 + 0.1 * name.score) * (1 - 0.5 * part)
        fields = f"lists of messages with {speaker_field} and {text_field}" if text_field else "messages as JSON text"
        fields = f"lists of {{{', '.join(pair)}}}" if (pair := pair_fields(profile)) else fields
        match = Match(profile.source, score, f"{name.reason or repr(profile.name)}, {fields}", profile)
        extra = optional(columns, [match], **SETTINGS)
        format_name = {"from": "ShareGPT", "role": "OpenAI messages"}.get(speaker_field or "", "conversation")
        doubts = {"messages": doubt.unknown_roles(profile) or doubt.unanswered(profile)}
        yield candidate(paths, format_name, "messages", {"messages": match, **extra}, doubts=doubts)


def _recorded(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield columns in the dialect of an API or an agent: conversations, or the input and the output of responses."""
    recorded = {column.name: (column, dialect) for column in columns_of(paths) if (dialect := dialect_of(column))}
    asked, answered = (paths.get((name,)) for name in ("input", "output"))
    if asked is not None and answered is not None and "output" in recorded:
        pair = {"prompt": Match("input", 1.0, "named 'input'", asked)}
        pair["completion"] = Match("output", 1.0, "named 'output', items of responses", answered)
        profile = paths.get(("instructions",))
        system = {"system": Match("instructions", 1.0, "named 'instructions'", profile)} if profile else {}
        roles = pair | system | optional(columns_of(paths), [*pair.values()], **SETTINGS)
        yield candidate(paths, DIALECTS[recorded["output"][1]], "dialogue", roles)
        return
    for column, dialect in recorded.values():
        match = Match(column.source, 1.0, f"lists of {DIALECTS[dialect]}", column)
        if dialect != "anthropic" and not asks(column):
            extra = optional(columns_of(paths), [match], **SETTINGS)
            yield candidate(paths, DIALECTS[dialect], "messages", {"messages": match, **extra})


def _dialogues(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield prompts and completions of which one holds messages, or that have tools."""
    columns = [profile for profile in columns_of(paths) if not is_rejected(profile)]
    asked = ranked(columns, "prompt", fits_reply)[:2]
    spoken = [match for match in ranked(columns, "messages", fits_messages)[:1] if match not in asked]
    for prompt, completion in pairs([*asked, *spoken], ranked(columns, "completion", fits_reply)[:2]):
        talks = is_spoken(prompt.profile) or is_spoken(completion.profile)
        extra = beside_prompt(columns, [prompt, completion], prompt)
        if not (talks or {"tools", "template_kwargs"} & extra.keys()):
            continue
        answered = None if prompt in asked or asks(prompt.profile) else "it may end with an answer of its own"
        doubts = {
            "prompt": doubt.unknown_roles(prompt.profile) or answered,
            "completion": doubt.unknown_roles(completion.profile) or doubt.unanswered(completion.profile),
        }
        roles = {"prompt": prompt, **extra, "completion": completion}
        yield candidate(paths, "prompt/completion", "dialogue", roles, doubts=doubts)


def _prompts(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    spoken = [match for match in ranked(columns, "messages", fits_messages) if asks(match.profile)]
    for prompt in (*ranked(columns, "prompt", fits_reply, 0.85), *spoken)[:1]:
        roles = {"prompt": prompt, **beside_prompt(columns, [prompt], prompt)}
        doubts = {"prompt": doubt.unknown_roles(prompt.profile)}
        alone = candidate(paths, "prompts", "prompt_only", roles, doubts=doubts)
        # Prompts alone are rare: anything that could answer them makes another reading more likely.
        answered = alone.unused or any(_is_answer(profile) for profile in columns if profile is not prompt.profile)
        yield replace(alone, confidence=round(alone.confidence * UNASKED, 3)) if answered else alone


def _is_answer(profile: Profile) -> bool:
    """Return whether a column has the name of answers and values of any kind, such as numbers or bytes."""
    return role_likeness(profile.name, "completion").score >= 0.87 and is_filled(profile)


def _preferences(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    rejects = ranked(columns, "rejected", fits_reply)[:2]
    wanted = ranked(columns, "chosen", fits_reply)[:2] or (_chosen_beside(columns) if rejects else [])
    for chosen, rejected in pairs(wanted, rejects):
        if chosen.profile.kind != rejected.profile.kind and not is_spoken(chosen.profile):
            continue
        pair = {"chosen": chosen, "rejected": rejected}
        prompts = [match for match in _pair_prompts(paths) if match.source not in (chosen.source, rejected.source)]
        first = {"prompt": prompts[0]} if prompts else {}
        near = siblings(paths, prompts[0].profile) if first else []
        extra = beside_prompt([*near, *columns], [*pair.values(), *first.values()], first.get("prompt"))
        doubts = {role: doubt.unknown_roles(match.profile) for role, match in (pair | first).items()}
        doubts |= {role: doubts[role] or doubt.unanswered(match.profile) for role, match in pair.items()}
        doubts["prompt"] = doubts["prompt"] if first else doubt.missing_prompt(chosen.profile)
        yield candidate(paths, "preference", "preference", {**first, **pair, **extra}, doubts=doubts)


def _chosen_beside(columns: Sequence[Profile]) -> list[Match]:
    """Guess the chosen answers where only rejected ones are named: a column of conversations, else one of answers."""
    others = [column for column in columns if not is_rejected(column)]
    talks = [match for match in ranked(others, "messages", fits_messages, 0.7) if not asks(match.profile)]
    guesses = [*talks, *ranked(others, "completion", fits_reply, 0.7)][:1]
    return [replace(match, reason=f"{match.reason}, next to rejected answers") for match in guesses]


def _pair_prompts(paths: Profiles) -> list[Match]:
    """Return what can be the prompt of a preference pair: columns of prompts, then conversations."""
    columns = columns_of(paths)
    inside = [
        Match(profile.source, 0.95 * name.score, f"{name.reason}, {profile.shape()}", profile)
        for profile in paths.values()
        if len(profile.steps) == 2 and fits_messages(profile)
        if (name := role_likeness(profile.column.name, "prompt")).score >= 0.7
    ]
    return [*ranked(columns, "prompt", fits_reply, 0.7), *inside, *ranked(columns, "messages", fits_messages, 0.7)]


def _kto(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield answers with a label that says whether they are wanted."""
    columns = [profile for profile in columns_of(paths) if not is_rejected(profile)]
    for label in ranked(columns, FLAGS, fits_flag, 0.5)[:1]:
        rates = likeness(label.profile.name, KTO_LABELS).score >= 0.87
        doubts = {"label": None if rates else "it may rate something other than the answer"}
        doubts["label"] = doubts["label"] or unsure_flags(label.profile.facts.get("values") or ())
        for prompt in ranked(columns, "prompt", fits_reply)[:1]:
            for completion in ranked(columns, "completion", fits_reply)[:2]:
                roles = {"prompt": prompt, "completion": completion, "label": label}
                extra = beside_prompt(columns, list(roles.values()), prompt)
                yield candidate(paths, "KTO", "kto", roles | extra, doubts=doubts)
        talks = [*ranked(columns, "messages", fits_messages), *ranked(columns, "completion", fits_messages)]
        for talk in talks[:1]:
            doubts["completion"] = doubt.unknown_roles(talk.profile) or doubt.missing_prompt(talk.profile)
            doubts["completion"] = doubts["completion"] or doubt.unanswered(talk.profile)
            roles = {"completion": talk, "label": label} | optional(columns, [talk, label], **SETTINGS)
            notes = ["prompt: each conversation up to its last answer"]
            yield candidate(paths, "KTO", "kto", roles, 1.0, notes, doubts)


def _completions(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield prompts and completions of text: alpaca, questions and answers, reading comprehension."""
    columns = columns_of(paths)
    listed = [match for match in ranked(columns, "choices", _fits_choices) if match.profile.kind == "list"]
    lettered = {"a", "b"} <= {profile.name.lower() for profile in columns}
    choices = lettered or any(ranked(columns, "choices", lambda profile: 1.0))
    around: dict[str, Fit] = {"context": fits_context, "system": fits_context, "history": fits_history}
    for completion in _answers(paths):
        taken: list[Match] = []
        for prompt in ranked(columns, "prompt", fits_text)[:3]:
            if prompt.source == completion.source or any(prompt.source == match.source for match in taken):
                continue
            others = [*siblings(paths, completion.profile), *columns]
            extra = optional(others, [prompt, completion], **around)
            taken += extra.values()
            if listed and "context" not in extra and completion.profile.is_column:
                choice = listed[0]
                extra["context"] = replace(choice, source=f"{{{column_name(choice)}:letters}}")
            factor, notes = 1.0, []
            if choices and completion.profile.is_column:
                # A letter or a small number beside choices is an index into them, not the answer's text.
                factor, notes = 0.9 - 0.4 * fits_key(completion.profile), ["there are choices beside it"]
            name = _completion_name(prompt.profile, completion.profile, extra)
            roles = {"prompt": prompt, **extra, "completion": completion}
            doubts = {"completion": doubt.first_of_several(completion.profile) or doubt.other_words(completion.profile)}
            yield candidate(paths, name, "completion", roles, factor, notes, doubts)


def _answers(paths: Profiles) -> Iterator[Match]:
    """Yield the best matches for a completion: columns, fields of structs, and the first items of lists."""
    columns = columns_of(paths)
    rejected = [profile.source for profile in columns if is_rejected(profile)]
    chosen = [match.source for match in ranked(columns, "chosen", fits_reply, 0.7)]
    paired = {*rejected, *(chosen if rejected else ())}
    matches = [match for match in ranked(columns, "completion", fits_answer) if match.source not in paired]
    for profile in paths.values():
        if profile.is_column or profile.kind != "text" or is_spoken(profile.column) or profile.column.name in paired:
            continue
        # A field called `text` says nothing, so its column's name counts too, as in `answers.text`.
        names = {profile.column.name, profile.name} if profile.name in ("text", "value") else {profile.name}
        best = max((role_likeness(name, "completion") for name in sorted(names)), key=lambda name: name.score)
        if (score := 0.97 * best.score * fits_answer(profile)) >= MIN_SCORE:
            first = ", the first of each list" if None in profile.steps else ""
            matches.append(Match(profile.source, score, f"{best.reason}, {profile.shape()}{first}", profile))
    yield from islice(sorted(matches, key=lambda match: -match.score), 3)


def _completion_name(prompt: Profile, completion: Profile, extra: Mapping[str, Match]) -> str:
    if "context" in extra and likeness(completion.column.name, ("answer",)).score and not completion.is_column:
        return "reading comprehension"
    if likeness(prompt.name, ("instruction",)).score:
        return "alpaca"
    is_question = likeness(prompt.name, ("question", "query", "problem")).score
    return "question/answer" if is_question else "prompt/completion"


def _multiple_choice(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield questions with choices, and the index, letter or label of the right one."""
    columns = columns_of(paths)
    for choices in ranked(columns, "choices", _fits_choices)[:1]:
        for answer in ranked(columns, ("answer", "answer_key", "label", "target", "gold"), _fits_choice)[:2]:
            for prompt in ranked(columns, (*ALIASES["prompt"], "ctx", "context", "sentence"), fits_text)[:2]:
                items = choices.profile.field("text") or choices.profile
                by_label = f"{column_name(choices)}.label=" if items is not choices.profile else ""
                texts = f"{column_name(choices)}.text" if by_label else column_name(choices)
                question = f"{{{column_name(prompt)}}}\n\n{{{texts}:letters}}"
                choice = f"{texts}[{by_label}{{{column_name(answer)}}}]"
                score = (prompt.score * choices.score) ** 0.5
                shown = (choices.profile,)
                roles = {
                    "prompt": Match(question, score, f"{prompt.reason}, with the choices", prompt.profile, shown),
                    "completion": Match(choice, answer.score, f"{answer.reason}, picks a choice", answer.profile),
                }
                doubts = {"completion": None if by_label else doubt.wrong_indices(answer.profile, items)}
                yield candidate(paths, "multiple choice", "completion", roles, doubts=doubts)


def _fits_choices(profile: Profile) -> float:
    """Return how well values fit choices: a list of texts, or a struct of one with the labels."""
    texts = profile.field("text") if profile.kind == "struct" and profile.field("label") else profile
    return float(bool(texts and texts.kind == "list" and (texts.items is None or texts.items.kind == "text")))


def _fits_choice(profile: Profile) -> float:
    """Return how well values fit the index or the letter of a choice."""
    if profile.kind == "number":
        return 1.0
    values = usual_values(profile)
    return float(bool(values) and all(_LETTER.fullmatch(value) for value in values))


def _classification(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    labels = ranked(columns, "label", fits_label, 0.25)[:2]
    for text, label in pairs(ranked(columns, CLASSIFIED, fits_text)[:2], labels):
        names = f"{label.profile.facts.get('distinct', 'several')} labels"
        yield candidate(paths, "classification", "completion", {"prompt": text, "completion": label}, 1.0, [names])


def _summaries(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = columns_of(paths)
    documents, summaries = (ranked(columns, names, fits_text)[:2] for names in (SUMMARIZED, SUMMARIES))
    for document, summary in pairs(documents, summaries):
        # A summary is shorter than what it summarizes; this tells it from an article with a comment.
        long, short = document.profile.typical_length, summary.profile.typical_length
        factor = 1 - 0.4 * ramp(short / long, 0.5, 1.5) if long and short else 1.0
        dialogue = document.profile.trait("turns") >= 0.5 or likeness(document.profile.name, SUMMARIZED[:2]).score
        name = "dialogue summary" if dialogue else "summary"
        yield candidate(paths, name, "completion", {"prompt": document, "completion": summary}, factor)


def _plain_text(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    doubts = {"text": doubt.single_messages(columns) or doubt.unused_label(columns)}
    for text in (match for match in ranked(columns, "text", fits_text)[:2] if not _is_no_text(match.profile)):
        others = [profile for profile in columns if profile is not text.profile and not is_metadata(profile.name)]
        notes = [f"{len(others)} other columns would go unused"] if others else []
        factor = 0.85 ** (len(others) + bool(dialect_of(text.profile)))
        yield candidate(paths, "plain text", "text", {"text": text}, factor, notes, doubts)
    content = [profile for profile in columns if not is_metadata(profile.name)]
    if len(content) == 1 and content[0].kind == "text" and not _is_no_text(content[0]):
        only = content[0]
        rivals = max((profile.trait("sentences") for profile in columns if profile is not only), default=0.0)
        prompts = likeness(only.name, PROMPTS).score
        score = (0.6 + 0.3 * only.trait("sentences")) * fits_text(only) * (1 - 0.5 * rivals) * (1 - 0.5 * prompts)
        score *= 0.85 if dialect_of(only) else 1.0
        match = Match(only.source, score, f"the only column of text, {only.shape()}", only)
        yield candidate(paths, "plain text", "text", {"text": match}, doubts=doubts)


def _is_no_text(profile: Profile) -> bool:
    """Return whether texts are conversations, or rejected answers."""
    return is_message_text(profile) or is_rejected(profile)


def _unnamed(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield two columns without names: one with questions, the other with numbers that vary."""
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    if len(columns) != 2 or not all(_GENERIC.fullmatch(profile.name) for profile in columns):
        return
    # Without names, only values can tell which column asks.
    for prompt, answer in (columns, columns[::-1]):
        questions, numbers = prompt.trait("question"), answer.numbers * ramp(answer.variety, 0.02, 0.2)
        if prompt.kind == "text" and (score := 0.8 * questions * numbers) >= 0.2:
            roles = {
                "prompt": Match(prompt.source, score, f"no name, {prompt.shape()}", prompt),
                "completion": Match(answer.source, score, f"no name, {answer.shape()}, varied", answer),
            }
            yield candidate(paths, "question/answer", "completion", roles)


def _lists(paths: Profiles) -> Iterator[FormatCandidate]:
    """Yield rows that are lists of two values, such as `["text", "label"]`, and lists of turns."""
    columns = unused_columns(paths, ())
    for profile in columns:
        if _is_alternating(profile) and (len(columns) == 1 or role_likeness(profile.name, "messages").score >= 0.7):
            source = f"{{{quoted(profile.name)}:turns}}"
            match = Match(source, 1.0, "texts without the names of their speakers", profile)
            settings = optional(columns_of(paths), [match], **SETTINGS)
            doubts = {"messages": "the first text would be read as the user's, the second as the assistant's, in turn"}
            yield candidate(paths, "turns without speakers", "messages", {"messages": match, **settings}, doubts=doubts)
    for profile in columns if len(columns) == 1 else ():
        pair = (profile.facts.get("lengths") or {}).get("longest") == 2 == profile.typical_length
        is_flat = profile.kind == "list" and (profile.items is None or profile.items.kind != "struct")
        if pair and is_flat:
            name = quoted(profile.name)
            first, second = (Match(f"{name}[{at}]", 1.0, f"item {at} of each list", profile) for at in (0, 1))
            roles = {"prompt": first, "completion": second}
            doubts = {"prompt": "the items of the lists have no names"}
            yield candidate(paths, "lists of two", "completion", roles, doubts=doubts)


def _is_alternating(profile: Profile) -> bool:
    """Return whether values are lists of texts, or of [question, answer]."""
    items = profile.items
    texts = items is not None and items.kind == "text" and profile.typical_length >= 2
    return bool(texts or (items is not None and items.kind == "list" and fits_history(profile)))


def _table(paths: Profiles) -> Iterator[FormatCandidate]:
    columns = [profile for profile in columns_of(paths) if profile.kind != "null"]
    if columns:
        evidence = f"{len(columns)} columns; map those to train on"
        yield FormatCandidate("table", "", {}, 0.5 if len(columns) > 2 else 0.3, (evidence,))


DETECTORS: tuple[Callable[[Profiles], Iterator[FormatCandidate]], ...] = (
    *(_unread, _token_ids, _segments, _recorded, _conversations, _dialogues, _prompts, _preferences, _kto),
    *(_completions, _multiple_choice, _classification, _summaries, _plain_text, _unnamed, _lists, _table),
)
"""The detectors of all formats; of equal candidates, that of the earlier one counts."""
