"""The training side: opens built datasets and feeds them to PyTorch. Needs torch, numpy and pyarrow, nothing more."""

from tokenloom.loaders.batch import PaddingPolicy
from tokenloom.loaders.dataset import TokenDataset, open_dataset
from tokenloom.loaders.loader_builder import DataLoaderBuilder
from tokenloom.loaders.loader_config import DataLoaderConfig
from tokenloom.loaders.loader_factory import DataLoaderFactory
from tokenloom.loaders.map_loader import MapLoader
from tokenloom.loaders.mixed import MixedDataset
from tokenloom.loaders.prompts import collate_prompts
from tokenloom.loaders.rank_sampler import RankSampler
from tokenloom.loaders.streaming import StreamingDataset, StreamingLoader
from tokenloom.loaders.text_windows import TransformerDataset, create_dataloaders
from tokenloom.loaders.token_loader import TokenLoader, batch_digest
from tokenloom.loaders.trace import TracedRow

__all__ = [
    "DataLoaderBuilder",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "MapLoader",
    "MixedDataset",
    "PaddingPolicy",
    "RankSampler",
    "StreamingDataset",
    "StreamingLoader",
    "TokenDataset",
    "TokenLoader",
    "TracedRow",
    "TransformerDataset",
    "batch_digest",
    "collate_prompts",
    "create_dataloaders",
    "open_dataset",
]
