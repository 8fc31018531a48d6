"""Links, paths and commands of README.md, CONTRIBUTING.md, docs/ and the folders' own pages; what GitHub reads."""

import re
from pathlib import Path

import pytest
import yaml
from documents import PATHS, README, TEXTS, exists, named_files, named_modules, new_files
from small import ROOT, SHIPPED

GITHUB = ROOT / ".github"

NOT_OURS = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "train.json", "dev.json"}
"""What users bring."""
WRITTEN = {
    *("config.json", "manifest.json", "_manifest.json", "verified.json", "corpus.json", "run.json", "result.json"),
    *("baselines.json", "validation.json", "table2.json", "gpu.json", "about.json", "NAME-5-folds-HASH.json"),
    *("abilities.json", "conversion.json", "modules.json", "test.json"),
}
"""What commands write, and where what a page shows is to be put."""
NEVER = {"utils.py"}
LAZY = {"nystromformer.from_pretrained", "nystromformer.load_run", "nystromformer.Predictor"}
"""Names of the package that are no modules."""


def test_every_page_of_docs_is_linked_from_the_first_one() -> None:
    pages = {name for name in TEXTS if re.match(r"docs/[^/]+$", name)} - {"docs/api.md"}  # which only the site can show
    assert [page for page in sorted(pages | {"CONTRIBUTING.md"}) if f"]({page})" not in README] == []


def test_every_page_of_results_is_linked_from_their_overview() -> None:
    pages = sorted(name.removeprefix("docs/") for name in TEXTS if name.startswith("docs/results/"))
    assert pages
    assert [page for page in pages if not re.search(rf"\]\({re.escape(page)}[#)]", TEXTS["docs/results.md"])] == []


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"CHANGELOG.md"}))
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


@pytest.mark.parametrize("name", TEXTS)
def test_the_commands_it_names_exist(name: str) -> None:
    for script in re.findall(r"python3? ((?:code|data-preprocessing|experiments|tests)/[\w/-]+\.py)", TEXTS[name]):
        assert (ROOT / script).is_file() or script in new_files(TEXTS[name]), script
    for folder in re.findall(r"`((?:nystrom|softmax)-(?:512|4096|small|tiny|demo)(?:-\w+)?)`", TEXTS[name]):
        assert folder in SHIPPED or name == "CHANGELOG.md", folder


def test_the_page_of_commands_names_all() -> None:
    scripts = set(re.findall(r"python (code/[\w/-]+\.py)", TEXTS["docs/commands.md"]))
    ours = {f"code/{path.name}" for path in (ROOT / "code").glob("*.py")} - {"code/run_demo.py"}
    assert scripts == ours


def test_the_first_page_is_short() -> None:
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_left_to_fill_in(name: str) -> None:
    assert not re.findall(r"@@\w|\bTODO\b|\bTBD\b|\bFIXME\b", TEXTS[name])


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_make_targets_it_names_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXTS[name], re.MULTILINE))
    assert named
    assert named <= targets


def test_pages_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/kernels.md", "data-preprocessing/README.md", "glue/README.md"} <= {
        path.relative_to(ROOT).as_posix() for path in PATHS
    }


def read_yaml(path: Path) -> dict[str, object]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    # YAML 1.1 reads the key `on` as true.
    return {("on" if key is True else str(key)): value for key, value in content.items()}


def test_the_workflow_runs_what_must_pass() -> None:
    workflow = read_yaml(GITHUB / "workflows" / "ci.yml")
    assert {"push", "pull_request"} <= set(workflow["on"])  # type: ignore[call-overload]
    (job,) = workflow["jobs"].values()  # type: ignore[attr-defined]
    assert any(".ci/run" in step.get("run", "") for step in job["steps"])
    versions = job["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert versions == re.findall(r"Python :: (3\.\d+)", project), "those that pyproject.toml names, quoted"
