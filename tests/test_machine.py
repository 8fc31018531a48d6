"""What measured figures say about where they come from."""

import subprocess
from pathlib import Path

import pytest

from nystromformer.machine import commit_of, machine_facts


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_marked_where_code_has_changed_and_not_where_results_have(tmp_path: Path) -> None:
    for name in ("code/run.py", "results/speed/speed.json", "experiments/studies/speed.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert commit_of(tmp_path / "code") == commit
    (tmp_path / "results/speed/speed.json").write_text("2")
    (tmp_path / "new.txt").write_text("untracked")
    assert commit_of(tmp_path / "code") == commit
    for name in ("code/run.py", "experiments/studies/speed.py"):
        (tmp_path / name).write_text("2")
        assert commit_of(tmp_path / "code") == f"{commit}-dirty"
        git(tmp_path, "checkout", "--quiet", "--", name)


def test_the_commit_of_a_copy_without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("NYSTROM_COMMIT", raising=False)
    assert machine_facts()["commit"] == "unknown"
    monkeypatch.setenv("NYSTROM_COMMIT", "abc1234")
    assert machine_facts()["commit"] == "abc1234"
