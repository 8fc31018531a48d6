"""docs/adding.md, "An attention": its files in a copy of the project, its commands, on a small model and dataset."""

import json
import shutil
from pathlib import Path

import pytest
from doc_examples import ROOT, Block, apply, blocks, commands, copy_of_project, run
from small import small_data


def example_blocks() -> list[Block]:
    return blocks(ROOT / "docs" / "adding.md", "An attention")


def test_the_page_names_every_file() -> None:
    assert [block.file for block in example_blocks() if block.file] == [
        "code/nystromformer/attention/sigmoid.py",
        "code/nystromformer/config/attention/sigmoid.py",
        "code/nystromformer/attention/reference/mixtures.py",
        "tests/support/attention_cases.py",
    ]


@pytest.mark.slow
def test_an_attention_is_added_as_the_page_says(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project, examples = copy_of_project(tmp_path / "project"), example_blocks()
    (project / "docs").mkdir()
    shutil.copyfile(ROOT / "docs" / "library.md", project / "docs" / "library.md")
    *derived, contract, others, train = commands(examples)
    apply(examples, project)
    for words in derived:
        run(words, project)
    row = "| `sigmoid` | yes | yes | yes | yes | yes | yes | yes | yes | - |"
    assert row in (project / "docs" / "library.md").read_text()
    assert " passed" in run([*contract, "-m", "not slow"], project, 300).stdout
    assert " passed" in run(others, project, 300).stdout
    # The page's line, on a small model and dataset.
    changes = {"model__num_landmarks": None}
    (tmp_path / "config.json").write_text(json.dumps(small_data(**changes)))
    assert train[-2:] == ["--set", "model.attn_type=sigmoid"]
    line = [*train[:2], "--model", str(tmp_path), "--dataset", str(dataset_folder), *train[-2:]]
    assert "mlm_accuracy" in run(line, project).stderr
