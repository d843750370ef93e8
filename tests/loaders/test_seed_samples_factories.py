"""The seed documents' samples of loaders, factories, data modules and small texts, with names that exist here."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import datasets
import datasets.config
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from support.foreign_datasets import as_list
from tokenloom.loaders import (
    CollatorRegistry,
    DataLoaderBuilder,
    DataLoaderConfig,
    DataLoaderFactory,
    DataModuleProtocol,
    TaskSpec,
    UniversalDataModule,
    VisionDataCollator,
    create_dataloaders,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "while",
    "the",
    "red",
    "bird",
    "sings",
    "in",
    "the",
    "old",
    "tree",
    "by",
    "the",
    "river",
]


class MyDataset(Dataset[Any]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"pixel_values": torch.randn(3, 8, 8), "labels": idx % 10}


class MicroTransformerTokenizer:
    """Encodes characters; returns a dict with three entries."""

    @classmethod
    def from_pretrained(cls, path: str) -> MicroTransformerTokenizer:
        return cls()

    def encode(self, text: str) -> dict[str, list[int]]:
        ids = [2, *(ord(character) % 60 + 4 for character in text), 3]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids), "attention_mask": [1] * len(ids)}

    def get_vocab_size(self) -> int:
        return 64


class MicroTransformer(torch.nn.Module):
    def __init__(self, vocab_size: int):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(vocab_size, 16), torch.nn.Linear(16, vocab_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(inputs))


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with JSONL files, and with folders `wikitext` and `cifar10` that `load_dataset` reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    noise = np.random.default_rng(0)
    lines = ["" if n % 3 == 0 else " ".join(noise.choice(WORDS, 12)) for n in range(150)]
    (tmp_path / "wikitext").mkdir()
    (tmp_path / "wikitext" / "train.txt").write_text("\n".join(lines) + "\n")
    head = "---\nconfigs:\n- config_name: wikitext-2-raw-v1\n  data_files: train.txt\n---\n"
    (tmp_path / "wikitext" / "README.md").write_text(head)
    images = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    for split, count in (("train", 90), ("test", 20)):
        pixels = [noise.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(count)]
        made = datasets.Dataset.from_dict({"img": pixels, "label": [n % 10 for n in range(count)]}, features=images)
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        made.to_parquet(tmp_path / "cifar10" / f"{split}.parquet")
    for name, count in (("train", 60), ("val", 12)):
        rows = [{"text": " ".join(noise.choice(WORDS, 30))} for _ in range(count)]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_builder() -> None:
    train_ds = TensorDataset(torch.arange(640))

    class dist:
        rank, world_size = 0, 2

    loader = (
        DataLoaderBuilder()
        .with_dataset(train_ds)
        .with_batch_size(32)
        .with_workers(8)
        .with_distributed(rank=dist.rank, world_size=dist.world_size)
        .build()
    )
    assert isinstance(loader, DataLoader) and len(loader) == 10
    seen = torch.cat([batch for (batch,) in loader])
    assert len(seen.unique()) == 320


def test_protocol() -> None:
    train_dataset = val_dataset = TensorDataset(torch.arange(64))

    class MyDataModule:
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(train_dataset, batch_size=32)

        def val_dataloader(self) -> DataLoader[Any]:
            return DataLoader(val_dataset, batch_size=32)

    dm: DataModuleProtocol = MyDataModule()
    assert isinstance(dm, DataModuleProtocol)


def test_factory() -> None:
    factory = DataLoaderFactory()
    dataset = TensorDataset(torch.randn(100, 32))
    config = DataLoaderConfig(
        batch_size=32,
        shuffle=True,
        num_workers=2,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=2,
        seed=42,
    )
    loader = factory.create_dataloader(dataset, config)
    assert [tuple(batch[0].shape) for batch in loader] == [(32, 32)] * 3 + [(4, 32)]
    config = DataLoaderConfig(batch_size=32, pin_memory=None, prefetch_factor=2, persistent_workers=None)
    loader = factory.create_dataloader(dataset, config)
    assert len(list(loader)) == 4
    assert loader.pin_memory == torch.cuda.is_available()
    if not torch.cuda.is_available():
        assert loader.prefetch_factor is None


def test_reproducibility() -> None:
    factory, dataset = DataLoaderFactory(), TensorDataset(torch.randn(100, 32))
    config = DataLoaderConfig(batch_size=32, shuffle=True, seed=42, num_workers=0)

    loader1 = factory.create_dataloader(dataset, config)
    loader2 = factory.create_dataloader(dataset, config)

    batch1 = next(iter(loader1))
    batch2 = next(iter(loader2))
    assert torch.equal(batch1[0], batch2[0])


@pytest.mark.parametrize(
    "config",
    [
        DataLoaderConfig(batch_size=32, num_workers=0 if not torch.cuda.is_available() else 2),
        DataLoaderConfig(
            batch_size=32, num_workers=4, pin_memory=False, prefetch_factor=2, persistent_workers=True, seed=1
        ),
        DataLoaderConfig(pin_memory=None),
        DataLoaderConfig(pin_memory=torch.cuda.is_available()),
        DataLoaderConfig(num_workers=2, prefetch_factor=2),
        DataLoaderConfig(num_workers=4, prefetch_factor=4),
        DataLoaderConfig(shuffle=True, seed=42),
        DataLoaderConfig(shuffle=True),
        DataLoaderConfig(collate_fn=as_list),
        DataLoaderConfig(num_workers=2, persistent_workers=False),
        DataLoaderConfig(num_workers=1),
    ],
)
def test_configs(config: DataLoaderConfig) -> None:
    loader = DataLoaderFactory().create_dataloader(TensorDataset(torch.arange(100)), config)
    rows = [
        row for batch in loader for row in (torch.cat([r[0][None] for r in batch]) if config.collate_fn else batch[0])
    ]
    assert sorted(map(int, rows)) == list(range(100))


def test_config_fields() -> None:
    config = DataLoaderConfig(
        batch_size=32, shuffle=True, num_workers=4, max_length=2048, dataset_name="wikitext", cache_dir=None
    )
    assert (config.batch_size, config.max_length, config.dataset_name) == (32, 2048, "wikitext")


def test_hugging_face_dataset(here: Path, tokenizer: Any) -> None:
    from datasets import load_dataset

    dataset = load_dataset("wikitext", "wikitext-2-raw-v1", split="train")
    data_module = UniversalDataModule(
        train_data=dataset,
        task_spec=TaskSpec.lm_tiny(),
        tokenizer=tokenizer,
        batch_size=32,
        val_split=0.1,
        num_workers=2,
        seed=42,
    )
    train_loader = data_module.train_dataloader()
    val_loader = data_module.val_dataloader()
    rows = 0
    for batch in train_loader:
        input_ids = batch["input_ids"]
        labels = batch["labels"]
        assert input_ids.shape == labels.shape
        rows += len(input_ids)
    assert val_loader is not None
    assert rows + sum(len(batch["input_ids"]) for batch in val_loader) == 100


def test_torch_dataset() -> None:
    data_module = UniversalDataModule(
        train_data=MyDataset(), task_spec=TaskSpec.vision_tiny(), batch_size=32, val_split=0.2, seed=42
    )
    train_loader = data_module.train_dataloader()
    assert isinstance(train_loader.collate_fn, VisionDataCollator)
    batches = list(train_loader)
    assert batches[0]["pixel_values"].shape == (32, 3, 8, 8)
    assert sum(len(batch["labels"]) for batch in batches) == 800


def test_external_validation_set(here: Path) -> None:
    from datasets import load_dataset

    train_dataset = load_dataset("cifar10", split="train")
    val_dataset = load_dataset("cifar10", split="test")
    data_module = UniversalDataModule(
        train_data=train_dataset,
        val_data=val_dataset,
        task_spec=TaskSpec.vision_tiny(),
        batch_size=64,
        val_split=0.0,
        seed=42,
    )
    assert [len(batch["labels"]) for batch in data_module.train_dataloader()] == [64, 26]
    (batch,) = list(data_module.val_dataloader() or [])
    assert batch["pixel_values"].shape == (20, 3, 32, 32)
    assert batch["labels"].tolist() == [n % 10 for n in range(20)]


def test_list_of_tensors() -> None:
    train_data = [torch.randint(0, 1000, (128,)) for _ in range(500)]
    data_module = UniversalDataModule(train_data=train_data, batch_size=32, val_split=0.2, seed=42)
    batches = list(data_module.train_dataloader())
    assert batches[0]["input_ids"].shape == batches[0]["labels"].shape == (32, 128)
    assert sum(len(batch["input_ids"]) for batch in batches) == 400


def test_checkpoints(tmp_path: Path) -> None:
    dataset = [torch.randint(0, 1000, (16,)) for _ in range(64)]
    data_module = UniversalDataModule(train_data=dataset, batch_size=8, val_split=0, seed=7)
    train_loader = data_module.train_dataloader()
    epoch, step = 0, 3
    batches = iter(train_loader)
    for _ in range(step):
        next(batches)
    custom_state = {
        "data_module_seed": data_module.seed,
        "epoch_step": epoch * len(train_loader) + step,
        "data_module": data_module.state_dict(),
    }
    torch.save({"custom_state": custom_state}, tmp_path / "checkpoint.pt")
    expected = list(batches)

    state = torch.load(tmp_path / "checkpoint.pt")
    data_module = UniversalDataModule(
        train_data=dataset, seed=state["custom_state"]["data_module_seed"], batch_size=8, val_split=0
    )
    data_module.load_state_dict(state["custom_state"]["data_module"])
    rest = list(data_module.train_dataloader())
    assert [batch["input_ids"].tolist() for batch in rest] == [batch["input_ids"].tolist() for batch in expected]


def test_profiling_of_a_loader_and_of_its_collator() -> None:
    dataset = MyDataset()
    train_loader = UniversalDataModule(dataset, task_spec=TaskSpec.vision_tiny(), batch_size=250).train_dataloader()
    start = time.time()
    for _ in train_loader:
        pass
    assert time.time() >= start
    collator = CollatorRegistry.get_instance().get_collator(task_spec=TaskSpec.vision_tiny())
    batch = [dataset[i] for i in range(32)]
    assert len(collator(batch)["labels"]) == 32


def test_lightning_takes_a_data_module() -> None:
    pl = pytest.importorskip("pytorch_lightning")

    class MyLightningModule(pl.LightningModule):
        def __init__(self, data_module: DataModuleProtocol):
            super().__init__()
            self.data_module, self.model, self.seen = data_module, MicroTransformer(64), []

        def train_dataloader(self) -> DataLoader[Any]:
            return self.data_module.train_dataloader()

        def val_dataloader(self) -> DataLoader[Any] | None:
            return self.data_module.val_dataloader()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            self.seen += batch["input_ids"][:, 0].tolist()
            return self.model(batch["input_ids"]).logsumexp(-1).mean()

        def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
            assert "input_ids" in batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = [torch.full((5,), n) for n in range(40)]
    data_module = UniversalDataModule(data, batch_size=4)
    module = MyLightningModule(data_module)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module)
    first, second = module.seen[:36], module.seen[36:]
    assert sorted(first) == sorted(second) and first != second


def test_small_texts(here: Path) -> None:
    tokenizer = MicroTransformerTokenizer.from_pretrained("path/to/tokenizer")
    train_loader, _ = create_dataloaders(
        train_path="data/train.jsonl", val_path="data/val.jsonl", tokenizer=tokenizer, batch_size=16, seq_length=128
    )
    for batch in train_loader:
        inputs = batch["input_ids"]
        labels = batch["labels"]
        assert inputs.shape == labels.shape == (16, 128)
        assert torch.equal(inputs[:, 1:], labels[:, :-1])


def test_small_texts_train_a_model(here: Path) -> None:
    from torch.optim import AdamW
    from transformers import get_linear_schedule_with_warmup

    tokenizer = MicroTransformerTokenizer.from_pretrained("path/to/tokenizer")
    train_loader, val_loader = create_dataloaders(
        train_path="data/train.jsonl",
        val_path="data/val.jsonl",
        tokenizer=tokenizer,
        batch_size=16,
        seq_length=32,
        num_workers=4,
    )
    model = MicroTransformer(vocab_size=tokenizer.get_vocab_size())
    optimizer = AdamW(model.parameters(), lr=5e-2)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=len(train_loader) * 3)
    losses = []
    for _ in range(3):
        model.train()
        for batch in train_loader:
            outputs = model(batch["input_ids"])
            loss = torch.nn.functional.cross_entropy(
                outputs.view(-1, tokenizer.get_vocab_size()), batch["labels"].view(-1)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        val_loss = 0.0
        with torch.no_grad():
            for batch in val_loader:
                outputs = model(batch["input_ids"])
                loss = torch.nn.functional.cross_entropy(
                    outputs.view(-1, tokenizer.get_vocab_size()), batch["labels"].view(-1)
                )
                val_loss += loss.item()
        losses.append(val_loss / len(val_loader))
    assert losses[-1] < losses[0]
