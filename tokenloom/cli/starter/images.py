"""Finds the columns of a source that hold images, by their profiles."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenloom.assets.columns.image_parts import IMAGE_TYPES
from tokenloom.assets.schema.evidence.profiles import Profile, Steps
from tokenloom.assets.stage.images import IMAGE_COLUMNS

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
