"""A model of this project to hand on: an experiment's, or that of a fine-tuning run's folder."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config import ExperimentConfig, ModelConfig, experiment_config
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.interop.formats.sentences import Sentences, kept_sentences
from nystromformer.interop.formats.source import check_finite_weights
from nystromformer.interop.transfer import mentioned
from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.runs.record import Run, open_run
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import find_tokenizer, read_run_checkpoint
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.training.checkpoint import check_weights, choose_weights, find_weights, load_weights, read_checkpoint

logger = logging.getLogger(__name__)
_CLASSIFIER = "head.classifier."


@dataclass(frozen=True)
class Opened:
    """A checkpoint's model."""

    path: Path
    """Of the checkpoint."""
    content: Mapping[str, Any]
    """The checkpoint's."""
    experiment: ExperimentConfig
    """An experiment's own; of a run that with which it was trained."""
    tokenizer: Tokenizer | None
    """None where the model came without one."""
    kept: Sentences | None
    """What the source of an import did around its encoder."""
    run: Run | None = None
    """Of a fine-tuned model."""
    recipe: Recipe | None = None
    """What that run reads and answers."""

    @property
    def config(self) -> ModelConfig:
        """The network."""
        return self.experiment.model

    @property
    def weights(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.content["model"]
        return weights

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Of a classification: its classes, or one of a value; None of a model that guesses masked tokens."""
        return None if self.recipe is None else self.recipe.answer.names or ("value",)

    @property
    def is_headless(self) -> bool:
        """Whether it guesses masked tokens with a head that nobody trained: its source had none."""
        return self.labels is None and bool(self.content.get("imported", {}).get("headless"))

    @property
    def longest(self) -> int:
        """Tokens of the longest row; of a run those that it reads, which may be fewer than the network takes."""
        return self.config.max_seq_len if self.run is None else self.run.length

    @property
    def sentences(self) -> Sentences:
        """How vectors of texts are made."""
        kept = self.kept or Sentences(self.config.pooling)
        length = min(kept.max_seq_length or self.longest, self.longest)
        return replace(kept, pooling=self.config.pooling, max_seq_length=length)

    @property
    def unlike_the_run(self) -> str:
        """What the exported form does not do as the run does; nothing of other models."""
        if self.recipe is None or self.recipe.cut.rule != "windows":
            return ""
        return (
            "The run classifies the mean over a longer text's windows; this form reads only a text's first tokens, "
            f"{self.longest} at most."
        )

    def check_tokenizer(self) -> Tokenizer:
        """The tokenizer; UserError where the model has none."""
        if self.tokenizer is None:
            raise UserError(f"{self.path}: was imported without a tokenizer: import it again with --tokenizer")
        return self.tokenizer

    def initial(self) -> PretrainingModel | ClassificationModel:
        """The model with initial weights."""
        if self.labels is None:
            return PretrainingModel(self.config, self.experiment.pretraining_setting.objectives)
        return ClassificationModel(self.config, len(self.labels))

    def build(self) -> PretrainingModel | ClassificationModel:
        """The model with its weights, in evaluation."""
        model = self.initial()
        load_weights(model, self.weights, self.path)
        return model.eval()


def from_pretrained(
    folder: str | Path, checkpoint: str | int | None = None
) -> tuple[PretrainingModel | ClassificationModel, Tokenizer | None]:
    """The model in a folder, with its weights and in evaluation, and its tokenizer.

    Args:
        folder: an experiment's, or a finished fine-tuning run's below its checkpoints.
        checkpoint: "last", an epoch's number, or "best" of a run; None: "best" of a run, else "last".

    Returns:
        PretrainingModel or ClassificationModel; None in the tokenizer's place where the model came without one.
    """
    opened = open_model(Path(folder), None if checkpoint is None else str(checkpoint))
    return opened.build(), opened.tokenizer


def open_model(folder: Path, wanted: str | None = None) -> Opened:
    """Open what a folder has; arguments as of `from_pretrained`."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    is_experiment = (folder / "config.json").is_file()
    opened = _open_experiment(folder, wanted or "last") if is_experiment else _open_run(folder, wanted or "best")
    with torch.device("meta"):  # sizes are all that is needed
        expected = opened.initial().state_dict()
    check_weights(expected, opened.content["model"], opened.path)
    check_finite_weights(opened.content["model"], opened.path)
    return opened


def _open_experiment(folder: Path, wanted: str) -> Opened:
    experiment = open_experiment(folder)
    path = choose_weights(experiment.checkpoints, wanted)[0]
    content = read_run_checkpoint(path)
    now = experiment.config.model_dump(mode="json", by_alias=True)["model"]
    for line in mentioned(content["config"]["model"], now):
        logger.warning("%s: %s", path, line)
    tokenizer = find_tokenizer(experiment, content["tokenizer"]) if content["tokenizer"] else None
    kept = kept_sentences(experiment.checkpoints / TOKENIZER_FOLDER)
    return Opened(path, content, experiment.config, tokenizer, kept)


def _open_run(folder: Path, wanted: str) -> Opened:
    run = open_run(folder)
    there = find_weights(folder)
    epochs = {"best": run.best.epoch, "last": run.last.epoch} | {str(epoch): epoch for epoch in there}
    if epochs.get(wanted) not in there:
        raise UserError(
            f"{folder}: expected --checkpoint best, last or an epoch's number, of which the run has kept "
            f"{', '.join(map(str, there)) or 'none'}; found {wanted!r}"
        )
    path, recipe = there[epochs[wanted]], recipe_in(run.texts, folder)
    answer, content = recipe.answer, decided(read_checkpoint(path))
    if answer.kind == "ordered":
        raise UserError(
            f"{path}: a model of ordered classes cannot be exported, because its outputs are not scores of classes. "
            "Use run_predict.py or run_serve.py instead"
        )
    if answer.kind == "value":
        # What was learned is how many deviations it is from the mean: the last linear map gives the value itself.
        weights = dict(content["model"])
        for end, mean in (("weight", 0.0), ("bias", answer.mean)):
            weights[_CLASSIFIER + end] = weights[_CLASSIFIER + end] * answer.deviation + mean
        content = {**content, "model": weights}
    kept = kept_sentences(run.tokenizer)
    # The run learned from texts without it.
    kept = None if kept is None else replace(kept, default_prompt_name=None)
    config = experiment_config(content["config"], str(path))
    return Opened(path, content, config, load_tokenizer(run.tokenizer), kept, run, recipe)
