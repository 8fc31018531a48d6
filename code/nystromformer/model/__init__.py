"""The encoder, its heads, and whole models."""

from nystromformer.model.build import PretrainingModel, count_parameters
from nystromformer.model.encoder import Encoder
from nystromformer.model.finetuning import (
    CandidateModel,
    ClassificationModel,
    SequenceModel,
    TokenClassificationModel,
)

__all__ = [
    "CandidateModel",
    "ClassificationModel",
    "Encoder",
    "PretrainingModel",
    "SequenceModel",
    "TokenClassificationModel",
    "count_parameters",
]
