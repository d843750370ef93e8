"""The training side: opens built datasets and feeds them to PyTorch. Needs only torch, numpy and pyarrow."""

from tokenloom.loaders.any_dataset.builder import DataLoaderBuilder
from tokenloom.loaders.any_dataset.config import DataLoaderConfig
from tokenloom.loaders.any_dataset.data_module import DataModuleProtocol, UniversalDataModule
from tokenloom.loaders.any_dataset.factory import DataLoaderFactory
from tokenloom.loaders.collation.collate import create_causal_lm_collate, create_collate_fn, create_seq2seq_collate
from tokenloom.loaders.collation.collators.default import DefaultCollator
from tokenloom.loaders.collation.collators.registry import CollatorRegistry
from tokenloom.loaders.collation.collators.text import LanguageModelingDataCollator, TextCollator
from tokenloom.loaders.collation.collators.vision import VisionCollator, VisionDataCollator
from tokenloom.loaders.collation.model_inputs import model_inputs
from tokenloom.loaders.collation.output_schema import OutputColumn, OutputSchema
from tokenloom.loaders.collation.prompts import collate_prompts
from tokenloom.loaders.collation.task_spec import TaskSpec
from tokenloom.loaders.datasets.mixed_dataset import MixedDataset, Share
from tokenloom.loaders.datasets.stored_mixture import open_mixture
from tokenloom.loaders.datasets.token_dataset import TokenDataset, open_dataset
from tokenloom.loaders.datasets.trace import TracedRow
from tokenloom.loaders.frameworks.array_loader import ArrayDataLoader
from tokenloom.loaders.map_style.map_loader import MapLoader
from tokenloom.loaders.map_style.rank_sampler import RankSampler
from tokenloom.loaders.on_the_fly.batch_stream import StreamingDataset, StreamingLoader
from tokenloom.loaders.on_the_fly.preprocessed import PreprocessedDataset, create_preprocessed_dataset
from tokenloom.loaders.on_the_fly.row_encoder import SkippedRow
from tokenloom.loaders.on_the_fly.row_stream import StreamingPreprocessedDataset
from tokenloom.loaders.raw_text.text_dataset import TextDataset
from tokenloom.loaders.raw_text.text_windows import TransformerDataset, create_dataloaders
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
    "create_causal_lm_collate",
    "create_collate_fn",
    "create_dataloaders",
    "create_preprocessed_dataset",
    "create_seq2seq_collate",
    "model_inputs",
    "open_dataset",
    "open_mixture",
]
