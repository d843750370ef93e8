"""The training side: opens built datasets and feeds them to PyTorch. Needs torch, numpy and pyarrow, nothing more."""

from tokenloom.loaders.array_loader import ArrayDataLoader
from tokenloom.loaders.batch import PaddingPolicy
from tokenloom.loaders.dataset import TokenDataset, open_dataset
from tokenloom.loaders.mixed import MixedDataset, Share
from tokenloom.loaders.prompts import collate_prompts
from tokenloom.loaders.stored_mixture import open_mixture
from tokenloom.loaders.streaming import StreamingDataset, StreamingLoader
from tokenloom.loaders.text_dataset import TextDataset
from tokenloom.loaders.token_loader import TokenLoader, batch_digest
from tokenloom.loaders.trace import TracedRow

__all__ = [
    "ArrayDataLoader",
    "MixedDataset",
    "PaddingPolicy",
    "Share",
    "StreamingDataset",
    "StreamingLoader",
    "TextDataset",
    "TokenDataset",
    "TokenLoader",
    "TracedRow",
    "batch_digest",
    "collate_prompts",
    "open_dataset",
    "open_mixture",
]
