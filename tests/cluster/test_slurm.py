"""What can be told of the scripts for Slurm without Slurm; `make cluster` runs them."""

import subprocess

import pytest
from small import ROOT


@pytest.mark.parametrize("name", ["finetune", "predict", "preprocess", "pretrain"])
def test_a_script_is_bash(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "slurm" / f"{name}.sbatch"], check=True)
