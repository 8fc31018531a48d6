"""What is installed, and what the attention alone needs."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from small import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

ALONE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{name} is not among the attention's needs", name=name)

sys.meta_path.insert(0, Refusing())
import torch
from nystromformer.attention import create_attention
from nystromformer.config import ATTENTIONS
from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.nn import Encoder, NystromAttention, replace_attention

x = torch.randn(1, 2, 40, 8)
for name in ATTENTIONS:
    create_attention(name, num_heads=2, head_dim=8, max_length=40)(x, x, x)
Encoder(16, depth=1, heads=2, num_landmarks=8)(torch.randn(1, 20, 16))
print("it runs")
"""


def alone(refused: Iterable[str], more: str = "") -> subprocess.CompletedProcess[str]:
    """What a process prints in which these packages are not installed."""
    script = f"REFUSED = {sorted(refused)!r}\n{ALONE}\n{more}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)


def names_of(requirements: list[str]) -> set[str]:
    return {requirement.partition(">")[0].partition("[")[0] for requirement in requirements}


def test_the_attention_needs_torch_numpy_and_pydantic_alone() -> None:
    assert names_of(PROJECT["project"]["dependencies"]) == {"torch", "numpy", "pydantic"}
    extras = PROJECT["project"]["optional-dependencies"]
    refused = names_of([*extras["train"], *extras["docker"], *extras["report"], *extras["serve"]])
    done = alone("sklearn" if name == "scikit-learn" else name for name in refused)
    assert done.stdout == "it runs\n", done.stderr


NEEDY = """
import nystromformer
for name in ("from_pretrained", "Predictor"):
    try:
        getattr(nystromformer, name)
    except ModuleNotFoundError as error:
        print(str(error).partition(", or")[0])
"""


def test_from_pretrained_and_predictor_name_the_extra_that_they_need() -> None:
    said = 'this needs tokenizers, which is not installed: `pip install "nystromformer-torch[train]"`'
    done = alone(["tokenizers"], NEEDY)
    assert done.stdout.splitlines()[1:] == [f"from_pretrained: {said}", f"Predictor: {said}"], done.stderr


def test_every_script_is_installed() -> None:
    scripts = {path.stem for path in (ROOT / "code").glob("run_*.py")} - {"run_demo"}
    assert set(PROJECT["tool"]["setuptools"]["py-modules"]) == scripts


def test_beside_the_other_package_of_this_name_an_import_says_so(tmp_path: Path) -> None:
    package = tmp_path / "nystromformer"
    package.mkdir()
    shutil.copyfile(ROOT / "code" / "nystromformer" / "__init__.py", package / "__init__.py")
    (package / "nystrom_attention.py").write_text("")
    words = [sys.executable, "-c", "import nystromformer"]
    done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip uninstall nystromformer nystromformer-torch" in done.stderr
