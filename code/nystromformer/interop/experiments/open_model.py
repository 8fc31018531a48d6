"""A model of this project to hand on: an experiment's, or that of a fine-tuning run's folder."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config import ExperimentConfig, ModelConfig, experiment_config
from nystromformer.data.dataset import TOKENIZER_FOLDER
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.interop.formats.files import check_finite_weights
from nystromformer.interop.formats.sentences import Sentences, kept_sentences
from nystromformer.interop.formats.source import SEVERAL
from nystromformer.interop.transfer import mentioned
from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.runs.record import RECORD, Run, read_run
from nystromformer.tasks.documents.recipe import Answer, recipe_in
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import check_is_of_a_run, find_tokenizer
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.training.checkpoint import check_weights, choose_weights, find_weights, load_weights, read_checkpoint
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)
CONFIG = "config.json"
_WEIGHTS = "cp-*.model"
_CLASSIFIER, _CLASSIFIER_BIAS = "head.classifier.weight", "head.classifier.bias"


Problem = Literal["single_label_classification", "multi_label_classification", "regression"]


@dataclass(frozen=True)
class Opened:
    """A checkpoint's model."""

    name: str
    """For people, without paths of the machine."""
    folder: Path
    path: Path
    """Of the checkpoint."""
    content: Mapping[str, Any]
    """The checkpoint's."""
    experiment: ExperimentConfig
    """An experiment's own; of a run that with which it was trained."""
    tokenizer: Tokenizer | None
    """None where the model came without one."""
    labels: tuple[str, ...] | None = None
    """Of a classification: its classes, or one of a value; None of a model that guesses masked tokens."""
    result: Run | None = None
    """Of a finished fine-tuning."""
    kept: Sentences | None = None
    """What the source of an import did around its encoder."""

    @property
    def is_headless(self) -> bool:
        """Whether it guesses masked tokens with a head that nobody trained: its source had none."""
        return self.labels is None and bool(self.content.get("imported", {}).get("headless"))

    @property
    def sentences(self) -> Sentences:
        """How vectors of texts are made."""
        if self.kept is None:
            return Sentences(self.folder, self.config.pooling, self.longest)
        length = min(self.kept.length or self.longest, self.longest)
        return replace(self.kept, pooling=self.config.pooling, length=length)

    def check_tokenizer(self) -> Tokenizer:
        """The tokenizer of a model that has one.

        Raises:
            UserError: it has none.
        """
        if self.tokenizer is None:
            raise UserError(
                f"{self.path}: was imported without a tokenizer, which is needed here: import it again with --tokenizer"
            )
        return self.tokenizer

    @property
    def between(self) -> str:
        """Of a classification: what stands between its head's two linear maps."""
        return str(self.content.get("head", {}).get("between", "tanh"))

    @property
    def problem(self) -> Problem:
        """What a classification's outputs are, in transformers' words."""
        if self.content.get("head", {}).get("problem_type") == SEVERAL:
            return SEVERAL
        return "regression" if self.labels is not None and len(self.labels) == 1 else "single_label_classification"

    @property
    def longest(self) -> int:
        """Tokens of the longest row; of a run those that it reads, which may be fewer than the network takes."""
        return self.config.max_seq_len if self.result is None else self.result.length

    @property
    def unlike_the_run(self) -> str:
        """What the exported form does not do as the run does; nothing of other models."""
        texts = self.content.get("texts") or {}
        read = f"this form reads only a text's first tokens, {self.longest} at most."
        said = {
            "windows": f"The run classifies the mean over a longer text's windows; {read}",
        }.get((texts.get("cut") or {}).get("rule", "head"), "")
        breaks = "The run takes `<br />` out of a text; do so before you give it to this form."
        padded = None if self.result is None else self.result.settings.pad_to
        rows = f"The run pads every row to {padded} tokens; pad the rows of this form alike."
        return " ".join(filter(None, [said, breaks if texts.get("has_breaks") else "", rows if padded else ""]))

    @property
    def which(self) -> str:
        """Which of a finished run's epochs it is; nothing of other models."""
        if self.result is None:
            return ""
        epochs = {"best": self.result.best.epoch, "last": self.result.last.epoch}
        words = [word for word, epoch in epochs.items() if epoch == self.content["epoch"]]
        count = number_of(self.result.settings.epochs, "epoch")
        return f", {' and '.join(words) or 'neither the best nor the last'} of {count}"

    @property
    def config(self) -> ModelConfig:
        """The network."""
        return self.experiment.model

    @property
    def weights(self) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.content["model"]
        return weights

    def initial(self) -> PretrainingModel | ClassificationModel:
        """The model with initial weights."""
        if self.labels is None:
            return PretrainingModel(self.config, self.experiment.pretraining_setting.objectives)
        return ClassificationModel(self.config, len(self.labels), self.between)

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
        folder: an experiment's, or a fine-tuning run's below its checkpoints.
        checkpoint: "last", an epoch's number, or "best" of a finished run; None: "best" of a finished run, else "last".

    Returns:
        PretrainingModel or ClassificationModel; None in the tokenizer's place where the model came without one.

    Raises:
        UserError: as of `open_model`.
    """
    opened = open_model(Path(folder), None if checkpoint is None else str(checkpoint))
    return opened.build(), opened.tokenizer


def open_model(folder: Path, wanted: str | None = None) -> Opened:
    """Open what a folder has.

    Args:
        folder: an experiment's, with a config.json; or a run's below its checkpoints, such as model/glue/MRPC/….
        wanted: "last", an epoch's number, or "best" of a finished run; None: "best" of a finished run, else "last".

    Raises:
        UserError: neither of the two, no such checkpoint, one that does not fit or has numbers that are not finite, or
            a task without an exported form.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if (folder / CONFIG).is_file():
        return _open_experiment(folder, wanted or "last")
    if any(folder.glob(_WEIGHTS)) or (folder / RECORD).is_file():
        return _open_run(folder, wanted)
    raise UserError(f"{folder}: expected an experiment's folder, with a {CONFIG}, or a run's, with checkpoints")


def _open_experiment(folder: Path, wanted: str) -> Opened:
    experiment = open_experiment(folder)
    path = choose_weights(experiment.checkpoints, wanted)[0]
    content = read_checkpoint(path)
    check_is_of_a_run(content, path)
    now = experiment.config.model_dump(mode="json", by_alias=True)["model"]
    for line in mentioned(content.get("config", {}).get("model", {}), now):
        logger.warning("%s: %s", path, line)
    if _CLASSIFIER in content["model"]:
        raise UserError(f"{path}: expected weights of a pretraining, found those of a classification")
    tokenizer = find_tokenizer(experiment, content["tokenizer"]) if content["tokenizer"] else None
    kept = kept_sentences(experiment.checkpoints / TOKENIZER_FOLDER)
    return _check(Opened(folder.resolve().name, folder, path, content, experiment.config, tokenizer, kept=kept))


def _open_run(folder: Path, wanted: str | None) -> Opened:
    result = read_run(folder)
    if result is None:
        path = choose_weights(folder, wanted or "last")[0]
    else:
        path = _weights_of(folder, result, wanted or "best")
    content = read_checkpoint(path)
    check_is_of_a_run(content, path)
    content = decided(content)
    names = {name.split(".")[0] for name in content["model"] if not name.startswith("encoder.")}
    if names != {"head"} or "head.dense.weight" not in content["model"] or _CLASSIFIER not in content["model"]:
        raise UserError(
            f"{path}: the model's head ({', '.join(sorted(names)) or 'none'}) cannot be exported: only those of "
            "classes and values of texts (tables, GLUE, IMDB) can"
        )
    config = experiment_config(content["config"], str(path))
    if "head" in content:  # an imported model's
        experiment = open_experiment(folder.resolve().parent.parent)
        tokenizer = find_tokenizer(experiment, content["tokenizer"]) if content["tokenizer"] else None
        labels = tuple(content["head"]["labels"])
        kept = kept_sentences(experiment.checkpoints / TOKENIZER_FOLDER)
        return _check(Opened(experiment.name, folder, path, content, config, tokenizer, labels, kept=kept))
    content, labels = _as_in_transformers(recipe_in(content.get("texts"), path).answer, content, path)
    tokenizer_folder = folder / TOKENIZER_FOLDER if result is None else result.tokenizer
    tokenizer, kept = load_tokenizer(tokenizer_folder), kept_sentences(tokenizer_folder)
    # The run learned from texts without it.
    kept = None if kept is None else replace(kept, default_prompt=None)
    name = folder.resolve().name if result is None else f"{result.experiment}-{result.task.replace('/', '-')}"
    return _check(Opened(name, folder, path, content, config, tokenizer, labels, result, kept))


def _weights_of(folder: Path, result: Run, wanted: str) -> Path:
    """The weights of a finished run's best, last or numbered epoch.

    Raises:
        UserError: the run has none of these, or another word.
    """
    there = find_weights(folder)
    numbers = ", ".join(map(str, there)) or "none"
    words = {"best": result.best.epoch, "last": result.last.epoch}
    if wanted not in words and not wanted.isdecimal():
        raise UserError(f"{folder}: expected --checkpoint best, last or one of {numbers}; found {wanted!r}")
    epoch = words[wanted] if wanted in words else int(wanted)
    if epoch not in there:
        raise UserError(
            f"{folder}: --checkpoint {wanted} is epoch {epoch}, whose weights are missing: the run discarded them or "
            f"they were moved (epochs with weights: {numbers})"
        )
    return there[epoch]


def _as_in_transformers(answer: Answer, content: dict[str, Any], path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A checkpoint whose outputs are what transformers takes them for, and their names.

    Raises:
        UserError: of ordered classes, which transformers has not.
    """
    if answer.kind == "ordered":
        raise UserError(
            f"{path}: a model of ordered classes cannot be exported, because its outputs are not scores of classes. "
            "Use run_predict.py or run_serve.py instead"
        )
    if answer.kind == "several":
        return {**content, "head": {"problem_type": SEVERAL}}, answer.names
    if answer.kind == "classes":
        return content, answer.names
    # What was learned is how many deviations a value is from the mean: the last linear map gives the value itself.
    weights = dict(content["model"])
    weights[_CLASSIFIER] = weights[_CLASSIFIER] * answer.deviation
    weights[_CLASSIFIER_BIAS] = weights[_CLASSIFIER_BIAS] * answer.deviation + answer.mean
    return {**content, "model": weights}, ("value",)


def _check(opened: Opened) -> Opened:
    """The same, once its weights are known to fit its config."""
    with torch.device("meta"):  # sizes are all that is needed
        expected = opened.initial().state_dict()
    check_weights(expected, opened.content["model"], opened.path)
    check_finite_weights(opened.content["model"], opened.path)
    return opened
