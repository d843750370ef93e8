"""What the first rows of a local source hold, where the other tool decides by them."""

from __future__ import annotations

from tokenloom.cli.peers.sheet import Sheet
from tokenloom.config import PipelineConfig
from tokenloom.errors import TokenloomError

ROWS = 100
"""Number of rows that are read."""


def spoken_columns(sheet: Sheet) -> dict[str, bool] | None:
    """Return whether each column holds messages; None if the source is not local, or cannot be read."""
    from tokenloom.assets.raw.chunks import source_chunks
    from tokenloom.assets.schema.evidence.doubts import is_spoken
    from tokenloom.assets.schema.evidence.profiles import profiles
    from tokenloom.assets.schema.merge import merge
    from tokenloom.assets.schema.sketch import sketch

    name, kept = sheet.get("dataset.name"), sheet.get("dataset.columns")
    if not isinstance(name, str) or "://" in name:
        return None
    try:
        path = (sheet.folder / name).resolve()  # the folder need not exist yet
        if not (path.is_file() or path.is_dir()):
            return None
        settings = {"name": path.as_posix(), **({"columns": kept} if kept else {})}
        config = PipelineConfig.from_mapping({"name": "import", "dataset": settings})
        found = profiles(merge([sketch(next(source_chunks(config, limit=ROWS)).load().table)]))
    except (TokenloomError, StopIteration, OSError, ValueError):
        return None
    return {profile.name: is_spoken(profile) for profile in found.values() if profile.is_column}
