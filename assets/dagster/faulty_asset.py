"""The asset in place of a dataset whose YAML is faulty: it cannot run, says why, and has a check that fails."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path

import dagster as dg

from tokenloom.assets.building.declared_folder import plain_name
from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.errors import ConfigError


def faulty_asset(path: Path, error: ConfigError, taken: set[str], embedding: Embedding) -> dg.Definitions:
    """Return an asset named after a faulty YAML, and its check `yaml`.

    Args:
        taken: names of other datasets and faulty YAMLs, as Dagster has them. The name of this one is added.
    """
    stem, file = plain_name(path.stem), plain_name(path.name)
    name = next(each for each in chain((stem, file), (f"{file}_{number}" for number in count(2))) if each not in taken)
    taken.add(name)
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
