"""The training side: opens built datasets and feeds them to PyTorch. Needs torch, numpy and pyarrow, nothing more."""

from tokenloom.loaders.batch import PaddingPolicy
from tokenloom.loaders.dataset import TokenDataset, open_dataset
from tokenloom.loaders.order import BatchOrder
from tokenloom.loaders.prompts import collate_prompts
from tokenloom.loaders.streaming import StreamingDataset, StreamingLoader
from tokenloom.loaders.token_loader import TokenLoader

__all__ = [
    "BatchOrder",
    "PaddingPolicy",
    "StreamingDataset",
    "StreamingLoader",
    "TokenDataset",
    "TokenLoader",
    "collate_prompts",
    "open_dataset",
]
