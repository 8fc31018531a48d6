"""One fine-tuning run in its folder: train, or go on."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np
import torch
from torch import nn

import nystromformer
from nystromformer.config import AttentionConfig, ExperimentConfig
from nystromformer.config.attention import what_decides
from nystromformer.config.attention_text import attention_text
from nystromformer.config.network import NO_EFFECT
from nystromformer.data.tokenizer import TOKENIZER_FILE, save_tokenizer, sha256_as_saved
from nystromformer.files.writing import sha256_of
from nystromformer.model import ClassificationModel, count_parameters
from nystromformer.runs.record import TOKENIZER, EpochMetrics, Origin, Run, read_run
from nystromformer.runs.settings import RunSettings
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import checkpoint_facts, held_folder, placed, say, training_settings
from nystromformer.tasks.experiment.start import Pretrained
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.objective import attach_objective
from nystromformer.tasks.finetuning.plan import PLAN_VERSION
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.start import load_encoder
from nystromformer.tasks.finetuning.target import Guessed, vectors_of
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.training import Device, Group, TrainingSettings, fit
from nystromformer.training.checkpoint import (
    FORMAT,
    epoch_name,
    write_checkpoint,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What all runs of a command share."""

    experiment: Experiment
    device: Device
    group: Group
    pretrained: Pretrained | None
    """What the runs begin with; None: initial weights."""
    config: ExperimentConfig
    """With room for the task's rows and tokens."""
    definition: Definition
    loading: Loading
    sweep: Sweep

    @property
    def budget(self) -> int:
        """Tokens that a device takes at a time: `inst_per_gpu` rows of the pretraining's length."""
        return self.config.gpu_setting.inst_per_gpu * self.experiment.config.model.max_seq_len


def identity(setup: Setup, splits: Splits, settings: RunSettings) -> dict[str, Any]:
    """What is learned, from what and how: another identity is another run, in a folder of its own.

    How the work is divided (processes, `inst_per_gpu`) is not of it, so that a run may go on elsewhere; with dropout it
    changes the last digits, because every micro-batch draws its own masks.
    """
    config, pretraining = setup.config, setup.config.pretraining_setting
    model = config.model.model_dump(mode="json", by_alias=True)
    model["attn_type"] = what_decides(model["attn_type"])
    pretrained = setup.pretrained
    begun = {"checkpoint": pretrained.sha256, "tokenizer": pretrained.tokenizer_sha256} if pretrained else {}
    facts: dict[str, Any] = {
        "task": setup.definition.name,
        **begun,
        "data": splits.fingerprint,
        "length": setup.loading.length,
        "model": {key: value for key, value in model.items() if key not in NO_EFFECT},
        "optimizer": {
            key: getattr(pretraining, key)
            for key in ("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "max_grad_norm")
        },
        # Without what is not asked for.
        "settings": {
            key: value
            for key, value in asdict(settings).items()
            if key not in ("objective", "patience", "freeze") or value is not None
        },
    }
    if pretrained is not None and config.from_cp_positions != "repeat":
        facts["positions"] = config.from_cp_positions
    if config.model.mixed_precision is True:
        facts["precision"] = setup.device.precision  # which config.json leaves to the device
    # Unsorted, the batches are those of every version.
    return facts | {"plan": PLAN_VERSION} if settings.bucket > 1 else facts


def main_metric(definition: Definition, settings: RunSettings) -> str:
    """By which a run's epoch is chosen: the objective's, where it has one."""
    return definition.main_metric if settings.objective is None else settings.objective.name


def _run_folder(setup: Setup, settings: RunSettings, sign: str) -> Path:
    """Where a run's files lie, below the experiment's checkpoints."""
    steps = settings.num_steps
    length = f"epoch{settings.epochs}" if steps is None else f"step{steps}"
    readable = f"batch{settings.batch_size}-lr{settings.learning_rate:g}-{length}-seed{settings.seed}"
    if settings.objective is not None:
        readable = f"{settings.objective.name}-{settings.objective.method}-{readable}"
    if settings.freeze:
        readable = "frozen"
    begun = setup.pretrained.name if setup.pretrained else "scratch"
    return setup.experiment.checkpoints / setup.definition.name / f"{begun}-{readable}-{sign[:8]}"


def words_folder(setup: Setup, splits: Splits) -> Path | None:
    """Where the regression on the words of the training texts is kept; None of a task that keeps none."""
    if not setup.definition.keeps_words:
        return None
    assert isinstance(splits.train, EncodedTexts)
    # The same labels are learned in another way as ordered classes than as classes, and with weights.
    sign = digest({"texts": splits.train.texts.fingerprint, "target": repr(setup.definition.target)})
    return setup.experiment.checkpoints / setup.definition.name / f"tfidf-{sign[:12]}"


def digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def train(setup: Setup, splits: Splits, settings: RunSettings) -> Run | Signals:
    """Train a run to its end, from its newest checkpoint where it has one; returns the signal that stopped it, if one
    did. A finished run is only read.

    Raises:
        UserError: the folder cannot be used, the checkpoint does not fit, or the run has diverged.
    """
    begun, group, config = begun_run(setup, splits, settings), setup.group, setup.config
    folder = begun.folder
    result = group.on_main(lambda: read_run(folder))
    group.on_main(lambda: _keep_tokenizer(setup, begun))
    if result is not None:
        say(group, "%s: done already", folder)
        return result
    if settings.freeze:
        with held_folder(folder, group):
            return _reached(begun, _fit_head(*_build(setup, splits, begun), folder))
    division = {"processes": group.size, "gpu_setting.inst_per_gpu": config.gpu_setting.inst_per_gpu}
    attention = attention_text([each.model_dump(mode="json") for each in config.model.attentions])
    fitted = fit(
        lambda begins: _build(setup, splits, begun),
        _training_settings(setup, splits, settings),
        folder,
        setup.device,
        {"run": begun.identity, **division},
        f"{setup.experiment.name}, {attention} attention, on {setup.definition.name}",
        division.keys(),
        group,
    )
    if fitted.stopped_by is not None:
        return fitted.stopped_by
    return group.on_main(lambda: _reached(begun, fitted.history))


def _keep_tokenizer(setup: Setup, run: Run) -> None:
    """Write the tokenizer that a run reads its texts with to its folder; the same one stays."""
    if setup.loading.vocabulary is None:
        return
    path = run.folder / TOKENIZER / TOKENIZER_FILE
    if not path.is_file() or sha256_of(path) != run.tokenizer_sha256:
        save_tokenizer(setup.loading.vocabulary, path.parent)


def weights_path(run: Run, epoch: int) -> Path:
    """Of the weights after an epoch."""
    return run.folder / f"{epoch_name(epoch)}.model"


def _reached(begun: Run, history: Sequence[Mapping[str, Any]]) -> Run:
    """Write the record of a run that is over, by its validations."""
    run = replace(begun, epochs=tuple(EpochMetrics(one["epoch"], dict(one["metrics"])) for one in history))
    run.write()
    return run


def _build(setup: Setup, splits: Splits, begun: Run) -> tuple[Finetuning, dict[str, Any]]:
    """A run's trainable with its first weights, and what its checkpoints say about where they come from."""
    config, definition, group, pretrained = setup.config, setup.definition, setup.group, setup.pretrained
    settings = begun.settings
    torch.manual_seed(settings.seed)
    model = definition.target.build(config.model)
    if pretrained is not None:
        transfer = group.check(lambda: load_encoder(model, config, pretrained))
        say(group, "encoder of %s (step %d)", pretrained.path, pretrained.step)
        for line in transfer.notes:
            say(group, "  %s", line)
    say(group, "%s parameters, %s", f"{count_parameters(model):,}", setup.device)
    assert splits.train.labels is not None
    num_steps = settings.steps_per_epoch(len(splits.train)) * settings.epochs
    attach_objective(model, settings.objective, splits.train.labels, num_steps)
    facts = checkpoint_facts(config, splits.fingerprint, pretrained.tokenizer_sha256 if pretrained else "")
    return assembled(setup, splits, settings, model), facts | {"texts": begun.texts}


def assembled(setup: Setup, splits: Splits, settings: RunSettings, model: nn.Module) -> Finetuning:
    """The trainable of a model, which is placed on the device."""
    definition = setup.definition
    assert isinstance(model.encoder, nn.Module)
    objective = getattr(model, "objective", None)
    layers = list(model.encoder.layers)  # type: ignore[arg-type]  # a ModuleList
    return Finetuning(
        placed(model, layers, setup.config, setup.device, setup.group),
        definition.target,
        splits.train,
        splits.validation,
        definition.metrics,
        settings,
        setup.budget,
        setup.device,
        setup.group,
        definition.noise,
        objective,
        calibrates=definition.kinds is None,
    )


def _fit_head(finetuning: Finetuning, facts: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Fit a linear head to the vectors of the pretrained encoder, and write the model as weights of epoch 0.

    Returns:
        Its one validation.

    Raises:
        UserError: the file cannot be written.
    """
    # Imported here: scikit-learn takes seconds.
    from nystromformer.tasks.finetuning.linear import put_head

    model, device, held_out = finetuning.model, finetuning.device, finetuning.validation[""]
    assert isinstance(model, ClassificationModel)
    assert isinstance(finetuning.target, Guessed)
    model.eval()
    parts = []
    for examples in (finetuning.train, held_out):
        with torch.inference_mode(), device.autocast():
            vectors = finetuning.computed(examples, np.arange(len(examples)), vectors_of)
        assert examples.labels is not None
        parts.append((vectors.double().numpy(), examples.labels))
    put_head(model, finetuning.target, *parts)
    with torch.no_grad(), device.autocast():
        history = [{"epoch": 0, "step": 1, "metrics": finetuning.validate()}]
    weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    content = {"format": FORMAT, **facts, "step": 1, "epoch": 0, "history": history, "model": weights}
    write_checkpoint(content, folder / f"{epoch_name(0)}.model")
    return history


def _training_settings(setup: Setup, splits: Splits, settings: RunSettings) -> TrainingSettings:
    like_pretraining = training_settings(setup.config)
    per_epoch = settings.steps_per_epoch(len(splits.train))
    num_steps = per_epoch * settings.epochs
    return replace(
        like_pretraining,
        num_steps=num_steps,
        steps_per_epoch=per_epoch,
        steps_per_report=min(like_pretraining.steps_per_report, per_epoch),
        learning_rate=settings.learning_rate,
        warmup_steps=round(settings.warmup * num_steps),
        seed=settings.seed,
        keep_epochs=None,
        optimizer="adamw",
        schedule="linear",
        best_metric=main_metric(setup.definition, settings),
        patience=settings.patience,
    )


def begun_run(setup: Setup, splits: Splits, settings: RunSettings) -> Run:
    """The record of a run that has reached nothing yet."""
    definition, pretrained, model = setup.definition, setup.pretrained, setup.config.model
    facts = identity(setup, splits, settings)
    sign = digest(facts)
    family = {**facts, "settings": {key: value for key, value in facts["settings"].items() if key != "seed"}}
    origin = Origin()
    if pretrained is not None:
        origin = Origin(
            pretrained.path.name, pretrained.epoch, pretrained.step, pretrained.sha256, pretrained.tokenizer_sha256
        )
        if pretrained.family is not None:
            family["checkpoint"] = pretrained.family
    return Run(
        kind=definition.kind,
        choices=dict(definition.choices),
        task=definition.name,
        call=setup.sweep.call,
        experiment=setup.experiment.name,
        origin=origin,
        settings=settings,
        length=setup.loading.length,
        model=model.model_dump(mode="json", by_alias=True),
        attention=tuple(attention.model_dump(mode="json") for attention in model.attentions),
        texts=json.loads(json.dumps(definition.texts(setup.loading))),
        tokenizer_sha256=sha256_as_saved(setup.loading.vocabulary),
        identity=sign,
        family=digest(family)[:16],
        main_metric=main_metric(definition, settings),
        data=splits.fingerprint,
        rows={name: len(examples) for name, examples in splits.named.items()},
        exact_share=exact_shares(splits, model.attentions),
        warnings=tuple(splits.warnings),
        epochs=(),
        version=nystromformer.__version__,
        device=str(setup.device),
        processes=setup.group.size,
        words="" if (words := words_folder(setup, splits)) is None else words.name,
        folder=_run_folder(setup, settings, sign),
    )


def exact_shares(splits: Splits, attentions: Sequence[AttentionConfig]) -> dict[str, float]:
    """Share of each split's examples that every layer computes exact softmax attention for."""
    longest = min((attention.longest_exact for attention in attentions), default=0)
    return {name: float((examples.lengths <= longest).mean()) for name, examples in splits.named.items()}
