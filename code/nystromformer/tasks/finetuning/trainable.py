"""A fine-tuning run as the training loop sees it.

Shapes: I examples of a batch, C outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.settings import Settings
from nystromformer.tasks.finetuning.calibration import temperature_of
from nystromformer.tasks.finetuning.examples import Examples, Ints, Labels
from nystromformer.tasks.finetuning.objective import ObjectiveLoss, choose_threshold, lacking, measure, scores_of
from nystromformer.tasks.finetuning.plan import epoch_batches, fit_to_budget
from nystromformer.tasks.finetuning.target import Target
from nystromformer.training import Device, Group, Step
from nystromformer.training.prefetch import prefetch_batches, prefetched
from nystromformer.training.trainable import Batch

Metrics = Callable[[Tensor, Tensor], dict[str, float]]
Noise = Callable[[dict[str, Tensor], Ints, int, int], dict[str, Tensor]]

Scored = tuple[dict[str, float], dict[str, Tensor]]
"""Metrics, and the scores of the splits by their endings."""


@dataclass(eq=False)
class Finetuning:
    """What the loop needs of a fine-tuning run."""

    model: nn.Module
    """As `distribute` gives it, of the target's kind."""
    target: Target
    train: Examples
    validation: Mapping[str, Examples]
    """The splits to validate on, by the ending of their metrics' names ("" for the first)."""
    score_metrics: Metrics
    """From scores (n, C) and labels (n,) of a split."""
    settings: Settings
    budget: int
    """Tokens, padding included, that the device takes at a time."""
    device: Device
    group: Group = Group()  # noqa: RUF009  # immutable
    noise: Noise | None = None
    """What training does to a batch, see Definition."""
    objective: ObjectiveLoss | None = None
    """Of the model, where it learns one."""
    calibrates: bool = False
    """Whether each validation chooses a temperature."""
    main_metric: str = "accuracy"
    """Of the first split, the higher the better."""
    holds: tuple[Settings, int | None] | None = None
    """Of a model that does not have its first weights any more: the settings of the run whose weights it has, and their
    epoch; None while it is trained."""
    validated: list[Scored] = field(default_factory=list)
    """Metrics and scores of the best validation and of the last one."""
    _planned: tuple[int, list[Ints]] = (-1, [])

    @property
    def steps_per_pass(self) -> int:
        return self.settings.steps_per_pass(len(self.train))

    def steps(self, first: int, last: int) -> Iterator[Step]:
        pinned = self.device.device.type == "cuda"
        steps = (self._step(number) for number in range(first, last))
        return prefetched(step.pin_memory() if pinned else step for step in steps)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores_IC, each_I = self.target.learn(self.model, batch)
        if self.objective is not None:
            scores = scores_of(self.target, scores_IC)
            each_I = self.objective(scores, batch["labels"], each_I)
        losses_I = each_I * batch["weights"]
        asked_I = batch["weights"]
        sums = [losses_I.detach().sum(), torch.zeros_like(asked_I[0]), asked_I.sum()]
        if self.target.has_accuracy:
            # An example whose tokens are to be guessed is asked for no class.
            asked_I = asked_I * ~batch["hidden"] if "hidden" in batch else asked_I
            sums[1] = ((scores_IC.detach().argmax(-1) == batch["labels"]) * asked_I).sum()
            sums += [asked_I.sum()] if "hidden" in batch else []
        if self.objective is not None:
            sums += self.objective.sums(scores.detach(), batch)
        return losses_I.sum() / batch["count"], torch.stack(sums)

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        names = () if self.objective is None else self.objective.names
        loss, right, count, *answered = sums[: len(sums) - len(names)]
        metrics = {"loss": loss / count}
        (asked,) = answered or (count,)
        if self.target.has_accuracy and asked:
            metrics["accuracy"] = right / asked
        if self.objective is not None:
            own = dict(zip(names, sums[len(sums) - len(names) :], strict=True))
            metrics |= self.objective.reported(own, count)
        return metrics

    def validate(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        scores: dict[str, Tensor] = {}
        for ending, examples in self.validation.items():
            scores[ending] = scores_NC = self.scores(examples)
            labels_N = torch.from_numpy(examples.labels)
            metrics = {"loss": float(self.target.losses(scores_NC, labels_N).mean(dtype=torch.float64))}
            if math.isfinite(metrics["loss"]):  # else the loop says that the run has diverged
                own: dict[str, float] = {}
                if (wanted := self.settings.objective) is not None and not ending:
                    odds, labels = scores_of(self.target, scores_NC).flatten().numpy(), labels_N.flatten().numpy()
                    chosen = choose_threshold(wanted, odds, labels)
                    own = {**measure(wanted, odds, labels, chosen), THRESHOLD: chosen}
                    if self.calibrates:
                        # As predictions have them: see `decided`.
                        scores_NC = scores_NC - torch.tensor([0.0, chosen])
                if self.calibrates and not ending:
                    found = temperature_of(self.target, scores_NC, labels_N)
                    own |= {} if found is None else {TEMPERATURE: found}
                metrics |= {**self.score_metrics(scores_NC, labels_N), **own}
            figures |= {name + ending: value for name, value in metrics.items()}
        best, now = self.validated[:1], (figures, scores)
        is_best = not best or figures.get(self.main_metric, -math.inf) > best[0][0][self.main_metric]
        self.validated = [now, now] if is_best else [*best, now]
        return figures

    def scores(self, examples: Examples) -> Tensor:
        """Scores of all examples of a split in their order, (n, C) float32 on the CPU; -inf for what is no candidate.

        All processes call this together, in evaluation mode, without gradients.
        """
        return self.computed(examples, np.arange(len(examples)), self.target.scores)

    def computed(
        self, examples: Examples, numbers: Ints, compute: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
    ) -> Tensor:
        """The same of some examples, in ascending order, by another function of the model and a batch."""
        parts = fit_to_budget(
            numbers, examples.lengths, examples.rows, self.budget, self.group.size, self.settings.pad_to
        )
        # Each process takes parts of all lengths. One that has an empty part scores another for show, because a
        # sharded model needs all processes in each call.
        mine = parts[self.group.rank :: self.group.size]
        made = (examples.batch(part if len(part) else numbers[:1], self.settings.pad_to) for part in mine)
        parts_IC: list[Tensor] = []
        prepared = prefetch_batches(made, self.device.device)
        for part, batch in zip(mine, prepared, strict=True):
            parts_IC.append(compute(self.model, batch).float()[: len(part)])
        (width,) = self.group.highest(max(scores.shape[1] for scores in parts_IC))
        total_NC = parts_IC[0].new_zeros(len(numbers), width)
        for part, scores_IC in zip(mine, parts_IC, strict=True):
            padded_IC = total_NC.new_full((len(part), width), float("-inf"))
            padded_IC[:, : scores_IC.shape[1]] = scores_IC
            total_NC[torch.from_numpy(np.searchsorted(numbers, part)).to(total_NC.device)] = padded_IC
        return self.group.sum(total_NC).cpu()

    @property
    def _labels(self) -> Labels:
        assert self.train.labels is not None, "training data have labels"
        return self.train.labels

    def _batches(self, passed: int) -> list[Ints]:
        """The plan of a pass over the data after so many others, made once for all of its steps."""
        settings = self.settings
        if self._planned[0] != passed:
            stratified = settings.objective is not None and settings.objective.stratify
            batches = epoch_batches(
                *(self.train.lengths, settings.batch_size, settings.seed, passed, settings.bucket),
                self._labels if stratified else None,
            )
            self._planned = passed, batches
        return self._planned[1]

    def _step(self, number: int) -> Step:
        passed, index = divmod(number, self.steps_per_pass)
        numbers = self._batches(passed)[index]
        train, size, pad_to = self.train, self.group.size, self.settings.pad_to
        parts = fit_to_budget(numbers, train.lengths, train.rows, self.budget, size, pad_to)
        share = len(parts) // size
        mine = parts[self.group.rank * share : (self.group.rank + 1) * share]
        count = torch.tensor(float(len(numbers)))
        micro_batches = [self._batch(part, count, number) for part in mine]
        if self.objective is not None:
            micro_batches = [each | lacking(self._labels[numbers], len(each["weights"])) for each in micro_batches]
        return Step(micro_batches, tokens=int(train.tokens[numbers].sum()))

    def _batch(self, part: Ints, count: Tensor, step: int) -> dict[str, Tensor]:
        """A micro-batch; an empty one is an example that does not count, so that every process computes something."""
        weights = torch.ones(len(part))
        if not len(part):
            part, weights = np.argmin(self.train.lengths * self.train.rows, keepdims=True), torch.zeros(1)
        batch = self.train.batch(part, self.settings.pad_to)
        if self.noise is not None:
            batch = self.noise(batch, part, self.settings.seed, step)
        return batch | {"weights": weights, "count": count}
