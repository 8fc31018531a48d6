"""Losses that are no sum over examples: F-beta, AUROC, average precision, precision at a recall, recall at a precision;
ordinary modules of PyTorch.

    objective = FBeta(beta=2, positive_share=0.02)
    loss = objective(logits, labels)
    loss.backward()
    optimizer.step()  # of the model
    ascend(objective.dual_parameters(), rate=0.01)  # or any optimiser with maximize=True
"""

from nystromformer.objectives.bounds import Auroc, AveragePrecision, PrecisionAtRecall, RecallAtPrecision
from nystromformer.objectives.fractions import FBeta
from nystromformer.objectives.objective import Objective, ascend

__all__ = [
    "Auroc",
    "AveragePrecision",
    "FBeta",
    "Objective",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "ascend",
]
