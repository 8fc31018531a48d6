"""The encoder, its heads, and whole models."""

from nystromformer.model.build import PretrainingModel, PretrainingOutput, count_parameters
from nystromformer.model.encoder import Encoder
from nystromformer.model.finetuning import (
    CandidateModel,
    ClassificationModel,
    SequenceModel,
    TokenClassificationModel,
)
from nystromformer.model.heads import (
    CandidateHead,
    ClassificationHead,
    MaskedLMHead,
    PooledHead,
    TokenHead,
    TwoTowerHead,
)

__all__ = [
    "CandidateHead",
    "CandidateModel",
    "ClassificationHead",
    "ClassificationModel",
    "Encoder",
    "MaskedLMHead",
    "PooledHead",
    "PretrainingModel",
    "PretrainingOutput",
    "SequenceModel",
    "TokenClassificationModel",
    "TokenHead",
    "TwoTowerHead",
    "count_parameters",
]
