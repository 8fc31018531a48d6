"""What a config.json may say, read and checked. Imports no torch, so that mistakes show at once."""

from .attention import ATTENTIONS, AttentionConfig, NystromConfig, SoftmaxConfig, attention_config
from .load import experiment_config, json_schema, load_config
from .network import ModelConfig
from .ranges import MOST_DROPOUT
from .schema import ExperimentConfig, Positions, Resize

__all__ = [
    "ATTENTIONS",
    "MOST_DROPOUT",
    "AttentionConfig",
    "NystromConfig",
    "SoftmaxConfig",
    "attention_config",
    "ExperimentConfig",
    "ModelConfig",
    "Positions",
    "Resize",
    "experiment_config",
    "json_schema",
    "load_config",
]
