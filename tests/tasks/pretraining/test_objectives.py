"""Objectives beside masked tokens: their name, labels and head belong together."""

from typing import get_args

import pytest
from small import small_config

from nystromformer.config.schema import ObjectiveName
from nystromformer.model import PretrainingModel
from nystromformer.model.build import CLASS_HEADS
from nystromformer.tasks.pretraining.objectives import OBJECTIVES


def test_config_labels_and_heads_know_the_same_names() -> None:
    assert set(get_args(ObjectiveName)) == {"mlm", *OBJECTIVES} == {"mlm", *CLASS_HEADS}


def test_an_objective_without_a_head_is_no_model() -> None:
    with pytest.raises(ValueError, match="no head for word_start: CLASS_HEADS has sop"):
        PretrainingModel(small_config().model, ("mlm", "word_start"))
