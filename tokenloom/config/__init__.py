"""The YAML: its schema, and how a file is read and checked."""

from tokenloom.config.dataset import PipelineConfig
from tokenloom.config.declaration import Declaration
from tokenloom.config.mixture import MixtureConfig
from tokenloom.config.schema import (
    DATASET_NAME,
    DEFAULT_SPECIAL_TOKENS,
    ComputeConfig,
    Constant,
    DataLoaderConfig,
    DatasetConfig,
    DriftConfig,
    FewShotConfig,
    LengthConfig,
    MixtureSource,
    PromptTemplateConfig,
    ReaderConfig,
    Section,
    SpecialTokensConfig,
    TokenizerConfig,
    TrainConfig,
    ValidationConfig,
    is_reserved_variable,
)
from tokenloom.config.training import LoraConfig, TrainingConfig

__all__ = [
    "DATASET_NAME",
    "DEFAULT_SPECIAL_TOKENS",
    "ComputeConfig",
    "Constant",
    "DataLoaderConfig",
    "DatasetConfig",
    "Declaration",
    "DriftConfig",
    "FewShotConfig",
    "LengthConfig",
    "LoraConfig",
    "MixtureConfig",
    "MixtureSource",
    "PipelineConfig",
    "PromptTemplateConfig",
    "ReaderConfig",
    "Section",
    "SpecialTokensConfig",
    "TokenizerConfig",
    "TrainConfig",
    "TrainingConfig",
    "ValidationConfig",
    "is_reserved_variable",
]
