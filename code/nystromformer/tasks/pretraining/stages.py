"""The phases of a pretraining run as runs of their own, each from the weights of the one before it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training.checkpoint import epoch_name


def phases_of(experiment: Experiment) -> list[Experiment]:
    """The experiments of all phases, in their order; the last one is the run itself, and the only one of most.

    A phase's checkpoints and log are in `stage-0`, … below the run's own, which begins with the last one's weights.

    Raises:
        UserError: a phase is impossible.
    """
    stages = experiment.config.pretraining_setting.stages or ()
    phases: list[Experiment] = []
    begin = experiment.config.from_cp
    for number, stage in enumerate(stages):
        source = f"{experiment.config_file}: pretraining_setting.stages[{number}]"
        data = stage.written_over(experiment.config.model_dump(mode="json", by_alias=True))
        folder = experiment.checkpoints.resolve() / f"stage-{number}"
        data |= {"model_checkpoints": str(folder), "from_cp": begin}
        config = experiment_config(data, source)
        phases.append(replace(experiment, config=config, set_by_flag={}))
        begin = str(_last_weights(folder, config))
    if stages:
        data = experiment.config.model_dump(mode="json", by_alias=True)
        config = experiment_config(data | {"from_cp": begin}, str(experiment.config_file))
        experiment = replace(experiment, config=config)
    return [*phases, experiment]


def check_rows(phases: Sequence[Experiment], dataset_folder: Path | None) -> None:
    """Open the datasets of all phases, so that what is wrong with the last one's is known before the first is trained.

    Args:
        dataset_folder: of the run itself; None: config.json's `data_folder`.

    Raises:
        UserError: a phase's dataset is missing, damaged, does not fit, or has another tokenizer than the run's.
    """
    expected = phases[-1].dataset(dataset_folder).manifest.tokenizer_sha256
    for phase in phases[:-1]:
        dataset = phase.dataset(None)
        length, wanted = dataset.manifest.length, phase.config.model.max_seq_len
        if length != wanted:
            raise UserError(
                f"{dataset.folder}: rows of {length} tokens, where the phase's max_seq_len is {wanted}: name the "
                "folder of its rows, or set max_seq_len to their length"
            )
        if dataset.manifest.tokenizer_sha256 != expected:
            raise UserError(
                f"{dataset.folder}: made with another tokenizer than the run's own rows: its token ids mean other "
                "words. Make it with --tokenizer and the folder `tokenizer` of the run's dataset."
            )


def _last_weights(folder: Path, config: ExperimentConfig) -> Path:
    return folder / f"{epoch_name(config.pretraining_setting.epoch - 1)}.model"
