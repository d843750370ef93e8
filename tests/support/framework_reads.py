"""`python -m support.framework_reads FRAMEWORK SETTINGS`: reads each loader as a framework does, in several situations.

SETTINGS is a JSON file with the loaders, the data and a folder; each rank writes `<rank>.json` there: for each loader
and situation the rows of each batch, or the sentence with which it was refused. Frameworks are started as their users
start them: by torchrun, by `torch.multiprocessing.spawn`, or as one process that starts the others (Ray).
"""

# pyright: reportPrivateImportUsage=false, reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Row = tuple[int, ...]
Settings = dict[str, Any]
STOP = 3
"""Steps before the checkpoint."""

PATIENCE = timedelta(minutes=1)
"""How long a rank waits for another one, which may be slower on a busy machine."""


def rows_of(batch: Any) -> list[Row]:
    """Return the rows of a batch, without padding, which is 0, and without padding rows."""
    ids = batch["input_ids"].tolist()
    return [row for row in (tuple(token for token in tokens if token) for tokens in ids) if row]


LOADERS = (
    "TokenLoader",
    "TokenLoader, 2 workers",
    "ArrayDataLoader",
    "MapLoader",
    "DataLoaderBuilder",
    "DataLoaderFactory",
    "UniversalDataModule",
    "create_dataloaders",
    "StreamingPreprocessedDataset",
    "PreprocessedDataset",
    "StreamingLoader",
)


class Numbers:
    """A tokenizer whose tokens are the numbers of a text."""

    pad_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


class OneToken:
    """An engine that makes one token of each row of numbers."""

    def encode(self, table: Any) -> Any:
        import pyarrow as pa

        count = table.num_rows
        ids = pa.array([[number] for number in table["n"].to_pylist()], pa.list_(pa.uint32()))
        flags = pa.array([[1]] * count, pa.list_(pa.uint8()))
        origins = pa.array([[row] for row in range(count)], pa.list_(pa.int64()))
        lengths = pa.array([[1]] * count, pa.list_(pa.int32()))
        return pa.table({"input_ids": ids, "trained": flags, "rows": origins, "document_lengths": lengths})


def make(name: str, given: Settings, batch_size: int) -> Any:
    """Create a loader, without ranks: they may not be known yet."""
    from torch.utils.data import DataLoader

    from tokenloom import loaders

    def opened() -> Any:
        return loaders.open_dataset("data", store=given["store"])

    numbered = [{"n": number + 1} for number in range(given["rows"])]
    samples = [sample(row["n"]) for row in numbered]
    plain = {"shuffle": "full", "seed": 3, "batch_size": batch_size}
    if name.startswith("TokenLoader"):
        workers = 2 if "workers" in name else 0
        return loaders.TokenLoader(opened(), padding="longest", num_workers=workers, **plain)
    if name == "ArrayDataLoader":
        return loaders.ArrayDataLoader(dataset_name=opened(), padding="longest", **plain)
    if name == "MapLoader":
        return loaders.MapLoader(samples, collate_fn=padded, **plain)
    builder = loaders.DataLoaderBuilder().with_batch_size(batch_size).with_seed(3)
    if name == "DataLoaderBuilder":
        return builder.with_dataset(samples).build()
    if name == "DataLoaderFactory":
        return loaders.DataLoaderFactory().create_dataloader(
            samples, loaders.DataLoaderConfig(batch_size=batch_size, seed=3, num_workers=0)
        )
    if name == "UniversalDataModule":
        return loaders.UniversalDataModule(samples, val_split=0, batch_size=batch_size, seed=3).train_dataloader()
    if name == "create_dataloaders":
        text, tokenizer = given["text"], Numbers()
        return loaders.create_dataloaders(text, text, tokenizer, batch_size, seq_length=4, num_workers=0)[1]
    engine: Any = OneToken()
    if name == "StreamingLoader":
        import pyarrow as pa

        tables = [pa.Table.from_pylist(numbered[begin : begin + 9]) for begin in range(0, len(numbered), 9)]
        policy = loaders.PaddingPolicy(0, "longest", "right", 8, False)
        return loaders.StreamingLoader(loaders.StreamingDataset(lambda: iter(tables), engine, policy, batch_size))
    if name == "StreamingPreprocessedDataset":
        return DataLoader(loaders.StreamingPreprocessedDataset(numbered, engine), batch_size, collate_fn=padded)
    assert name == "PreprocessedDataset"
    return builder.with_dataset(loaders.PreprocessedDataset(numbered, engine)).build()


def sample(number: int) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([number]) for name in ("input_ids", "labels")} | {"attention_mask": torch.ones(1).long()}


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    from tokenloom.loaders import create_collate_fn

    ids = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in rows]
    return create_collate_fn(0)(ids)


Reads = Callable[[Any, int, Path | None, Path | None], Iterator[list[Row]]]
"""Reads a loader for some steps, after loading a checkpoint, and saves one at the end. Yields the rows of each step."""


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def stateful(loader: Any) -> Any:
    if not hasattr(loader, "state_dict"):
        raise NotImplementedError("it has no state to resume from")
    return loader


def plain(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    if load:
        stateful(loader).load_state_dict(json.loads((load / "loader.json").read_text()))
    yield from map(rows_of, islice(endless(loader), steps))
    if save and stateful(loader).rank == 0:
        save.mkdir(exist_ok=True)
        (save / "loader.json").write_text(json.dumps(loader.state_dict()))


def ddp(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    model = nn.parallel.DistributedDataParallel(Recording())
    for rows in plain(loader, steps, load, save):
        model(input_ids=torch.tensor([[1]]))["loss"].backward()
        yield rows


def torchtitan(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    """Torchtitan's loop, as its documentation has it: `dcp` loads the loader, which is Stateful, and then
    `data_iterator = iter(dataloader)` is asked for one batch after another."""
    import torch.distributed.checkpoint as dcp

    if load:
        dcp.load({"dataloader": stateful(loader)}, checkpoint_id=str(load))
    iterator = iter(loader)
    for _ in range(steps):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            batch = next(iterator)
        yield rows_of(batch)
    if save:
        dcp.save({"dataloader": stateful(loader)}, checkpoint_id=str(save))


def accelerate(**options: Any) -> Reads:
    def reads(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        prepared = accelerator.prepare(loader)
        if load or save:
            accelerator.register_for_checkpointing(stateful(prepared))
        if load:
            accelerator.load_state(str(load))
        yield from map(rows_of, islice(endless(prepared), steps))
        if save:
            accelerator.save_state(str(save))

    return reads


def skip_first_batches(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    """Accelerate's way to resume loaders without a state."""
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(loader)
    skipped = accelerator.skip_first_batches(loader, STOP) if load else loader
    yield from map(rows_of, islice(endless(skipped), steps))


class Recording(nn.Module):
    """A model that keeps the rows that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.zeros(1)), list[list[Row]]()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.seen.append(rows_of({"input_ids": input_ids}))
        return {"loss": self.weight.sum()}


def trainer(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    """Trainer: a `TokenLoader` through `TokenLoaderMixin`, other loaders from `get_train_dataloader`."""
    from transformers import Trainer, TrainingArguments

    model, folder = Recording(), save or load or Path("unused")
    arguments = TrainingArguments(str(folder), **_arguments(loader, steps, load, save))
    _of_trainer(Trainer, loader, load, model=model, args=arguments)
    yield from model.seen


def trl(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    """TRL's SFTTrainer, as Trainer."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    words = Tokenizer(models.WordLevel({"<end>": 0, "<unknown>": 1}, "<unknown>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
    sizes: Settings = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model, seen = LlamaForCausalLM(LlamaConfig(vocab_size=1024, **sizes)), list[list[Row]]()

    def note(_: nn.Module, __: Any, inputs: Settings) -> None:
        seen.append(rows_of(inputs))

    model.register_forward_pre_hook(note, with_kwargs=True)
    kept = {"dataset_kwargs": {"skip_prepare_dataset": True}, "bf16": False}
    arguments = SFTConfig(str(save or load or Path("unused")), **kept, **_arguments(loader, steps, load, save))
    shown = Dataset.from_list([{"input_ids": [1], "labels": [1]}])
    _of_trainer(SFTTrainer, loader, load, model=model, args=arguments, train_dataset=shown, processing_class=tokenizer)
    yield from seen


def _arguments(loader: Any, steps: int, load: Path | None, save: Path | None) -> Settings:
    if load or save:
        stateful(loader)
    counted = {
        "max_steps": steps + (STOP if load else 0),
        "save_steps": STOP,
        "save_strategy": "steps" if save else "no",
    }
    return {**counted, "use_cpu": True, "report_to": "none", "disable_tqdm": True}


def _of_trainer(base: Any, loader: Any, load: Path | None, **options: Any) -> None:
    from tokenloom.loaders import TokenLoader
    from tokenloom.loaders.trainer import TokenLoaderMixin

    class OfMixin(TokenLoaderMixin, base):
        def model_inputs(self, batch: Settings) -> Settings:
            return {name: torch.as_tensor(batch[name]) for name in ("input_ids", "attention_mask", "labels")}

    class Given(base):
        def get_train_dataloader(self) -> Any:
            return loader

    made = OfMixin(train_loader=loader, **options) if isinstance(loader, TokenLoader) else Given(**options)
    made.train(resume_from_checkpoint=str(load / f"checkpoint-{STOP}") if load else None)


def lightning(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Recording()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.model(torch.as_tensor(batch["input_ids"]))["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    if load or save:
        stateful(loader)
    module, world = Module(), int(os.environ["WORLD_SIZE"])
    made = Trainer(
        accelerator="cpu", devices=world, strategy=DDPStrategy(timeout=PATIENCE),
        max_steps=steps + (STOP if load else 0), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=-1,
    )  # fmt: skip
    made.fit(module, loader, ckpt_path=str(load / "last.ckpt") if load else None, weights_only=False)
    yield from module.model.seen
    if save:
        made.save_checkpoint(save / "last.ckpt")


def fabric(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    made.launch()
    prepared: Any = made.setup_dataloaders(loader)
    if load:
        stateful(loader).load_state_dict(made.load(load / "state.ckpt", weights_only=False)["loader"])
    yield from map(rows_of, islice(endless(prepared), steps))
    if save:
        made.save(save / "state.ckpt", {"loader": stateful(loader).state_dict()})


def ray(loader: Any, steps: int, load: Path | None, save: Path | None) -> Iterator[list[Row]]:
    from ray.train.torch import prepare_data_loader

    prepared = prepare_data_loader(loader)
    if load:
        stateful(loader).load_state_dict(json.loads((load / "loader.json").read_text()))
    batches = endless(prepared)
    for _ in range(steps):
        yield rows_of(next(batches))
    if save and stateful(loader).rank == 0:
        save.mkdir(exist_ok=True)
        (save / "loader.json").write_text(json.dumps(loader.state_dict()))


FRAMEWORKS: dict[str, Reads] = {
    "plain": plain,
    "DDP": ddp,
    "mp.spawn": plain,
    "torchtitan": torchtitan,
    "Accelerate": accelerate(),
    "Accelerate, split_batches": accelerate(split_batches=True),
    "Accelerate, dispatch_batches": accelerate(dispatch_batches=True),
    "Accelerate, dispatch_batches off": accelerate(dispatch_batches=False),
    "Accelerate, even_batches off": accelerate(even_batches=False),
    "Accelerate, skip_first_batches": skip_first_batches,
    "Trainer": trainer,
    "TRL": trl,
    "Lightning": lightning,
    "Fabric": fabric,
    "Ray Train": ray,
}


def situations(given: Settings, name: str, reads: Reads, world: int) -> Iterator[tuple[str, Any]]:
    """Yield each situation with the rows of its steps, or the sentence with which it was refused."""
    rows, batch = given["rows"], given["batch"]
    saved = Path(given["folder"]) / name.replace(" ", "_")
    left = rows - STOP * 2 * batch
    steps = {"two epochs": 2 * -(-rows // (world * batch)), "until a checkpoint": STOP}
    steps |= {
        "resumed": -(-left // (2 * batch)),
        "other batch": -(-left // (4 * batch)),
        "other ranks": -(-left // batch),
    }
    for situation in given["situations"]:
        load = saved if situation in ("resumed", "other batch", "other ranks") else None
        save = saved if situation == "until a checkpoint" else None
        size = 2 * batch if situation == "other batch" else batch
        try:
            loader = given["make"](name, given, size)
            found: Any = list(reads(loader, steps[situation], load, save))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if dist.is_initialized():
            dist.barrier()  # a checkpoint is there once the rank that writes it has written it
        yield situation, found


def read_all(given: Settings, framework: str, rank: int, world: int, make_loader: Any = make) -> None:
    found: dict[str, Any] = {}
    for name in given["loaders"]:
        found[name] = dict(situations(given | {"make": make_loader}, name, FRAMEWORKS[framework], world))
    (Path(given["folder"]) / f"{rank}-of-{world}.json").write_text(json.dumps(found))


def spawned(rank: int, given: Settings, framework: str, world: int) -> None:
    """A process of `mp.spawn`: loaders are created before its ranks are known."""
    created = {}

    def early(name: str, given: Settings, batch_size: int) -> Any:
        found = created.pop((name, batch_size), None)
        return make(name, given, batch_size) if found is None else found

    for name in given["loaders"]:
        created[name, given["batch"]] = make(name, given, given["batch"])
    address = f"file://{given['folder']}/meeting-{world}"
    dist.init_process_group("gloo", address, PATIENCE, rank=rank, world_size=world)
    read_all(given, framework, rank, world, early)
    dist.destroy_process_group()


def of_ray(config: Settings) -> None:
    read_all(config, "Ray Train", dist.get_rank(), dist.get_world_size())


def main(framework: str, path: Path) -> None:
    torch.set_num_threads(1)
    given = json.loads(path.read_text())
    world = given["world"]
    if framework == "mp.spawn":
        torch.multiprocessing.spawn(spawned, (given, framework, world), nprocs=world)
    elif framework == "Ray Train":
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        scaling, run = ScalingConfig(num_workers=world), RunConfig(storage_path=f"{given['folder']}/ray")
        group = TorchConfig("gloo", timeout_s=PATIENCE.seconds)
        TorchTrainer(of_ray, train_loop_config=given, torch_config=group, scaling_config=scaling, run_config=run).fit()
    else:
        created = {name: make(name, given, given["batch"]) for name in given["loaders"]}  # before the ranks are known

        def early(name: str, given: Settings, batch_size: int) -> Any:
            found = created.pop(name, None) if batch_size == given["batch"] else None
            return make(name, given, batch_size) if found is None else found

        if framework != "Lightning":
            dist.init_process_group("gloo", timeout=PATIENCE)
        read_all(given, framework, int(os.environ["RANK"]), world, early)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
