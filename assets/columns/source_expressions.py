"""Source expressions, the values of `dataset.column_mapping`: how they are written, and what they give for each row.

An expression is a column or path; a template, which is text with `{path}` in it; a choice, such as `choices[{answer}]`
or `choices.text[choices.label={key}]`; or a constant. Its values are read as texts, labels or numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.assets.schema.conventions import LARGEST
from tokenloom.assets.schema.profiles import FALSE_WORDS, TRUE_WORDS
from tokenloom.assets.stage.rejects import RowProblem
from tokenloom.config import Constant
from tokenloom.errors import DataValidationError
from tokenloom.resources.tables.json_text import is_json, json_texts, python_values
from tokenloom.resources.tables.json_values import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    LIST,
    OBJECT,
    TEXT,
    as_lists,
    by_kind,
    kinds_of,
    typed,
)
from tokenloom.resources.tables.nested_paths import (
    QUOTED,
    Path,
    evaluate,
    item_at,
    list_values,
    parse_path,
    plain,
    without_nan,
)
from tokenloom.resources.tables.ragged import Flags, Ints, any_of, flags_of, list_array, offsets_of, row_of
from tokenloom.resources.tables.stored_texts import decoded, is_binary, with_texts

_PATH = rf"(?:{QUOTED}|[^{{}}`])+"
_PART = re.compile(rf"\{{\{{|\}}\}}|\{{({_PATH})\}}|[{{}}]")
_LABELS = rf"(?:{QUOTED}|[^{{}}`\[\]=]|\[-?\d+\])+"
_CHOICE = re.compile(rf"({_PATH}?)\[(?:({_LABELS})=)?\{{({_PATH})\}}\]")
_STYLED = re.compile(rf"({_PATH}):([^`:]*)")
_WHOLLY_QUOTED = re.compile(rf"(?:(?:^|\.)(?:{QUOTED}|[^`{{}}.\[]+)|\[-?\d+\])+")
STYLES = ("lines", "letters", "next_line", "turns", "functions")


@dataclass(frozen=True)
class Placeholder:
    """A path inside a template.

    Args:
        style: how a list of texts is laid out: `lines`, one per line, or `letters`, as "A. …", "B. …". `next_line`: as
            `lines`, after a line break, or nothing if there is no text.
    """

    path: Path
    style: str = "lines"

    def __str__(self) -> str:
        return f"{{{self.path}{'' if self.style == 'lines' else f':{self.style}'}}}"


@dataclass(frozen=True)
class Turns:
    """A list of texts, or of [question, answer], as messages: the first is the user's, and speakers alternate.

    Args:
        style: `turns`; or `functions`: tools, of which those without a type are written as `{"type": "function",
            "function": …}`.
    """

    path: Path
    style: str = "turns"

    def __str__(self) -> str:
        return f"{{{self.path}:{self.style}}}"


@dataclass(frozen=True)
class Template:
    """Literal text and placeholders."""

    parts: tuple[str | Placeholder, ...]

    def __str__(self) -> str:
        shown = (p if isinstance(p, Placeholder) else p.replace("{", "{{").replace("}", "}}") for p in self.parts)
        return "".join(map(str, shown))


@dataclass(frozen=True)
class Choice:
    """One item of each row's list.

    Args:
        items: the list.
        key: the item's index or letter, or its label.
        labels: a list of labels in which to look up `key`; default: `key` is an index or letter.
    """

    items: Path
    key: Path
    labels: Path | None = None

    def __str__(self) -> str:
        return f"{self.items}[{f'{self.labels}=' if self.labels else ''}{{{self.key}}}]"


@dataclass(frozen=True)
class WithContext:
    """A prompt followed by a blank line and a context, which can be empty."""

    prompt: SourceExpression
    context: SourceExpression

    def __str__(self) -> str:
        return str(self.prompt)


SourceExpression = Path | Template | Turns | Choice | Constant | WithContext


def parse_source(text: str | Constant, columns: Collection[str] = ()) -> SourceExpression:
    """Parse an expression for a dataset with these columns. Text that is the name of a column always means that column.

    `str(source)` parses back to the same source without knowing the columns.

    Raises:
        ValueError: a brace is not matched, the style after a colon is unknown, or text follows a choice.
    """
    if isinstance(text, Constant):
        return text
    if text in columns or not re.search(r"[{}]", text) or _WHOLLY_QUOTED.fullmatch(text):
        return parse_path(text, columns)
    if match := _CHOICE.fullmatch(text):
        items, labels, key = match.groups()
        label_path = parse_path(labels, columns) if labels else None
        return Choice(parse_path(items, columns), parse_path(key, columns), label_path)
    if (start := _CHOICE.match(text)) and parse_path(start.group(1), columns).column in columns:
        raise ValueError(
            f"{text!r}: nothing can follow a choice; put a field of the chosen item before the brackets, "
            f"e.g. {start.group(1)}.text[{{{start.group(3)}}}]"
        )
    parts: list[str | Placeholder] = []
    for part in _template_parts(text, columns):
        # An escaped brace comes as a text of its own, beside the texts around it.
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part:
            parts.append(part)
    styles = ("turns", "functions")
    turns = [Turns(part.path, part.style) for part in parts if isinstance(part, Placeholder) and part.style in styles]
    if turns and len(parts) > 1:
        what = "a conversation" if turns[0].style == "turns" else "tools"
        raise ValueError(f"{text!r}: {turns[0]} is {what}, to which no text can be added")
    return turns[0] if turns else Template(tuple(parts))


def with_context(sources: Mapping[str, SourceExpression]) -> dict[str, SourceExpression]:
    """Return sources with the context, if there is one, as part of the prompt."""
    joined = dict(sources)
    context = joined.pop("context", None)
    return joined if context is None else {**joined, "prompt": WithContext(joined["prompt"], context)}


def paths_of(source: SourceExpression) -> tuple[Path, ...]:
    """Return all paths that a source reads."""
    if isinstance(source, WithContext):
        return (*paths_of(source.prompt), *paths_of(source.context))
    if isinstance(source, Template):
        return tuple(part.path for part in source.parts if isinstance(part, Placeholder))
    if isinstance(source, Choice):
        return (source.items, source.key, *((source.labels,) if source.labels else ()))
    if isinstance(source, Turns):
        return (source.path,)
    return (source,) if isinstance(source, Path) else ()


def _template_parts(text: str, columns: Collection[str]) -> Iterator[str | Placeholder]:
    at = 0
    for match in _PART.finditer(text):
        yield text[at : match.start()]
        at = match.end()
        inner = match.group(1)
        if match.group() in ("{{", "}}"):
            yield match.group()[0]
        elif inner is None or not inner.strip():
            raise ValueError(f"unmatched {match.group()[0]!r}; write {{{{ or }}}} for a literal brace")
        else:
            yield _placeholder(inner if inner in columns else inner.strip(), columns)
    yield text[at:]


def _placeholder(text: str, columns: Collection[str]) -> Placeholder:
    if text in columns or not (styled := _STYLED.fullmatch(text)):
        return Placeholder(parse_path(text, columns))
    name, style = styled.groups()
    if style not in STYLES:
        raise ValueError(
            f"{{{text}}}: unknown style {style!r}; use letters, next_line, turns or functions, or put a name with a "
            "colon in backticks"
        )
    return Placeholder(parse_path(name, columns), style)


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_FILLED = 1 << 29
"""Most bytes of the texts that a template of `dataset.column_mapping` gives for a chunk."""
_NO_INDEX = np.iinfo(np.int64).max // 2


@dataclass
class RowReader:
    """Reads the values of sources in the rows of a chunk, and collects the rows that cannot be used.

    Args:
        sources: the source of each role.
        problems: the rows that cannot be used; of a row with several problems, the first counts.
    """

    table: pa.Table
    sources: Mapping[str, SourceExpression]
    problems: list[RowProblem] = field(default_factory=list)

    def report(self, flags: Flags, code: str, role: str, message: str, shown: pa.Array) -> None:
        """Add a problem; see `RowProblem`."""
        self.problems.append(RowProblem(flags, code, role, message, shown))

    def checked(self, converted: tuple[pa.Array, Iterable[RowProblem]]) -> pa.Array:
        """Return the array that a conversion gave, and add its problems."""
        self.problems += converted[1]
        return converted[0]

    def values(self, role: str, source: SourceExpression | None = None, as_read: bool = False) -> pa.Array:
        """Return the value of each row, of any type; rows in which the source cannot be evaluated are a problem.

        Args:
            source: where the values are; default: the source of the role.
            as_read: whether NaN stays instead of becoming null.
        """
        source = self.sources[role] if source is None else source
        if isinstance(source, Constant):
            return pa.repeat(pa.scalar(source.constant), self.table.num_rows)
        if isinstance(source, Path | Turns):
            values = with_texts(evaluate(self.table, source.path if isinstance(source, Turns) else source))
            return values if as_read else without_nan(values)
        if isinstance(source, WithContext):
            prompt, context = self.texts(role, source.prompt), self.texts("context", source.context)
            joined = pc.binary_join_element_wise(prompt, context, "\n\n")
            return pc.if_else(pc.equal(context, ""), prompt, joined)
        is_choice = isinstance(source, Choice)
        return self.checked(_chosen(self.table, source, role) if is_choice else _filled(self.table, source, role))

    def texts(self, role: str, source: SourceExpression | None = None) -> pa.Array:
        """Return the values of a source as strings, with "" for null; other values than texts are a problem."""
        source = self.sources[role] if source is None else source
        values = self.values(role, source)
        texts, not_text = as_text(values)
        self.report(not_text, "not_text", role, f"{source} is neither text nor a number", values)
        return texts


def as_text(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Return values as strings, with "" for null. Numbers, booleans and times are as Python's `str` writes them.

    Binary values are read as UTF-8.

    Returns:
        The strings, and bool [rows], which values are not text, a number, a boolean, a time, or null.
    """
    array = plain(array)
    if is_json(array.type):
        texts = by_kind(json_texts(array), dict.fromkeys((TEXT, BOOLEAN, INTEGER, FLOAT), _scalar_texts))
        return texts.fill_null(""), np.isin(kinds_of(json_texts(array)), (LIST, OBJECT))
    if is_binary(array.type):
        texts, unfit = decoded(array)
        return texts.fill_null(""), unfit
    if not (pa.types.is_nested(array.type) or pa.types.is_null(array.type)):
        try:
            return _written(array).fill_null(""), np.zeros(len(array), bool)
        except pa.ArrowNotImplementedError:
            pass
    return empty_texts(len(array)), flags_of(array.is_valid())


def _scalar_texts(texts: pa.Array) -> pa.Array:
    values = typed(texts)
    if is_json(values.type):  # numbers that no Arrow type holds
        return pa.array(map(str, python_values(values)), pa.string())
    return _written(values)


def _written(array: pa.Array) -> pa.Array:
    """Return scalars as Python's `str` writes them; null for null.

    Raises:
        ArrowNotImplementedError: the type has no text form.
    """
    if pa.types.is_string(array.type) or pa.types.is_integer(array.type):
        return array.cast(pa.string())
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "True", "False")
    if pa.types.is_floating(array.type):
        bits = array.cast(pa.float64()).view(pa.int64()).dictionary_encode()  # tells -0.0 from 0.0
        names = pa.array(map(str, bits.dictionary.view(pa.float64()).to_pylist()), pa.string())
        return names.take(bits.indices)
    try:
        return pa.array([value if value is None else str(value) for value in array.to_pylist()], pa.string())
    except (ValueError, OverflowError, ImportError):  # times that Python cannot represent
        return array.cast(pa.string())


def empty_texts(count: int) -> pa.Array:
    """Return `count` empty strings."""
    return pa.repeat(pa.scalar("", pa.string()), count)


def _filled(table: pa.Table, template: Template, role: str) -> tuple[pa.Array, list[RowProblem]]:
    """Fill in a template for each row.

    Raises:
        DataValidationError: the texts of all rows take more than `MAX_FILLED` bytes.
    """
    parts: list[pa.Array] = []
    not_text = np.zeros(table.num_rows, bool)
    for part in template.parts:
        if isinstance(part, str):
            parts.append(pa.repeat(pa.scalar(part), table.num_rows))
            continue
        text, bad = _laid_out(without_nan(evaluate(table, part.path)), part.style)
        if part.style == "next_line":
            text = pc.if_else(pc.equal(text, ""), "", pc.binary_join_element_wise("", text, "\n"))
        parts.append(text)
        not_text |= bad
    if (size := sum(pc.sum(pc.binary_length(part)).as_py() or 0 for part in parts)) > MAX_FILLED:
        raise DataValidationError(
            f"columns: {role} takes {size >> 20:,} MiB for {table.num_rows:,} rows, more than the "
            f"{MAX_FILLED >> 20} MiB supported per chunk; use fewer placeholders in dataset.column_mapping.{role}"
        )
    joined = pc.binary_join_element_wise(*parts, "") if parts else empty_texts(table.num_rows)
    message = f"a value in {template} is neither text nor a list of texts"
    return joined, [RowProblem(not_text, "not_text", role, message, joined)]


def _laid_out(array: pa.Array, style: str) -> tuple[pa.Array, Flags]:
    """Return texts, with lists of texts joined one item per line, and which values are neither."""
    if not pa.types.is_list(array.type):
        text, not_text = as_text(array)
        unfit = not_text | (flags_of(array.is_valid()) if style == "letters" else False)
        if not is_json(array.type):
            return text, unfit
        # Each value of a JSON column is laid out as what it is: a list, or a scalar.
        lists = as_lists(array)
        is_list = lists.is_valid()
        lines, not_texts = _laid_out(lists, style)
        return pc.if_else(is_list, lines, text), np.where(flags_of(is_list), not_texts, unfit)
    lengths, items = list_values(array)
    text, not_text = as_text(items)
    if style == "letters":
        row = row_of(lengths)
        within = np.arange(len(row)) - offsets_of(lengths)[row]
        letters = pa.array([f"{_letter(index)}. " for index in range(int(lengths.max(initial=0)))], pa.string())
        text = pc.binary_join_element_wise(letters.take(pa.array(within)), text, "")
    return pc.binary_join(list_array(offsets_of(lengths), text), "\n"), any_of(not_text, lengths)


def _letter(index: int) -> str:
    """Return A to Z, then AA, AB, … as in spreadsheets."""
    return (_letter(index // 26 - 1) if index >= 26 else "") + LETTERS[index % 26]


def _chosen(table: pa.Table, choice: Choice, role: str) -> tuple[pa.Array, list[RowProblem]]:
    """Return the chosen item of each row, and the rows whose key matches no item."""
    items, key = _lists(evaluate(table, choice.items)), evaluate(table, choice.key)
    if not pa.types.is_list(items.type):
        items = pa.nulls(len(items), pa.list_(pa.string()))
    if choice.labels is None:
        index, expected = _index(key), "an index or letter of"
    else:
        index, expected = _index_of_label(_lists(evaluate(table, choice.labels)), key), "a label of"
    message = f"{choice.key} is not {expected} {choice.items}"
    return item_at(items, index), [RowProblem(index >= list_values(items)[0], "index_out_of_range", role, message, key)]


def _lists(array: pa.Array) -> pa.Array:
    """Return the lists of a JSON column as a list array, and any other array unchanged."""
    return as_lists(array) if is_json(array.type) else array


def _key_texts(array: pa.Array) -> tuple[pa.Array, Flags]:
    """Return keys as strings, whole floats without their `.0`, and which keys are booleans."""
    array = plain(array)
    if is_json(array.type):
        kinds = kinds_of(json_texts(array))
        is_float, is_boolean = kinds == FLOAT, kinds == BOOLEAN
    else:
        is_float = np.full(len(array), pa.types.is_floating(array.type))
        is_boolean = np.full(len(array), pa.types.is_boolean(array.type))
    text, _ = as_text(array)
    if is_float.any():
        text = pc.if_else(pa.array(is_float), pc.replace_substring_regex(text, r"\.0$", ""), text)
    return text, is_boolean


def _index(key: pa.Array) -> Ints:
    """Return the index for each key: a number from 0, as number or text, or a letter from A; else `_NO_INDEX`."""
    # A boolean cannot be a key: True would become the letter T, or the index 1.
    text, is_boolean = _key_texts(key)
    text = pc.utf8_upper(pc.utf8_trim_whitespace(text))
    digits = pc.if_else(pc.match_substring_regex(text, r"^[0-9]{1,9}$"), text, pa.scalar(None, pa.string()))
    letters = pc.index_in(text, pa.array(list(LETTERS)))
    index = pc.coalesce(digits.cast(pa.int64()), letters.cast(pa.int64())).fill_null(_NO_INDEX)
    return np.where(is_boolean, _NO_INDEX, np.asarray(index, np.int64))


def _index_of_label(labels: pa.Array, key: pa.Array) -> Ints:
    """Return the index of the first label of each row that equals its key, else `_NO_INDEX`."""
    index = np.full(len(key), _NO_INDEX)
    if pa.types.is_list(labels.type):
        lengths, flat = list_values(labels)
        rows = row_of(lengths)
        same = flags_of(pc.equal(_key_texts(flat)[0], _key_texts(key)[0].take(pa.array(rows))))
        same &= flags_of(plain(flat).is_valid())
        # Assigned from the last to the first, so that the first of several equal labels stays.
        hits = np.flatnonzero(same)[::-1]
        index[rows[hits]] = hits - offsets_of(lengths)[rows[hits]]
    return index


LABELS = "true, yes, 1, desirable, good, chosen, false, no, 0, -1, undesirable, bad, rejected and similar words"
"""Labels in words, for messages."""


def as_labels(values: pa.Array) -> pa.Array:
    """Return values as booleans; null if a value is not a label."""
    values = plain(values)
    if pa.types.is_boolean(values.type):
        return values
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):
        number = values.cast(pa.float64(), safe=False)
        is_flag = pc.is_in(number, pa.array([-1.0, 0.0, 1.0]))
        return pc.if_else(is_flag, pc.equal(number, 1.0), pa.scalar(None, pa.bool_()))
    text = pc.utf8_lower(pc.utf8_trim_whitespace(as_text(values)[0]))
    labels = pa.array([True] * len(TRUE_WORDS) + [False] * len(FALSE_WORDS))
    return labels.take(pc.index_in(text, pa.array([*TRUE_WORDS, *FALSE_WORDS])))


_WORDS = {"true": 1.0, "false": 0.0}


def row_weights(rows: RowReader, source: SourceExpression) -> pa.Array:
    """Return the weight of each row, float32; rows whose value is not a number from 0 on are a problem.

    Numbers can also be text, as in CSV files; true is 1, false is 0.
    """
    values = rows.values("weight", source)
    numbers = numbers_of(plain(values))
    wrong: Flags = ~((numbers >= 0) & (numbers <= LARGEST))
    message = f"{source} is not a number from 0 on, the weight of the row's loss"
    rows.report(wrong, "invalid_weight", "weight", message, values)
    return pa.array(np.where(wrong, 0.0, numbers).astype(np.float32))


def numbers_of(values: pa.Array) -> np.ndarray:
    """Return values as float64 [rows]; NaN for what is not a number."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    texts = as_text(values)[0].dictionary_encode()
    numbers = np.array([*map(number_of, texts.dictionary.to_pylist())], np.float64)
    return numbers[texts.indices.to_numpy()]


def number_of(text: str) -> float:
    """Parse a number; `true` is 1, `false` is 0, and any other text is NaN."""
    word = text.strip().lower()
    try:
        return _WORDS[word] if word in _WORDS else float(word)
    except ValueError:
        return math.nan
