"""The YAML: its schema, one frozen model per section, and how a file of it is read."""

from tokenloom.config.dataset import (
    DATASET_NAME,
    DEFAULT_SPECIAL_TOKENS,
    ComputeConfig,
    Constant,
    DataLoaderConfig,
    DatasetConfig,
    Declaration,
    FewShotConfig,
    LengthConfig,
    PipelineConfig,
    PromptTemplateConfig,
    ReaderConfig,
    Section,
    SpecialTokensConfig,
    TokenizerConfig,
    TrainConfig,
    ValidationConfig,
)
from tokenloom.config.mixture import MixtureConfig, MixtureSource

__all__ = [
    "DATASET_NAME",
    "DEFAULT_SPECIAL_TOKENS",
    "ComputeConfig",
    "Constant",
    "DataLoaderConfig",
    "DatasetConfig",
    "Declaration",
    "FewShotConfig",
    "LengthConfig",
    "MixtureConfig",
    "MixtureSource",
    "PipelineConfig",
    "PromptTemplateConfig",
    "ReaderConfig",
    "Section",
    "SpecialTokensConfig",
    "TokenizerConfig",
    "TrainConfig",
    "ValidationConfig",
]
