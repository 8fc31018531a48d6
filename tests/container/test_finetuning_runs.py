"""Fine-tuning by the launcher against a real engine: what its result says of where it was made."""

import json
from pathlib import Path

import pytest
from container_engine import Engine
from finetuning import pretrained, write_sst2
from launching import Launcher

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]


def test_the_result_names_the_experiment_and_not_where_it_is_mounted(
    engine: Engine, dataset_folder: Path, tmp_path: Path
) -> None:
    home = pretrained(tmp_path / "the expériment", dataset_folder).folder
    flags = ("--task", "SST-2", "--epoch", 1, "--batch_size", 8, "--lr", 1e-3, "--gpus", "none", "--follow")
    Launcher(engine)("glue", home, "--glue", write_sst2(tmp_path / "glue"), *flags)
    (result,) = (home / "model" / "glue").rglob("result.json")
    assert json.loads(result.read_text())["experiment"] == "the expériment"
