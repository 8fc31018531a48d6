"""The encoder, its heads, and whole models."""

from nystromformer.model.build import PretrainingModel, PretrainingOutput, count_parameters
from nystromformer.model.encoder import Encoder
from nystromformer.model.finetuning import (
    CandidateModel,
    ClassificationModel,
    QuestionAnsweringModel,
    SequenceModel,
    TokenClassificationModel,
)
from nystromformer.model.heads import (
    CandidateHead,
    ClassificationHead,
    MaskedLMHead,
    PooledHead,
    SpanHead,
    TokenHead,
    TwoTowerHead,
    best_span,
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
    "QuestionAnsweringModel",
    "SequenceModel",
    "SpanHead",
    "TokenClassificationModel",
    "TokenHead",
    "TwoTowerHead",
    "best_span",
    "count_parameters",
]
