"""Build the wheel and the sdist, check them, and install the wheel into an empty environment, one extra after another.

`make package`. It needs a package index; an environment of all extras takes some gigabytes and is removed at the end.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = """
import importlib.util, torch
from nystromformer.attention import create_attention
from nystromformer.nn import NystromAttention, replace_attention
assert importlib.util.find_spec("transformers") is None, "the core alone brings no transformers"
attention = create_attention("nystrom", num_heads=2, head_dim=8, num_landmarks=4, conv_kernel_size=3)
assert attention(*torch.randn(3, 1, 2, 20, 8)).shape == (1, 2, 20, 8)
layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
model = replace_attention(torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), "nystrom").eval()
assert model(torch.randn(1, 20, 16)).shape == (1, 20, 16)
"""
DROP_IN = """
import torch
from transformers import AutoModel, BertConfig
from nystromformer.interop.drop_in import check, register
register("nystrom", name="nystrom-8", num_landmarks=8)
config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=9)
model = AutoModel.from_config(config, attn_implementation="nystrom-8").eval()
check(model, {"input_ids": torch.ones(1, 20, dtype=torch.int64)})
"""
STEPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("", (), CORE),
    ("train", ("pretrain", "glue", "classify", "predict"), DROP_IN),
    ("report", ("report",), "import nystromformer.report.curves"),
    ("excel", (), "import openpyxl, nystromformer.tabular.formats"),
    ("docker", (), "import nystromformer.container.engine"),
    ("serve", ("serve",), "import nystromformer.prediction.serve"),
    ("export", ("export",), "import onnxruntime, nystromformer.interop.experiments.open_model"),
)
"""Each extra, the commands whose --help is tried with it, and what is run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch_index_url", default="", help="An index that torch comes from; empty: pip's own.")
    parser.add_argument("--build_only", action="store_true", help="Leave the empty environment out.")
    flags = parser.parse_args()
    dist = ROOT / "dist"
    for old in dist.glob("*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_contents(wheel, sdist)
    if not flags.build_only:
        with tempfile.TemporaryDirectory() as folder:
            install(Path(folder), wheel, flags.torch_index_url)
    print(f"{wheel.name} and {sdist.name} are in {dist}")  # noqa: T201


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that each has what it needs, and no other project's names."""
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("nystromformer/py.typed", "nystromformer/config/config.schema.json", "run_pretrain.py"):
        if needed not in names:
            sys.exit(f"{wheel}: expected {needed} in it")
    if others := [name for name in names if name.split("/")[0] in ("tests", "docs", "experiments")]:
        sys.exit(f"{wheel}: expected the code alone, found {others[0]}")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    if missing := {"LICENSE", "README.md", "pyproject.toml"} - packed:
        sys.exit(f"{sdist}: expected {', '.join(sorted(missing))} in it")


def install(folder: Path, wheel: Path, torch_index_url: str) -> None:
    """Install the wheel into an empty environment, the core first, then each extra, and try each."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    if torch_index_url:
        pinned = next(
            line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch=")
        )
        run(python, "-m", "pip", "install", "--quiet", "--index-url", torch_index_url, pinned)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, commands, code in STEPS:
        assert not extra or extra in known, f"{extra}: no such extra"
        print(f"installing {extra or 'the core alone'}", flush=True)  # noqa: T201
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]" if extra else wheel)
        run(python, "-c", code, cwd=folder)
        for command in commands:
            run(python, "-m", f"run_{command}", "--help", cwd=folder, quiet=True)


def run(*words: object, cwd: Path = ROOT, quiet: bool = False) -> None:
    """A command that must end well; it sees none of this checkout's modules."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=quiet, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:200]}: status {done.returncode}\n{done.stderr or ''}")


if __name__ == "__main__":
    main()
