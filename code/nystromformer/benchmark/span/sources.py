"""Trained models with the rows of their validation data: pretrained ones, and runs of fine-tuning."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nystromformer.benchmark.checkpoints import encode_validation_rows, open_one_checkpoint
from nystromformer.benchmark.questions.span import Span
from nystromformer.config import ModelConfig
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.model import Encoder
from nystromformer.runs.record import Run, open_run
from nystromformer.tasks.declaration import task_of
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.finetuning.definition import Definition, Loading
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.pretraining.validation import load_checkpoint
from nystromformer.training import Device
from nystromformer.training.archive import read_checkpoint

_TOKENS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Source:
    """A model, and what computes it on so many rows of its validation data."""

    name: str
    attention: str
    """Of its layers."""
    trained: str
    """On what."""
    encoder: Encoder
    run: Callable[[int], None]


def open_pretrained(folder: Path, dataset: Path | None, checkpoint: str, device: Device) -> Source:
    """An experiment's checkpoint, on masked validation rows.

    Raises:
        UserError: no such checkpoint or rows.
    """
    experiment = open_experiment(folder)
    opened = open_one_checkpoint(experiment, dataset, device, checkpoint)
    model, content = load_checkpoint(experiment, opened.checkpoints[0], device)
    attention = _attentions(experiment.config.model)
    then = _attentions(ModelConfig.model_validate(content["config"]["model"]))
    if then != attention:
        attention = f"{attention} (trained with {then})"

    def run(rows: int) -> None:
        for _ in encode_validation_rows(opened, model.encoder, rows):
            pass

    return Source(folder.resolve().name, attention, "pretraining", model.encoder, run)


def open_finetuned(folder: Path, data: Mapping[str, Path | None], device: Device) -> Source:
    """A finished run's tested weights, on its task's validation data.

    Args:
        folder: with result.json.
        data: of each kind of task, by its flag's name, where its files are.

    Raises:
        UserError: no finished run there, its weights were discarded, or its data is not named.
    """
    result = open_run(folder, f"--run {folder}")
    path = folder / f"cp-{result.tested_epoch:04d}.model"
    if not path.exists():
        raise UserError(
            f"--run {folder}: its weights {path.name} are missing: fine-tune it again without --discard_weights"
        )
    if result.choices.get("as_published"):
        raise UserError(f"--run {folder}: expected a run without --as_published, which attends to padding")
    task = _task(result, data)
    content = read_checkpoint(path)
    config = ModelConfig.model_validate(content["config"]["model"])
    model = task.target.build(config)
    model.load_state_dict(content["model"])
    model.to(device.device).eval()
    encoder = model.encoder
    assert isinstance(encoder, Encoder)

    def run(rows: int) -> None:
        vocabulary = load_tokenizer(result.tokenizer) if task.kinds is None else None
        cache = folder.parent / "cache"
        loading = Loading(vocabulary, result.length, config.num_sen_type > 1, None, cache, _most_global(config))
        task.prepare(loading)
        # Which training reviews were held out is the run's affair: those of test never taught it anything.
        examples = task.test(loading)["test"] if result.kind == "imdb" else task.load(loading).validation[""]
        # Drawn, because neighbours come from one document or of one class.
        chosen = np.sort(np.random.default_rng(0).permutation(len(examples))[:rows])
        for part in fit_to_budget(chosen, examples.lengths, examples.rows, _TOKENS_AT_A_TIME, 1, None):
            batch = {name: tensor.to(device.device) for name, tensor in examples.batch(part).items()}
            task.target.scores(model, batch)

    return Source(result.experiment, _attentions(config), result.task, encoder, run)


def _task(result: Run, data: Mapping[str, Path | None]) -> Definition:
    source, declared = data.get(result.kind), task_of(result.kind)
    if declared.opens is None:
        raise UserError(
            f"{result.folder}: runs of {declared.file} cannot be used here, because their data cannot be opened again"
        )
    if source is None:
        raise UserError(
            f"--run {result.folder}: it was trained on {result.task}: expected --{result.kind} DIR with its data"
        )
    opened: Definition = declared.opens(result.choices, source)
    return opened


def _attentions(config: ModelConfig) -> str:
    return ", ".join(dict.fromkeys(each.name for each in config.attentions))


def _most_global(config: ModelConfig) -> int | None:
    return min((most for each in config.attentions if (most := each.most_global) is not None), default=None)


def open_sources(settings: Span, dataset: Path | None, device: Device) -> Iterator[Source]:
    """One after the other, so that one model is held at a time."""
    data = {name: getattr(settings, name) for name in ("glue", "imdb", "wikihop", "lra")}
    for folder in settings.models:
        yield open_pretrained(folder, dataset, settings.checkpoint, device)
    for folder in settings.runs:
        yield open_finetuned(folder, data, device)
