"""docs/adding.md, "A task": its files in a copy of the project, its commands, on a small checkpoint and messages."""

import shutil
from pathlib import Path

import pytest
from doc_examples import ROOT, Block, apply, blocks, commands, copy_of_project, run
from finetuning import pretrained


def example_blocks() -> list[Block]:
    return blocks(ROOT / "docs" / "adding.md", "A task")


def test_the_page_names_every_file() -> None:
    folder = "code/nystromformer/tasks/spam"
    own = [f"{folder}/declaration.py", f"{folder}/__init__.py", "data/spam/README.md", "tests/test_imports.py"]
    named = [block.file for block in example_blocks() if block.file]
    assert named == [*own, f"{folder}/task.py", "code/run_spam.py"]


@pytest.mark.slow
def test_a_task_is_added_as_the_page_says(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project, examples = copy_of_project(tmp_path / "project"), example_blocks()
    for name in ("data/documents", "glue", "data/imdb", "wikihop", "experiments/lra"):  # whose declarations name them
        (project / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name / "README.md", project / name / "README.md")
    tests, train, launch, report = commands(examples)
    apply(examples, project)
    assert " passed" in run(tests, project, 300).stdout
    for split, count in (("train", 24), ("dev", 12)):
        kinds = [("spam\twin a prize today", "other\tthe segment of a token")[number % 2] for number in range(count)]
        lines = "".join(f"{kind} {n}\n" for n, kind in enumerate(kinds))
        (project / "data" / "spam" / f"{split}.tsv").write_text(lines)
    experiment = pretrained(tmp_path / "experiment", dataset_folder)
    # The page's lines, on a small model.
    here = [str(experiment.folder) if word == "nystrom-small-conv" else word for word in train]
    done = run(here, project, 300)
    assert "spam, " in done.stdout
    assert "majority class" in done.stdout
    assert len(list(experiment.checkpoints.glob("spam/*/predictions/dev.tsv"))) == 3
    assert "/code/run_spam.py" in run(launch, project).stdout
    assert "Spam" in run([*report[:-1], str(experiment.folder), "--out", str(tmp_path / "t.md")], project).stdout
    (project / "data" / "spam" / "dev.tsv").write_text("ham\tmy dear\n")
    with pytest.raises(AssertionError, match="line 1: expected other or spam, a tab, and a message"):
        run(here, project)
