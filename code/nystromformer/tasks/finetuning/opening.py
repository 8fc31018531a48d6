"""A fine-tuning command's tasks, opened: start weights, tokenizer, rows and labels, each read once and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.runs.record import digest
from nystromformer.runs.settings import Settings
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import Pretrained, find_tokenizer, open_pretrained
from nystromformer.tasks.finetuning.baselines import Guesses, measure_baselines
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.flags import Flags
from nystromformer.tasks.finetuning.objective import check_objective
from nystromformer.training import Device, Group
from nystromformer.wording import number_of, warn_of_unknown

Start = tuple[Pretrained | None, Tokenizer | None]
"""What runs begin with: an encoder, or initial weights; and the tokenizer of their texts, where they read texts."""
Begin = Callable[[Experiment], Start]


@dataclass
class Opened:
    """A task's data, and what its runs share."""

    experiment: Experiment
    task: Definition
    pretrained: Pretrained | None
    """What the runs begin with; None: initial weights."""
    config: ExperimentConfig
    """With room for the task's rows and tokens."""
    loading: Loading
    splits: Splits
    grid: Sequence[Settings]
    flags: Flags
    device: Device
    group: Group

    @property
    def folder(self) -> Path:
        """Of the task's runs."""
        return self.experiment.checkpoints / self.task.name

    @property
    def main_metric(self) -> str:
        """By which epochs and settings are chosen."""
        return self.task.main_metric if self.flags.objective is None else self.flags.objective.name

    @property
    def budget(self) -> int:
        """Tokens, padding included, that a device takes at a time: `inst_per_gpu` rows of the pretraining's length."""
        return self.config.gpu_setting.inst_per_gpu * self.experiment.config.model.max_seq_len

    @cached_property
    def test(self) -> Mapping[str, Examples]:
        """The test data; not before training is done."""
        return self.group.check(lambda: self.task.test(self.loading))

    @cached_property
    def tested(self) -> str:
        """Fingerprint of the test data."""
        return digest({name: examples.fingerprint for name, examples in self.test.items()})

    @cached_property
    def baselines(self) -> Guesses:
        """What guessers reach on its data, where that is asked for."""
        if not self.flags.baselines:
            return {}
        _ = self.test  # which all processes read
        return self.group.on_main(lambda: measure_baselines(self))

    @property
    def exact_share(self) -> dict[str, float]:
        """Share of each split's examples that every layer computes exact softmax attention for."""
        longest = min((attention.longest_exact for attention in self.config.model.attentions), default=0)
        return {name: float((each.lengths <= longest).mean()) for name, each in self.splits.named.items()}


def open_tasks(
    experiment: Experiment,
    tasks: Sequence[Definition],
    flags: Flags,
    grid: Sequence[Settings],
    device: Device,
    group: Group,
    begin: Begin | None = None,
) -> list[Opened]:
    """Open tasks to fine-tune an experiment on. What is wrong with the last task is known now, and not once the tasks
    before it have trained for hours.

    Args:
        grid: the settings of the runs; none to look at the data alone.
        begin: gives what the runs begin with; None: the experiment's checkpoint, or initial weights for tasks that have
            their own kinds of token.
    """

    def read() -> list[Opened]:
        if flags.freeze and group.size > 1:
            raise UserError(f"--freeze: expected one process, found {group.size}")
        start: Start = (None, None) if begin is None else begin(experiment)
        pretrained, tokenizer = start
        if begin is None and any(task.kinds is None for task in tasks):
            pretrained = open_pretrained(experiment, flags.checkpoint)
            tokenizer = find_tokenizer(experiment, pretrained.tokenizer_sha256)
        opened = []
        for task in tasks:
            config, loading = _fitted(experiment, task, tokenizer, flags)
            splits = task.load(loading)
            for each in splits.named.values():
                if isinstance(each, EncodedTexts):
                    splits.warnings += warn_of_unknown(each.name, each.unknown.sum(), each.own_tokens.sum())
            if flags.objective is not None:
                splits.notes.append(check_objective(flags.objective, task.target, splits))
            own = [replace(settings, length=loading.length) for settings in grid]
            opened.append(Opened(experiment, task, pretrained, config, loading, splits, own, flags, device, group))
        return opened

    # The main process first: a tokenizer that it trains the others find.
    mine: list[Opened] = []
    group.on_main(lambda: mine.extend(read()))
    return group.check(lambda: mine or read())


def _fitted(
    experiment: Experiment, task: Definition, tokenizer: Tokenizer | None, flags: Flags
) -> tuple[ExperimentConfig, Loading]:
    """The config with room for a task's rows, and how they are made."""
    length = flags.length or flags.pad_to or experiment.config.model.max_seq_len
    vocabulary, num_tokens = None, task.kinds or 0
    if task.kinds is None:
        assert tokenizer is not None, "what it begins with has one"
        vocabulary = task.tokenizer(tokenizer)
        num_tokens = vocabulary.get_vocab_size()
        if not (flags.length or flags.pad_to):
            length = task.fit_length(vocabulary, length)
    if flags.pad_to is not None and flags.pad_to < length:
        raise UserError(f"--pad_to {flags.pad_to}: expected at least --length {length}")
    config = with_room(experiment, length, num_tokens, flags.pad_to)
    limits = [most for layer in config.model.attentions if (most := layer.most_global) is not None]
    has_types = config.model.num_sen_type > 1
    return config, Loading(vocabulary, length, has_types, flags.train_rows, min(limits, default=None))


def with_room(experiment: Experiment, length: int, num_tokens: int, pad_to: int | None = None) -> ExperimentConfig:
    """The experiment's config with room for rows of `length` tokens and a tokenizer of `num_tokens`."""
    # Rows of any length are to be taken, a single token's too, where they are not padded to one.
    refused = pad_to or 1
    for index, attention in enumerate(experiment.config.model.attentions):
        if (reason := attention.why_not_length(refused)) is not None:
            raise UserError(
                f"{experiment.config_file}: layer {index}'s attention does not accept rows of "
                f"{number_of(refused, 'token')}: {reason}; or give --pad_to a length that it accepts"
            )
    data = experiment.config.model_dump(mode="json", by_alias=True)
    model = data["model"]
    model["max_seq_len"] = max(model["max_seq_len"], length, pad_to or 0)
    model["vocab_size"] = max(model["vocab_size"], num_tokens)
    return experiment_config(data, f"{experiment.config_file} with rows of {length} tokens")
