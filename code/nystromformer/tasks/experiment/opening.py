"""The device of a run, and what fine-tuning begins with."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from nystromformer.config import ExperimentConfig
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import Pretrained, open_pretrained
from nystromformer.tasks.experiment.tokenizer import find_tokenizer
from nystromformer.training import Device, Group, choose_device


def run_device(experiment: Experiment, name: str, group: Group) -> Device:
    """The device that `--device` names, in the precision that config.json asks for.

    Raises:
        UserError: it is not there.
    """
    precision, rank = experiment.config.model.mixed_precision, group.local_rank if group.size > 1 else None
    return group.check(lambda: choose_device(name, precision, rank))


@dataclass(frozen=True)
class OpenedFinetuning:
    """An experiment, and what its runs begin with."""

    experiment: Experiment
    device: Device
    group: Group
    """The processes that work together."""
    pretrained: Pretrained | None
    """An encoder; None: initial weights."""
    tokenizer: Tokenizer | None
    """The one that the encoder was pretrained with; None where that had none."""

    @property
    def config(self) -> ExperimentConfig:
        return self.experiment.config


def open_finetuning(
    experiment: Experiment,
    device: Device,
    wanted: str = "last",
    group: Group = Group(),  # noqa: B008  # immutable
) -> OpenedFinetuning:
    """Open an experiment to fine-tune what it has pretrained.

    Args:
        wanted: "last", or an epoch's number.
        group: each process calls this.

    Raises:
        UserError: no such checkpoint, an unreadable one, or its tokenizer is not there.
    """

    def find() -> tuple[Pretrained, Tokenizer]:
        pretrained = open_pretrained(experiment, wanted)
        return pretrained, find_tokenizer(experiment, pretrained.tokenizer_sha256)

    pretrained, vocabulary = group.check(find)
    return OpenedFinetuning(experiment, device, group, pretrained, vocabulary)
