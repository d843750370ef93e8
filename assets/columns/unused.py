"""What a mapping leaves unused: columns with content, metadata, and columns that could weigh or rate the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenloom.assets.columns.fitting import column_names, listed, steps_of
from tokenloom.assets.columns.mapping import ColumnMapping, Columns
from tokenloom.assets.columns.source_expressions import SourceExpression, paths_of
from tokenloom.assets.schema.conventions import rating_questions, segment_questions, weight_columns, weight_question
from tokenloom.assets.schema.doubts import unused_columns
from tokenloom.assets.schema.profiles import profiles
from tokenloom.assets.stage.forms import FORMS, form_named
from tokenloom.resources.tables.nested_paths import Path, parse_path


def unused_by(mapping: ColumnMapping, columns: Columns, kept: Sequence[str] = ()) -> list[str]:
    """Return the columns with content that a mapping leaves unused, except metadata.

    Args:
        columns: as the schema stage describes them.
        kept: `dataset.keep_columns`, which batches hold.
    """
    paths = profiles(columns)
    names = column_names(paths)
    used = {steps_of(path) for source in mapping.everything_read() for path in paths_of(source)}
    used |= {steps_of(parse_path(text, names)) for text in kept}
    return [profile.source for profile in unused_columns(paths, used)]


def weight_questions(
    mapping: ColumnMapping, columns: Columns, kept: Sequence[str] = (), filters: Sequence[str] = ()
) -> list[str]:
    """Return sentences about unused columns and fields that could be weights or ratings; see `unused_by`."""
    paths, segments, form = profiles(columns), mapping.sources().get("segments"), form_named(mapping.form)
    asked = []
    if isinstance(segments, Path) and mapping.form in FORMS:
        asked = segment_questions(paths.get(steps_of(segments)))
    if mapping.weight is not None or not form.trained:
        return asked
    used = {(path.column,) for source in mapping.sources().values() for path in paths_of(source)}
    used |= {(parse_path(text, column_names(paths)).column,) for text in kept}
    if form.answered:
        asked += rating_questions(paths, used, filters)
    return [*asked, *map(weight_question, weight_columns(paths, used))]


def metadata_beside(sources: Iterable[SourceExpression], columns: Columns, unused: Sequence[str]) -> list[str]:
    """Return the columns that no source reads and that `unused` does not name, such as ids, URLs and dates."""
    read = {path.column for source in sources for path in paths_of(source)}
    named = (profile for profile in profiles(columns).values() if profile.is_column and profile.name not in read)
    return [profile.source for profile in named if profile.source not in unused]


def unused_notice(names: Sequence[str]) -> str:
    """Return a sentence that names unused columns and what to do about them."""
    return f"unused columns: {listed(names)}; map them, or list only the columns to keep in dataset.columns"
