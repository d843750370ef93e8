"""The names of a dataset's assets, groups, jobs, ops and pools in Dagster."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from tokenloom.assets.building.target import plain_name

SOURCE = "source"
"""The last part of the key of a dataset's source."""

MODEL = "model"
"""The last part of the key of the model that is trained on a dataset or mixture."""

DATASET_TAG = "tokenloom/dataset"
"""The tag of runs that names their dataset."""


def asset_key(dataset: str, stage: str, prefix: Sequence[str] = ()) -> dg.AssetKey:
    """Return the asset key `<dataset>/<stage>`, after the parts of a prefix."""
    return dg.AssetKey([*prefix, dataset, stage])


def op_name(dataset: str, stage: str, prefix: Sequence[str] = ()) -> str:
    """Return the name of the step that materializes, observes or checks something of a dataset."""
    return "__".join(map(plain_name, (*prefix, dataset, stage)))
