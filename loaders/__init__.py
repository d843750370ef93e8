"""The training side: opens built datasets and feeds them to PyTorch. Needs only torch, numpy and pyarrow."""

from tokenloom.loaders.any_dataset.builder import DataLoaderBuilder, DataLoaderConfig, DataLoaderFactory
from tokenloom.loaders.any_dataset.data_module import DataModuleProtocol, UniversalDataModule
from tokenloom.loaders.collation.collate import (
    OutputColumn,
    OutputSchema,
    create_causal_lm_collate,
    create_collate_fn,
    create_seq2seq_collate,
)
from tokenloom.loaders.collation.context import context_slice, packed_seq_params, whole_from_slices
from tokenloom.loaders.collation.registry import CollatorRegistry
from tokenloom.loaders.collation.text import (
    DefaultCollator,
    LanguageModelingDataCollator,
    TaskSpec,
    TextCollator,
    collate_prompts,
    model_inputs,
)
from tokenloom.loaders.collation.vision import VisionCollator, VisionDataCollator
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset, Share, open_mixture
from tokenloom.loaders.datasets.token_dataset import TokenDataset, TracedRow, open_dataset
from tokenloom.loaders.frameworks import ArrayDataLoader
from tokenloom.loaders.map_style import MapLoader, RankSampler
from tokenloom.loaders.on_the_fly.batch_stream import StreamingDataset, StreamingLoader
from tokenloom.loaders.on_the_fly.preprocessed import PreprocessedDataset, create_preprocessed_dataset
from tokenloom.loaders.on_the_fly.row_encoder import SkippedRow
from tokenloom.loaders.on_the_fly.row_stream import StreamingPreprocessedDataset
from tokenloom.loaders.raw_text import TextDataset, TransformerDataset, create_dataloaders
from tokenloom.loaders.reading.batch import PaddingPolicy, batch_digest
from tokenloom.loaders.token_loader import TokenLoader

__all__ = [
    "ArrayDataLoader",
    "CollatorRegistry",
    "DataLoaderBuilder",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataModuleProtocol",
    "DefaultCollator",
    "LanguageModelingDataCollator",
    "MapLoader",
    "MixedDataset",
    "OutputColumn",
    "OutputSchema",
    "PaddingPolicy",
    "PreprocessedDataset",
    "RankSampler",
    "Share",
    "SkippedRow",
    "StreamingDataset",
    "StreamingLoader",
    "StreamingPreprocessedDataset",
    "TaskSpec",
    "TextCollator",
    "TextDataset",
    "TokenDataset",
    "TokenLoader",
    "TracedRow",
    "TransformerDataset",
    "UniversalDataModule",
    "VisionCollator",
    "VisionDataCollator",
    "batch_digest",
    "collate_prompts",
    "context_slice",
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_dataloaders",
    "create_preprocessed_dataset",
    "create_seq2seq_collate",
    "model_inputs",
    "open_dataset",
    "open_mixture",
    "packed_seq_params",
    "whole_from_slices",
]
