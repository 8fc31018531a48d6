"""The way of every fine-tuning command: its tasks are opened, each run of the grid is read or trained, the best ones
predict, and a table is shown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals
from typing import Any, NoReturn

import typer

import nystromformer
from nystromformer.command_line.runtime import this_command
from nystromformer.data.tokenizer import TOKENIZER_FILE, save_tokenizer
from nystromformer.errors import UserError
from nystromformer.runs.figures import shown
from nystromformer.runs.record import TOKENIZER, EpochMetrics, Origin, Run, open_run, ranked
from nystromformer.runs.settings import Settings
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import checkpoint_facts, run_device, training_settings
from nystromformer.tasks.finetuning.calibration import LEAST_ROWS
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.flags import Flags
from nystromformer.tasks.finetuning.opening import Begin, Opened, open_tasks
from nystromformer.tasks.finetuning.predictions import predict
from nystromformer.tasks.finetuning.tables import summary
from nystromformer.tasks.finetuning.trainable import Finetuning, Scored, build_model
from nystromformer.training import fit, join_group
from nystromformer.training.optim import Diverged
from nystromformer.wording import listed


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
    grid: Sequence[Settings],
    begin: Begin | None = None,
) -> NoReturn:
    """Run the grid of each task, one after another, show its table, and end the process with an exit status."""
    with join_group() as group:
        device = run_device(experiment, flags.device, group)
        done, diverged = Done(), list[str]()
        for opened in open_tasks(experiment, tasks, flags, grid, device, group, begin):
            done = run_grid(opened)
            diverged += [f"{opened.task.name}: {text}" for text in done.diverged]
            if done.stopped_by is not None:
                break
            if group.is_main and (done.results or not grid):
                typer.echo(summary(opened, done.results))
        if diverged:
            raise UserError(f"{len(diverged)} of the runs ended without a result:{listed(diverged)}")
    group.leave(0 if done.stopped_by is None else 128 + done.stopped_by)  # as of shells


def run_grid(opened: Opened) -> Done:
    """Train, or go on with, all runs of a task; finished ones are only read. The best combination predicts."""
    group, grid, done = opened.group, opened.grid, Done()
    trained: Finetuning | None = None
    validated: dict[Settings, list[Scored]] = {}
    asked_runs = [ask(opened, settings) for settings in grid]
    if asked_runs:
        first = asked_runs[0]
        group.say("%s, attention %s, on %s: %s", first.experiment, first.attention_text, first.task, first.folder)
    _tell_data(opened)
    for number, asked in enumerate(asked_runs, start=1):
        run = group.check(lambda: open_run(asked.folder, asked=asked))  # noqa: B023
        if opened.baselines and opened.baselines != run.baselines:
            run = replace(run, baselines=opened.baselines)
            if run.epochs:
                group.on_main(run.write)
        if run.epochs:
            group.say("%s: done already", run.folder)
        else:
            trained = None  # one model at a time
            try:
                result = train(opened, run, f"run {number} of {len(grid)}: {asked.settings}")
            except Diverged as error:
                # The others of a grid, and the next tasks, may well do better.
                done.diverged.append(f"{asked.settings}: {error}")
                group.say("%s", error)
                continue
            if isinstance(result, Signals):
                done.stopped_by = result
                return done
            run, trained = result
            validated[run.settings] = trained.validated
        done.results.append(run)
    for run in ranked(done.results)[0] if done.results else ():
        done.results[done.results.index(run)] = predict(opened, run, trained, validated.get(run.settings, ()))
    return done


def ask(opened: Opened, settings: Settings) -> Run:
    """The record of a run that has reached nothing yet."""
    task, splits, model = opened.task, opened.splits, opened.config.model
    objective, begun, origin = settings.objective, opened.pretrained, Origin()
    if begun is not None:
        origin = Origin(begun.path.name, begun.epoch, begun.step, begun.sha256, begun.tokenizer_sha256)
    run = Run(
        kind=task.kind,
        choices=json.loads(json.dumps(dict(task.choices))),
        task=task.name,
        command=this_command(),
        experiment=opened.experiment.name,
        origin=origin,
        settings=settings,
        config=opened.config.model_dump(mode="json", by_alias=True),
        data=splits.fingerprint,
        main_metric=opened.main_metric,
        texts=json.loads(json.dumps(task.texts())),
        precision=opened.device.precision if model.mixed_precision is True else "",
        rows={name: len(examples) for name, examples in splits.named.items()},
        exact_share=opened.exact_share,
        warnings=tuple(splits.warnings),
        version=nystromformer.__version__,
        device=str(opened.device),
        processes=opened.group.size,
    )
    parts = [begun.name if begun else "scratch", "+".join(dict.fromkeys(each.name for each in model.attentions))]
    if settings.freeze:
        parts.append("frozen")
    else:
        parts += [] if objective is None else [f"{objective.name}-{objective.method}"]
        parts.append(f"batch{settings.batch_size}-lr{settings.learning_rate:g}")
        parts.append(f"epoch{settings.epochs}" if settings.steps is None else f"step{settings.steps}")
        parts.append(f"seed{settings.seed}")
    return replace(run, folder=opened.folder / "-".join([*parts, run.identity[:8]]))


def _tell_data(opened: Opened) -> None:
    """Say what is known of the data, and what baselines reach on them."""
    splits, exact = opened.splits, opened.exact_share
    shares = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in exact.items())
    notes = [*splits.notes, f"examples short enough for exact attention in every layer: {shares}"]
    if opened.task.kinds is None and (rows := len(splits.validation[""])) < LEAST_ROWS:
        notes.append(f"probabilities are not calibrated: {rows} validation rows, {LEAST_ROWS} are needed")
    for line in notes:
        opened.group.say("%s", line)
    for line in (*splits.warnings, *splits.test_warnings):
        opened.group.say("warning: %s", line)
    for name, reached in opened.baselines.items():
        metric = opened.task.main_metric
        opened.group.say("baseline: %s: %s %s on the validation data", name, metric, shown(metric, reached[metric]))


def train(opened: Opened, asked: Run, title: str) -> tuple[Run, Finetuning] | Signals:
    """Train a run in its folder, from its newest checkpoint where it has one, to its end: the finished run and its
    model; or the signal that stopped it.
    """
    group, settings, like = opened.group, asked.settings, training_settings(opened.config)
    facts = checkpoint_facts(opened.config, asked.data, asked.origin.tokenizer_sha256) | {"texts": asked.texts}
    finetuning = build_model(opened, settings, opened.pretrained)

    def begin(is_new: bool) -> tuple[Finetuning, Mapping[str, Any]]:
        group.on_main(asked.write)
        finetuning.epoch = -1
        return finetuning, facts

    if settings.freeze:
        from nystromformer.tasks.finetuning.linear import fit_head  # scikit-learn takes seconds

        history = fit_head(begin, asked.folder)
    else:
        examples = len(opened.splits.train)
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
            best_metric=opened.main_metric,
        )
        division = {"processes": group.size, "gpu_setting.inst_per_gpu": opened.config.gpu_setting.inst_per_gpu}
        of_run = {"run": asked.identity, **division}
        fitted = fit(begin, wanted, asked.folder, opened.device, of_run, title, division.keys(), group)
        if fitted.stopped_by is not None:
            return fitted.stopped_by
        history = fitted.history

    def finish() -> Run:
        sha256, vocabulary = "", opened.loading.vocabulary
        if vocabulary is not None:
            sha256 = save_tokenizer(vocabulary, asked.folder / TOKENIZER)[TOKENIZER_FILE].sha256
        epochs = tuple(EpochMetrics(one["epoch"], dict(one["metrics"])) for one in history)
        done = replace(asked, tokenizer_sha256=sha256, epochs=epochs)
        done.write()
        return done

    run = group.on_main(finish)
    if finetuning.epoch is not None:
        finetuning.epoch = run.last.epoch
    return run, finetuning
