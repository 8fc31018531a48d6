"""A fine-tuning run as the training loop sees it.

Shapes: I examples of a batch, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.model import count_parameters
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import EpochMetrics, Run
from nystromformer.runs.settings import Settings
from nystromformer.tasks.experiment.start import ENCODER, Pretrained, fit_weights
from nystromformer.tasks.finetuning.calibration import temperature_of
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.objective import ObjectiveLoss, adjusted, choose_threshold, log_odds, measure
from nystromformer.tasks.finetuning.opening import Opened
from nystromformer.tasks.finetuning.plan import epoch_batches, fit_to_budget
from nystromformer.training import Step
from nystromformer.training.checkpoint import epoch_name, load_weights, read_checkpoint
from nystromformer.training.group import place, unwrapped
from nystromformer.training.trainable import Batch, prefetch_batches, prefetched
from nystromformer.wording import number_of

Compute = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
Scored = tuple[dict[str, float], dict[str, Tensor]]
"""Metrics, and the scores of the splits by their endings."""
_WORDS = "encoder.embeddings.word.weight"


def build_model(opened: Opened, settings: Settings, start: Pretrained | None) -> Finetuning:
    """A run with the first weights that its seed decides, on the device; the encoder of `start` replaces the model's. A
    longer position table repeats, as for `from_cp`; tokens beyond its vocabulary keep the values that they have.
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
        transfer = fit_weights(start.path, source, then, config, initial)
        model.load_state_dict(transfer.weights, strict=False)
        for line in (f"encoder of {start.path} (step {start.step})", *(f"  {note}" for note in transfer.notes)):
            opened.group.say("%s", line)
    opened.group.say("%s parameters, %s", f"{count_parameters(model):,}", opened.device)
    objective = None
    if settings.objective is not None and settings.objective.method != "cross_entropy":
        assert train.labels is not None
        warm_steps = round(settings.objective.warm_start * settings.num_steps(len(train)))
        objective = model.objective = ObjectiveLoss(settings.objective, train.labels, warm_steps)
    layers = list(model.encoder.layers)  # type: ignore[arg-type, union-attr]  # a ModuleList
    placed = place(model, layers, config.model.compile, opened.device, opened.group)
    return Finetuning(placed, opened, settings, objective)


@dataclass(eq=False)
class Finetuning:
    """What the loop needs of a fine-tuning run."""

    model: nn.Module
    opened: Opened
    settings: Settings
    objective: ObjectiveLoss | None = None
    epoch: int | None = None
    """Whose weights it has, of the run of `settings`; None: its first ones, -1 while it is trained."""
    validated: list[Scored] = field(default_factory=list)
    """Metrics and scores of the best validation and of the last one."""
    _planned: tuple[int, list[Ints]] = (-1, [])

    def steps(self, first: int, last: int) -> Iterator[Step]:
        pinned = self.opened.device.device.type == "cuda"
        steps = (self._step(number) for number in range(first, last))
        return prefetched(step.pin_memory() if pinned else step for step in steps)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        target = self.opened.task.target
        scores_IC, each_I = target.learn(self.model, batch)
        if self.objective is not None:
            each_I = self.objective(log_odds(scores_IC), batch["labels"], each_I)
        losses_I = each_I * batch["weights"]
        asked_I = batch["weights"]
        sums = [losses_I.detach().sum(), torch.zeros_like(asked_I[0]), asked_I.sum()]
        if target.has_accuracy:
            # An example whose tokens are to be guessed is asked for no class.
            asked_I = asked_I * ~batch["hidden"] if "hidden" in batch else asked_I
            sums[1] = ((scores_IC.detach().argmax(-1) == batch["labels"]) * asked_I).sum()
            sums += [asked_I.sum()] if "hidden" in batch else []
        return losses_I.sum() / batch["count"], torch.stack(sums)

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        loss, right, count, *answered = sums
        metrics = {"loss": loss / count}
        (asked,) = answered or (count,)
        if self.opened.task.target.has_accuracy and asked:
            metrics["accuracy"] = right / asked
        return metrics | ({} if self.objective is None else self.objective.variables())

    def validate(self) -> dict[str, float]:
        task, figures, scores = self.opened.task, dict[str, float](), dict[str, Tensor]()
        for ending, examples in self.opened.splits.validation.items():
            scores[ending] = scores_NC = self.scores(examples)
            labels_N = torch.from_numpy(examples.labels)
            metrics = {"loss": float(task.target.losses(scores_NC, labels_N).mean(dtype=torch.float64))}
            if math.isfinite(metrics["loss"]):  # else the loop says that the run has diverged
                own: dict[str, float] = {}
                if (wanted := self.settings.objective) is not None and not ending:
                    odds, labels = log_odds(scores_NC).numpy(), labels_N.numpy()
                    chosen = choose_threshold(wanted, odds, labels)
                    own = {**measure(wanted, odds, labels, chosen), THRESHOLD: chosen}
                if task.kinds is None and not ending:
                    scores_NC = adjusted(scores_NC, own)
                    found = temperature_of(task.target, scores_NC, labels_N)
                    own |= {} if found is None else {TEMPERATURE: found}
                metrics |= {**task.metrics(scores_NC, labels_N), **own}
            figures |= {name + ending: value for name, value in metrics.items()}
        best, now, main = self.validated[:1], (figures, scores), self.opened.main_metric
        is_best = not best or figures.get(main, -math.inf) > best[0][0][main]
        self.validated = [now, now] if is_best else [*best, now]
        return figures

    def evaluate(self, run: Run, chosen: EpochMetrics, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scores of the validation data, by their endings, and of the test data, by their names, by the weights of a
        run's epoch, which are read where the model has others.
        """
        opened, task, path = self.opened, self.opened.task, run.folder / f"{epoch_name(chosen.epoch)}.model"
        asked = {**({} if known else opened.splits.validation), **opened.test}
        if asked and (self.settings, self.epoch) != (run.settings, chosen.epoch):
            content, inner = opened.group.check(lambda: read_checkpoint(path)), unwrapped(self.model)
            own = {name: each for name, each in inner.state_dict().items() if name.startswith("objective.")}
            opened.group.check(lambda: load_weights(inner, content["model"] | own, path))
            self.settings, self.epoch = run.settings, chosen.epoch
        count = number_of(sum(map(len, (opened.splits.validation | dict(opened.test)).values())), "example")
        opened.group.say("predicting %s with the weights of %s", count, path.name)
        self.model.eval()
        with torch.no_grad(), opened.device.autocast():
            scores = {**known, **{name: self.scores(examples) for name, examples in asked.items()}}
        if task.kinds is not None:  # what these write are probabilities, which stay as they are
            return scores
        if temperature := chosen.metrics.get(TEMPERATURE):
            opened.group.say("probabilities are calibrated: scores are divided by %.2f", temperature)
        return {name: adjusted(each, chosen.metrics) for name, each in scores.items()}

    def scores(self, examples: Examples, compute: Compute | None = None) -> Tensor:
        """Scores of all examples of a split in their order, (n, C) float32 on the CPU; -inf for what is no candidate.

        All processes call this together, in evaluation mode, without gradients.
        """
        compute = compute or self.opened.task.target.scores
        everyone, group = np.arange(len(examples)), self.opened.group
        parts = self._parts(examples, everyone)
        # Each process takes parts of all lengths. One that has an empty part scores another for show, because DDP sends
        # buffers around in each call.
        mine = parts[group.rank :: group.size]
        made = (examples.batch(part if len(part) else everyone[:1], self.settings.pad_to) for part in mine)
        parts_IC: list[Tensor] = []
        prepared = prefetch_batches(made, self.opened.device.device)
        for part, batch in zip(mine, prepared, strict=True):
            parts_IC.append(compute(self.model, batch).float()[: len(part)])
        (width,) = group.highest(max(scores.shape[1] for scores in parts_IC))
        total_NC = parts_IC[0].new_zeros(len(examples), width)
        for part, scores_IC in zip(mine, parts_IC, strict=True):
            padded_IC = total_NC.new_full((len(part), width), float("-inf"))
            padded_IC[:, : scores_IC.shape[1]] = scores_IC
            total_NC[torch.from_numpy(part).to(total_NC.device)] = padded_IC
        return group.sum(total_NC).cpu()

    def _parts(self, examples: Examples, numbers: Ints) -> list[Ints]:
        """Some examples, cut for the devices."""
        size, pad_to = self.opened.group.size, self.settings.pad_to
        return fit_to_budget(numbers, examples.lengths, examples.rows, self.opened.budget, size, pad_to)

    def _batches(self, passed: int) -> list[Ints]:
        """The plan of a pass over the data after so many others, made once for all of its steps."""
        settings, train = self.settings, self.opened.splits.train
        if self._planned[0] != passed:
            stratified = settings.objective is not None and settings.objective.stratify
            sizes = settings.batch_size, settings.seed, passed, settings.bucket
            self._planned = passed, epoch_batches(train.lengths, *sizes, train.labels if stratified else None)
        return self._planned[1]

    def _step(self, number: int) -> Step:
        train, group = self.opened.splits.train, self.opened.group
        passed, index = divmod(number, self.settings.steps_per_pass(len(train)))
        numbers = self._batches(passed)[index]
        parts = self._parts(train, numbers)
        share = len(parts) // group.size
        mine = parts[group.rank * share : (group.rank + 1) * share]
        count = torch.tensor(float(len(numbers)))
        micro_batches = [self._batch(part, count, number) for part in mine]
        return Step(micro_batches, tokens=int(train.tokens[numbers].sum()))

    def _batch(self, part: Ints, count: Tensor, step: int) -> dict[str, Tensor]:
        """A micro-batch; an empty one is an example that does not count, so that every process computes something."""
        train, weights = self.opened.splits.train, torch.ones(len(part))
        if not len(part):
            part, weights = np.argmin(train.lengths * train.rows, keepdims=True), torch.zeros(1)
        batch = self.opened.task.noise(train.batch(part, self.settings.pad_to), part, self.settings.seed, step)
        return batch | {"weights": weights, "count": count}
