"""The seed documents' samples of the array loader, word for word except for import paths."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from support.datasets_on_disk import write_dataset
from support.processes import run
from support.soak import machine
from tokenloom import DataPipeline

pytestmark = machine("trainer")

CONFIG = '''
from typing import Optional

class DataLoaderConfig:
    """Configuration for data loader."""

    batch_size: int = 32
    shuffle: bool = True
    num_workers: int = 4
    max_length: int = 2048
    dataset_name: str = "wikitext"
    cache_dir: Optional[str] = None
'''

BASIC_USAGE = """
from tokenloom.loaders import ArrayDataLoader as CapibaraDataLoader
from {settings} import DataLoaderConfig as CapibaraConfig
from transformers import AutoTokenizer

# Initialize components
config = CapibaraConfig()
tokenizer = AutoTokenizer.from_pretrained("nous-capybara")

# Create data loader
loader = CapibaraDataLoader(
    config=config,
    tokenizer=tokenizer,
    dataset_name="wikitext",
    batch_size=32,
    shuffle=True
)

# Iterate over batches
for batch in loader:
    input_ids = batch["input_ids"]
    attention_mask = batch["attention_mask"]
    labels = batch["labels"]
"""

CHECKS = """
import numpy as np

batches = list(loader)
assert {name for batch in batches for name in batch} == {"input_ids", "attention_mask", "labels"}
assert all(type(array) is np.ndarray for batch in batches for array in batch.values())
print([batch["input_ids"].shape[0] for batch in batches], batches[0]["input_ids"].shape[1])
"""


@pytest.mark.parametrize(("source", "settings"), [("built", "settings"), ("raw", "tokenloom.loaders")])
def test_basic_usage(tmp_path: Path, source: str, settings: str) -> None:
    """With `wikitext` a dataset of the store, and with a folder of that name that holds raw text; with the config's
    class as it was written, and with that of the loaders."""
    path = write_dataset(tmp_path / "yaml", 70, "wikitext")
    pipeline = DataPipeline.from_config(path, tmp_path / ".tokenloom").unwrap()
    shutil.copytree(pipeline.get_dataset().unwrap().tokenizer_path, tmp_path / "nous-capybara")
    if source == "raw":
        shutil.rmtree(tmp_path / ".tokenloom")
        (tmp_path / "wikitext").mkdir()
        (tmp_path / "wikitext" / "de.txt").write_text("".join(f"Satz {number} äöü\n" for number in range(35)))
        (tmp_path / "wikitext" / "ja.txt").write_text("".join(f"文 {number}\n\n" for number in range(35)))
    (tmp_path / "settings.py").write_text(CONFIG)
    (tmp_path / "sample.py").write_text(BASIC_USAGE.format(settings=settings) + CHECKS)
    done = run([sys.executable, "sample.py"], cwd=tmp_path, check=True)
    assert done.stdout.strip() == ("[32, 32, 6] 256" if source == "built" else "[32, 32, 6] 2048")
