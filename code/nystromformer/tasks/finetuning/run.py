"""The way of every fine-tuning command: its tasks are opened, each run of the grid is read or trained, the best ones
predict, and a table is shown.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals
from typing import Any, NoReturn

import numpy as np
import torch
import typer
from torch import Tensor

from nystromformer.config.attention_text import attention_text
from nystromformer.data.tokenizer import TOKENIZER_FILE, save_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of
from nystromformer.model import ClassificationModel, count_parameters
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import TOKENIZER, EpochMetrics, Run, open_run, ranked
from nystromformer.runs.settings import Settings
from nystromformer.tables import terminal_width
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import checkpoint_facts, held_folder, run_device, training_settings
from nystromformer.tasks.experiment.start import ENCODER, Pretrained, fit_weights, pretrained_in
from nystromformer.tasks.finetuning.baselines import measure_baselines, tell_words
from nystromformer.tasks.finetuning.calibration import calibration_error_of
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.flags import Flags
from nystromformer.tasks.finetuning.objective import attach_objective
from nystromformer.tasks.finetuning.opening import Begin, Opened, open_tasks
from nystromformer.tasks.finetuning.predictions import PREDICTIONS, write_predictions
from nystromformer.tasks.finetuning.tables import guessers_table, table
from nystromformer.tasks.finetuning.target import Guessed, TokenLabels, vectors_of
from nystromformer.tasks.finetuning.trainable import Finetuning, Scored
from nystromformer.training import fit, join_group
from nystromformer.training.checkpoint import FORMAT, epoch_name, load_weights, read_checkpoint, write_checkpoint
from nystromformer.training.distributed import place, unwrapped
from nystromformer.training.optim import Diverged
from nystromformer.training.state import Validated
from nystromformer.wording import listed, number_of

logger = logging.getLogger(__name__)

_WORDS = "encoder.embeddings.word.weight"


@dataclass
class Done:
    """What became of a grid."""

    results: list[Run] = field(default_factory=list)
    stopped_by: Signals | None = None
    diverged: list[str] = field(default_factory=list)
    """What is to be said of the runs that came to no result."""


def finetune(
    experiment: Experiment,
    tasks: Sequence[Definition],
    flags: Flags,
    usual: Settings = Settings(),  # noqa: B008  # immutable
    begin: Begin | None = None,
    show: Callable[[str], None] = typer.echo,
) -> NoReturn:
    """Run the grid of each task, one after another, show its table, and end the process with an exit status.

    Args:
        usual, begin: as of `open_tasks`.
        show: prints a text; of several processes only the main one's is called.

    Raises:
        UserError: anything that does not fit; the tasks before it are done.
    """
    with join_group() as group:
        device = run_device(experiment, flags.device, group)
        status, diverged = 0, list[str]()
        for opened in open_tasks(experiment, tasks, flags, usual, device, group, begin):
            done = run_grid(opened)
            diverged += [f"{opened.task.name}: {text}" for text in done.diverged]
            if done.stopped_by is not None:
                status = 128 + done.stopped_by
                break
            if group.is_main and done.results:
                show(summary(opened, done.results))
        if diverged:
            raise UserError(f"{len(diverged)} of the runs ended without a result:{listed(diverged)}")
    group.leave(status)


def finetune_in_phases(
    experiment: Experiment,
    first: Definition,
    second: Definition,
    flags: Flags,
    usual: Settings,
    epochs: int,
    show: Callable[[str], None] = typer.echo,
) -> NoReturn:
    """Of each seed, train on a task that needs no labels, and from that run's encoder on the one that learns them.

    Args:
        usual: as of `open_tasks`.
        epochs: of the first phase; all else is as of the second.

    Raises:
        UserError: anything that does not fit, or a run has diverged.
    """
    with join_group() as group:
        device = run_device(experiment, flags.device, group)
        without_labels = replace(flags, epoch=epochs, baselines=False, objective=None, patience=None)
        (labels,) = open_tasks(experiment, [second], flags, usual, device, group)
        (events,) = open_tasks(experiment, [first], without_labels, usual, device, group)
        results: list[Run] = []
        stopped_by = None
        for before, after in zip(list(events.grid), list(labels.grid), strict=True):
            events.grid, labels.grid = [before], [after]
            done = run_grid(events)
            if done.results:
                run = done.results[0]
                path = run.folder / f"{epoch_name(run.last.epoch)}.model"
                labels.pretrained = group.check(lambda: pretrained_in(read_checkpoint(path), path, run.family))  # noqa: B023
                done = run_grid(labels)
            if done.diverged:
                raise UserError(done.diverged[0])
            if (stopped_by := done.stopped_by) is not None:
                break
            results += done.results
        if stopped_by is None and group.is_main:
            show(summary(labels, results))
    group.leave(0 if stopped_by is None else 128 + stopped_by)


def compare_baselines(
    experiment: Experiment, task: Definition, flags: Flags, show: Callable[[str], None] = typer.echo
) -> NoReturn:
    """Measure the guessers alone, show their table, and end the process with an exit status.

    Raises:
        UserError: anything that does not fit.
    """
    with join_group() as group:
        device = run_device(experiment, flags.device, group)
        (opened,) = open_tasks(experiment, [task], flags, Settings(), device, group)
        _tell_data(opened)
        _ = opened.test  # which all processes read
        if group.is_main:
            show(f"\n{task.name}, in percent\n{guessers_table(measure_baselines(opened), terminal_width())}")
    group.leave(0)


def summary(opened: Opened, results: Sequence[Run]) -> str:
    """What is shown of finished runs, with the guessers beside them where they are asked for."""
    has_guessers = opened.flags.baselines or opened.task.keeps_words
    baselines = measure_baselines(opened) if has_guessers else None
    begun = results[0].origin.checkpoint or "from initial weights"
    title = f"{opened.task.name}, {opened.experiment.folder}, {begun}"
    return f"\n{title}\n{table(results, baselines, terminal_width())}"


def run_grid(opened: Opened) -> Done:
    """Train, or go on with, all runs of a task; finished ones are only read. Of a grid the best combination predicts.

    Raises:
        UserError: a run cannot go on.
    """
    group, grid, done = opened.group, opened.grid, Done()
    trained: Finetuning | None = None
    validated: dict[Settings, list[Scored]] = {}
    is_alone = len({settings.combination for settings in grid}) == 1
    for number, settings in enumerate(grid, start=1):
        asked = opened.ask(settings)
        attention = attention_text(asked.attention)
        group.say("%s, attention %s, on %s: %s", asked.experiment, attention, asked.task, asked.folder)
        if number == 1:
            _tell_data(opened)
        run = group.check(lambda: open_run(asked.folder, asked=asked))  # noqa: B023
        if run.epochs:
            group.say("%s: done already", run.folder)
            group.on_main(lambda: _keep_tokenizer(opened, run))  # noqa: B023
        else:
            trained = None  # one model at a time
            try:
                result = train(opened, asked, f"run {number} of {len(grid)}: {settings}")
            except Diverged as error:
                # The others of a grid, and the next tasks, may well do better.
                done.diverged.append(f"{settings}: {error}")
                group.say("%s", error)
                continue
            if isinstance(result, Signals):
                done.stopped_by = result
                return done
            run, trained = result
            validated[settings] = trained.validated
        done.results.append(predict(opened, run, trained, validated) if is_alone else run)
    if done.results and not is_alone:
        for run in ranked(done.results)[0]:
            done.results[done.results.index(run)] = predict(opened, run, trained, validated)
    return done


def _tell_data(opened: Opened) -> None:
    """Say what is known of the data, and fit the regression on words that a task keeps."""
    exact = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in opened.exact_share.items())
    for line in (*opened.splits.notes, f"examples short enough for exact attention in every layer: {exact}"):
        opened.group.say("%s", line)
    for line in (*opened.splits.warnings, *opened.splits.test_warnings):
        opened.group.say("warning: %s", line)
    opened.group.on_main(lambda: tell_words(opened))


def train(opened: Opened, asked: Run, title: str) -> tuple[Run, Finetuning] | Signals:
    """Train a run in its folder, from its newest checkpoint where it has one, to its end.

    Args:
        title: as of `fit`.

    Returns:
        The finished run and its model; or the signal that stopped it.

    Raises:
        UserError: the folder cannot be used, a checkpoint does not fit, or the run has diverged.
    """
    group, settings, like = opened.group, asked.settings, training_settings(opened.config)
    facts = checkpoint_facts(opened.config, asked.data, asked.origin.tokenizer_sha256) | {"texts": asked.texts}
    finetuning = build_model(opened, settings, opened.pretrained)

    def write() -> None:
        _keep_tokenizer(opened, asked)
        asked.write()

    def begin(is_new: bool) -> tuple[Finetuning, Mapping[str, Any]]:
        group.on_main(write)
        finetuning.holds = settings, None
        return finetuning, facts

    if settings.freeze:
        with held_folder(asked.folder, group):
            history = fit_head(*begin(True), asked.folder)
    else:
        examples = len(finetuning.train)
        per_epoch, num_steps = settings.steps_per_epoch(examples), settings.num_steps(examples)
        wanted = replace(
            like,
            num_steps=num_steps,
            steps_per_epoch=per_epoch,
            steps_per_report=min(like.steps_per_report, per_epoch),
            learning_rate=settings.learning_rate,
            warmup_steps=round(settings.warmup * num_steps),
            seed=settings.seed,
            keep_epochs=None,
            optimizer="adamw",
            schedule="linear",
            best_metric=finetuning.main_metric,
            patience=settings.patience,
        )
        inst_per_gpu = opened.config.gpu_setting.inst_per_gpu
        division = {"processes": group.size, "gpu_setting.inst_per_gpu": inst_per_gpu}
        of_run = {"run": asked.identity, **division}
        fitted = fit(begin, wanted, asked.folder, opened.device, of_run, title, division.keys(), group)
        if fitted.stopped_by is not None:
            return fitted.stopped_by
        history = fitted.history
    run = replace(asked, epochs=tuple(EpochMetrics(one["epoch"], dict(one["metrics"])) for one in history))
    group.on_main(run.write)
    finetuning.holds = finetuning.holds and (settings, run.last.epoch)
    return run, finetuning


def build_model(opened: Opened, settings: Settings, start: Pretrained | None) -> Finetuning:
    """A run's model, with the first weights that its seed decides, on the device.

    Args:
        start: whose encoder replaces the model's. A longer position table repeats, as for `from_cp`; tokens beyond the
            checkpoint's vocabulary keep the values that they have.

    Raises:
        UserError: it is of another architecture (lists all that differs).
    """
    config, task, train = opened.config, opened.task, opened.splits.train
    torch.manual_seed(settings.seed)
    model = task.target.build(config.model)
    if start is not None:
        initial = {name: weight for name, weight in model.state_dict().items() if name.startswith(ENCODER)}
        source, then = dict(start.encoder), dict(start.model_config)
        added = config.model.vocab_size - then["vocab_size"]
        if added > 0 and _WORDS in source:
            source[_WORDS] = torch.cat([source[_WORDS], initial[_WORDS][-added:]])
            then["vocab_size"] = config.model.vocab_size
        may_differ = "max_seq_len, num_sen_type, attn_type and its parameters"
        transfer = fit_weights(start.path, source, then, config, initial, may_differ)
        model.load_state_dict(transfer.weights, strict=False)
        for line in (f"encoder of {start.path} (step {start.step})", *(f"  {note}" for note in transfer.notes)):
            opened.group.say("%s", line)
    opened.group.say("%s parameters, %s", f"{count_parameters(model):,}", opened.device)
    assert train.labels is not None
    objective = attach_objective(model, settings.objective, train.labels, settings.num_steps(len(train)))
    layers = list(model.encoder.layers)  # type: ignore[arg-type, union-attr]  # a ModuleList
    return Finetuning(
        model=place(
            *(model, layers, config.gpu_setting.parallel, config.model.compile, opened.device, opened.group),
        ),
        target=task.target,
        train=train,
        validation=opened.splits.validation,
        score_metrics=task.metrics,
        settings=settings,
        # Tokens that a device takes at a time: `inst_per_gpu` rows of the pretraining's length.
        budget=config.gpu_setting.inst_per_gpu * opened.experiment.config.model.max_seq_len,
        device=opened.device,
        group=opened.group,
        noise=task.noise,
        objective=objective,
        calibrates=task.kinds is None,
        main_metric=task.main_metric if settings.objective is None else settings.objective.name,
    )


def fit_head(finetuning: Finetuning, facts: Mapping[str, Any], folder: Path) -> list[Validated]:
    """Fit a linear head to the vectors of the pretrained encoder, and write the model as weights of epoch 0; returns
    its one validation.

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
        history: list[Validated] = [{"epoch": 0, "step": 1, "metrics": finetuning.validate()}]
    weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    content = {"format": FORMAT, **facts, "step": 1, "epoch": 0, "history": history, "model": weights}
    write_checkpoint(content, folder / f"{epoch_name(0)}.model")
    return history


def _keep_tokenizer(opened: Opened, run: Run) -> None:
    """Write the tokenizer that a run reads its texts with to its folder; the same one stays."""
    path = run.folder / TOKENIZER / TOKENIZER_FILE
    if opened.loading.vocabulary is not None and not (path.is_file() and sha256_of(path) == run.tokenizer_sha256):
        save_tokenizer(opened.loading.vocabulary, path.parent)


def predict(
    opened: Opened, run: Run, trained: Finetuning | None, validated: Mapping[Settings, Sequence[Scored]]
) -> Run:
    """The run with its predictions, which are made where they are not there, of these test data and by the weights that
    are asked for. Where there are no test data, those of earlier ones stay.

    Args:
        trained: a model of the grid, which has the last weights of the run that was trained last.
        validated: what the grid's trainings have scored, which is not scored again.

    Raises:
        UserError: the weights are not there any more, or do not fit.
    """
    if not opened.task.predicts:
        return run
    group, splits, tested, chosen = opened.group, opened.splits, run.tested, run.choose(opened.flags.predict)
    if tested is not None and tested.files and tested.epoch == chosen.epoch:
        is_same = (tested.data, tested.shown) == (opened.tested, splits.shown)
        is_without = not opened.test and splits.shown == tested.shown.partition(" ")[0]
        if (is_same or is_without) and group.on_main(
            lambda: all((run.folder / name).is_file() for name in tested.files)
        ):
            return run
    with held_folder(run.folder, group):
        known = (each for metrics, each in validated.get(run.settings, ()) if metrics == chosen.metrics)
        scores = evaluate(opened, run, chosen, trained, next(known, {}))
        done = group.on_main(lambda: write_predictions(opened, run, chosen, scores))
        group.say("predictions: %s", run.folder / PREDICTIONS)
        return done


def evaluate(
    opened: Opened, run: Run, chosen: EpochMetrics, trained: Finetuning | None, known: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Scores of the validation data, by their endings, and of the test data, by their names, by the weights of an
    epoch.

    Args:
        trained: as of `predict`.
        known: those of the validation data, if they are.

    Raises:
        UserError: as of `predict`.
    """
    task, path = opened.task, run.folder / f"{epoch_name(chosen.epoch)}.model"
    finetuning = trained or build_model(opened, run.settings, None)
    asked = {**({} if known else opened.splits.validation), **opened.test}
    if asked and finetuning.holds != (run.settings, chosen.epoch):
        content, inner = opened.group.check(lambda: read_checkpoint(path)), unwrapped(finetuning.model)
        own = {name: each for name, each in inner.state_dict().items() if name.startswith("objective.")}
        opened.group.check(lambda: load_weights(inner, content["model"] | own, path))
        finetuning.holds = run.settings, chosen.epoch
    count = number_of(sum(map(len, (opened.splits.validation | dict(opened.test)).values())), "example")
    opened.group.say("predicting %s with the weights of %s", count, path.name)
    finetuning.model.eval()
    with torch.no_grad(), opened.device.autocast():
        scores = {**known, **{name: finetuning.scores(examples) for name, examples in asked.items()}}
    threshold, temperature = chosen.metrics.get(THRESHOLD, 0.0), chosen.metrics.get(TEMPERATURE)
    if isinstance(task.target, TokenLabels):
        return {name: each - threshold for name, each in scores.items()}
    if task.kinds is not None:  # what these write are probabilities, which stay as they are
        return scores
    # As `decided` has it in the weights, by which a run on text predicts other texts.
    shifted = {name: each - torch.tensor([0.0, threshold]) if threshold else each for name, each in scores.items()}
    if temperature is None:
        return shifted
    scaled = {name: each / temperature for name, each in shifted.items()}
    labels = opened.splits.validation[""].labels
    assert labels is not None
    right = torch.from_numpy(labels)
    errors = [100 * calibration_error_of(task.target, each[""], right) for each in (shifted, scaled)]
    text = "calibration error on the validation data: %.1f %%, %.1f %% after dividing scores by %.2f"
    opened.group.say(text, *errors, temperature)
    return scaled
