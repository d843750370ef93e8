"""The names of the stages, in the order in which a build runs them."""

from __future__ import annotations

from tokenloom.config import PipelineConfig
from tokenloom.resources.store.manifest import TOKENIZERS
from tokenloom.resources.store.versions import LOADED

RAW, SCHEMA, COLUMNS, PROMPTS, TOKENS = "raw", "schema", "columns", "prompts", "tokens"
MEDIA, DECONTAMINATE, FINGERPRINTS, DEDUP = "media", "decontaminate", "fingerprints", "dedup"
STAGES = (RAW, SCHEMA, COLUMNS, MEDIA, DECONTAMINATE, FINGERPRINTS, DEDUP, PROMPTS, TOKENIZERS, TOKENS, LOADED)


def stages_of(config: PipelineConfig, last: str = LOADED) -> tuple[str, ...]:
    """Return the names of a dataset's stages, up to `last`: all but those whose section the YAML can have and lacks."""
    return tuple(name for name in STAGES[: STAGES.index(last) + 1] if getattr(config, name, True) is not None)
