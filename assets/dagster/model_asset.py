"""The Dagster asset `<name>/model` of a dataset or mixture whose YAML has `training:`."""

# Without `from __future__ import annotations`: Dagster needs the annotation of `context` as a class, not as text.

import base64
from pathlib import Path
from typing import Any

import dagster as dg

from tokenloom.assets.building.stages import STAGES
from tokenloom.assets.dagster.embedding import Embedding
from tokenloom.assets.dagster.failures import failing_clearly
from tokenloom.assets.dagster.metadata.asset_spec import spec_metadata
from tokenloom.assets.dagster.metadata.loss_curve import loss_curve_png
from tokenloom.assets.dagster.metadata.tables import text_table
from tokenloom.assets.dagster.names import MODEL, op_name
from tokenloom.config import MixtureConfig, PipelineConfig
from tokenloom.config.training import decisive_settings
from tokenloom.errors import missing_package
from tokenloom.resources.digest import digest_json
from tokenloom.resources.store.manifest import MIXTURE


def model_asset(config: PipelineConfig | MixtureConfig, embedding: Embedding) -> dg.AssetsDefinition:
    """Return the asset. It trains where no model of the same data and settings exists, and finishes a run that ended
    early. Nothing starts it but a person or a job of the project: neither the schedule nor automation."""
    name, training = config.dataset_name, config.training
    assert training is not None
    above = MIXTURE if isinstance(config, MixtureConfig) else STAGES[-1]
    spec = dg.AssetSpec(
        embedding.key(name, MODEL),
        deps=[embedding.key(name, above)],
        description="A model trained as `training:` says, with its log and checkpoints.",
        code_version=digest_json(decisive_settings(training, config.dataloader))[:16],
        kinds={"pytorch"},
        metadata=spec_metadata(config, "training"),
        skippable=True,
        **embedding.spec(config),
    )

    @dg.multi_asset(
        name=op_name(name, MODEL, embedding.key_prefix),
        specs=[embedding.changed(spec)],
        pool=op_name(name, MODEL, embedding.key_prefix),
        required_resource_keys=embedding.resource_keys(),
    )
    def train(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with failing_clearly(context):
            try:
                from tokenloom.trainer.run import train_once
            except ModuleNotFoundError as error:
                raise dg.Failure(str(missing_package(error.name or "", "the asset")), allow_retries=False) from None
            store = embedding.store_of(context).open(config.folder).address
            run = train_once(config, store, context.log.info)
            return dg.MaterializeResult(data_version=dg.DataVersion(run.key), metadata=_metadata(run.folder, run.data))

    return train


def _metadata(folder: Path, data: str) -> dict[str, Any]:
    """Return what a page shows of a run, most telling first."""
    from tokenloom.trainer.json_lines import read_log

    log, samples = read_log(folder / "log.jsonl"), read_log(folder / "samples.jsonl")
    steps = [line for line in log if "loss" in line]
    evaluated = [line for line in log if "eval_loss" in line]
    picture = base64.b64encode(loss_curve_png(log)).decode()
    caption = "grey: loss of each step; green: loss on the validation split"
    metadata: dict[str, Any] = {"curve": dg.MetadataValue.md(f"![loss](data:image/png;base64,{picture})\n\n{caption}")}
    for line in evaluated[-1:]:
        metadata |= {name.replace("eval_", "validation_"): line[name] for name in line if name.startswith("eval_")}
    if samples:
        first, last = (
            {line["prompt"]: line for line in samples if line["step"] == step}
            for step in (samples[0]["step"], samples[-1]["step"])
        )
        rows = [
            {
                "prompt": prompt,
                "expected": line["expected"],
                f"before, step {samples[0]['step']}": first[prompt]["generated"] if prompt in first else "",
                f"after, step {line['step']}": line["generated"],
            }
            for prompt, line in last.items()
        ]
        metadata["answers"] = text_table(rows)
    spikes = read_log(folder / "spikes.jsonl")
    metadata |= {"training_loss": steps[-1]["loss"], "steps": steps[-1]["step"], "loss_spikes": len(spikes)}
    return {**metadata, "model": dg.MetadataValue.path(str((folder / "model").resolve())), "data": data}
