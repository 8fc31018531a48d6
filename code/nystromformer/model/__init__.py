"""The encoder, its heads, and whole models."""

from nystromformer.model.build import PretrainingModel, PretrainingOutput, count_parameters
from nystromformer.model.encoder import Encoder
from nystromformer.model.finetuning import CandidateModel, ClassificationModel
from nystromformer.model.heads import CandidateHead, ClassificationHead, MaskedLMHead, TwoTowerHead

__all__ = [
    "CandidateHead",
    "CandidateModel",
    "ClassificationHead",
    "ClassificationModel",
    "Encoder",
    "MaskedLMHead",
    "PretrainingModel",
    "PretrainingOutput",
    "TwoTowerHead",
    "count_parameters",
]
