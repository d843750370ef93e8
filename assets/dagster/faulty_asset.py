"""The asset in place of a dataset whose YAML is faulty: it cannot run, says why, and has a check that fails."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import dagster as dg

from tokenloom.assets.building.declared_folder import plain_name
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.errors import ConfigError


def faulty_asset(path: Path, error: ConfigError, taken: Container[str], embedding: Embedding) -> dg.Definitions:
    """Return an asset named after a faulty YAML, and its check `yaml`.

    Args:
        taken: names of other datasets, as Dagster has them.
    """
    name = plain_name(path.stem if plain_name(path.stem) not in taken else path.name)
    key = embedding.key(name, STAGES[-1])
    message = f"{path.name} is faulty, so this asset cannot run:\n\n{error}"

    @dg.asset_check(
        asset=key,
        name="yaml",
        description="The YAML is valid.",
        compute_kind="yaml",
    )
    def yaml() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description=str(error))

    return dg.Definitions(
        assets=[dg.AssetSpec(key, description=message, group_name=embedding.group or plain_name(name), kinds={"yaml"})],
        asset_checks=[yaml],
    )
