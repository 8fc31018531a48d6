"""Links, paths and commands of README.md, CONTRIBUTING.md, docs/ and the folders' own pages; what GitHub reads."""

import re
from pathlib import Path

import pytest
from documents import TEXTS, exists, named_files, named_modules, new_files
from small import ROOT, SHIPPED

PAGES = sorted(name for name in TEXTS if name != "CHANGELOG.md" and not name.startswith("results/"))
"""Tables in results/ name the scripts of their commit."""
NOT_OURS = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "train.json", "dev.json"}
"""What users bring."""
WRITTEN = {
    *("config.json", "manifest.json", "_manifest.json", "corpus.json", "run.json", "run.json"),
    *("validation.json", "table2.json", "gpu.json", "about.json", "NAME-5-folds-HASH.json"),
    *("abilities.json", "conversion.json", "modules.json", "test.json"),
    "export-onnx/tokenizer.json",
    *("FILE.py", "code/nystromformer/attention/sigmoid.py"),
}
"""What commands write, and where what a page shows is to be put."""
NEVER = {"utils.py"}
LAZY = {"nystromformer.from_pretrained", "nystromformer.Predictor"}
"""Names of the package that are no modules."""


@pytest.mark.parametrize("name", PAGES)
def test_every_file_and_module_that_is_named_exists(name: str) -> None:
    folder = (ROOT / name).parent
    new = new_files(TEXTS[name])
    modules_of_new = {path.removeprefix("code/").removesuffix(".py").replace("/", ".") for path in new}
    missing = [
        each
        for each in sorted(named_files(TEXTS[name]) - WRITTEN - NOT_OURS - NEVER - new)
        if not exists(Path(each)) and not (folder / each).exists()
    ]
    for module in named_modules(TEXTS[name]) - modules_of_new - LAZY:
        path = ROOT / "code" / module.replace(".", "/")
        missing += [] if path.is_dir() or path.with_suffix(".py").is_file() else [module]
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_it_names_exist(name: str) -> None:
    for script in re.findall(r"python3? ((?:code|data-preprocessing|experiments|tests)/[\w/-]+\.py)", TEXTS[name]):
        assert (ROOT / script).is_file() or script in new_files(TEXTS[name]), script
    for folder in re.findall(r"`((?:nystrom|softmax)-(?:512|4096|small|tiny|demo)(?:-\w+)?)`", TEXTS[name]):
        assert folder in SHIPPED, folder


def test_the_page_of_commands_names_all() -> None:
    scripts = set(re.findall(r"python (code/[\w/-]+\.py)", TEXTS["docs/commands.md"]))
    ours = {f"code/{path.name}" for path in (ROOT / "code").glob("*.py")} - {"code/run_demo.py"}
    assert scripts == ours


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_make_targets_it_names_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXTS[name], re.MULTILINE))
    assert named
    assert named <= targets
