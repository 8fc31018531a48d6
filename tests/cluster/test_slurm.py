"""What can be told of the scripts for Slurm, and of their check, without Slurm."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import slurm_cluster
from doc_examples import blocks
from slurm_checks import YOURS, edited
from slurm_cluster import NODES, can_start, slurm_conf
from small import ROOT, run_here

SCRIPTS = sorted((ROOT / "slurm").iterdir())
SHOWN = {
    "pretrain.sbatch": ("docs/distributed.md", "Slurm"),
    "finetune.sbatch": ("docs/distributed.md", "Slurm"),
    "preprocess.sbatch": ("data-preprocessing/README.md", "Several machines"),
    "predict.sbatch": ("docs/scale.md", "Slurm"),
}


each_script = pytest.mark.parametrize("script", SCRIPTS, ids=[path.name for path in SCRIPTS])


@each_script
def test_a_script_is_shown_as_it_is(script: Path) -> None:
    page, section = SHOWN[script.name]
    assert script.read_text() in [block.text for block in blocks(ROOT / page, section)]


@each_script
def test_a_script_is_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n#")
    theirs, rest = text.split(YOURS)
    assert all(line.startswith(("#", "export PATH=")) or "=" in line for line in theirs.splitlines() if line)
    assert "#SBATCH" not in rest, "Slurm reads no options below the first command"
    first_command = re.search(r"^[^#\n]", theirs, re.MULTILINE)
    assert first_command is not None
    assert "#SBATCH" not in theirs[first_command.start() :]


FAKE = """#!/bin/bash
case $(basename "$0") in
  srun) echo "srun $*"; exit "$STATUS";;
  scontrol) if [ "$1" = show ]; then printf 'n3\\nn4\\n'; else echo "scontrol $*"; exit "${REFUSED:-0}"; fi;;
  python) printf 'python'; printf ' <%s>' "$@"; echo;;
esac
"""


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """Slurm's programs, which only tell how they were called; srun ends with $STATUS."""
    for name in ("srun", "scontrol", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(FAKE)
        program.chmod(0o755)
    return tmp_path


def submit(fakes: Path, script: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as Slurm would."""
    slurm = {"SLURM_JOB_ID": "123456", "SLURM_CPUS_PER_TASK": "8", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[3-4]"}
    environment = {"PATH": f"{fakes / 'bin'}:{os.environ['PATH']}", **slurm, **variables}
    return subprocess.run(
        ["bash", ROOT / "slurm" / script, *flags],
        cwd=fakes, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", ["pretrain.sbatch", "finetune.sbatch"])
@pytest.mark.parametrize(
    ("variables", "again", "said"),
    [
        ({"STATUS": "0"}, False, ""),
        ({"STATUS": "2"}, False, ""),
        ({"STATUS": "137"}, False, ""),
        ({"STATUS": "143"}, True, ""),
        ({"STATUS": "143", "REFUSED": "1"}, True, "job 123456 could not be queued again: submit it to go on\n"),
        *(({"STATUS": "143", "SLURM_RESTART_COUNT": count}, True, "") for count in ("1", "99")),
        *(
            (
                {"STATUS": "143", "SLURM_RESTART_COUNT": count},
                False,
                f"stopped; job 123456 was queued again {count} times: submit it to go on\n",
            )
            for count in ("100", "101")
        ),
    ],
    ids=str,
)
def test_only_what_was_stopped_is_queued_again_and_not_for_ever(
    script: str, variables: dict[str, str], again: bool, said: str, fakes: Path
) -> None:
    done = submit(fakes, script, SLURM_ARRAY_TASK_ID="3", **variables)
    assert done.returncode == int(variables["STATUS"])
    assert ("scontrol requeue 123456" in done.stdout) == again
    assert done.stderr == said


def test_pretraining_meets_on_the_first_node_and_passes_flags_on(fakes: Path) -> None:
    said = submit(fakes, "pretrain.sbatch", "--set", "a b=1", STATUS="0").stdout
    assert "--rdzv_endpoint n3:23456 " in said
    assert "--nnodes 2 --nproc_per_node 8 " in said
    assert said.endswith(" --set a b=1\n")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "<--corpus> <bookcorpus> <--x y>"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "15"}, "<--array_index> <3> <--array_size> <16> <--x y>"),
        # `--array=3,7`
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "7"}, "<--array_index> <3> <--array_size> <16> <--x y>"),
    ],
    ids=["merge", "array", "some of an array"],
)
def test_preprocessing_with_and_without_an_array(variables: dict[str, str], expected: str, fakes: Path) -> None:
    said = submit(fakes, "preprocess.sbatch", "--x y", **variables).stdout
    assert "<--workers> <8>" in said
    assert said.endswith(f"{expected}\n")


def test_prediction_with_an_array(fakes: Path) -> None:
    said = submit(fakes, "predict.sbatch", "--x y", SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_MAX="7").stdout
    assert said.endswith("<--id> <id> <--array_index> <3> <--array_size> <16> <--x y>\n")


of_slices = pytest.mark.parametrize(
    ("script", "slices"), [("preprocess.sbatch", "parts"), ("predict.sbatch", "slices")]
)


@of_slices
def test_an_array_of_more_than_the_slices_is_refused(script: str, slices: str, fakes: Path) -> None:
    done = submit(fakes, script, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_MAX="16")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --array: expected numbers from 0 to 15 ({slices}=16), found 16\n"


@of_slices
def test_the_documented_array_is_of_all_slices(script: str, slices: str) -> None:
    page, section = SHOWN[script]
    submitted = "\n".join(block.text for block in blocks(ROOT / page, section))
    (count,) = re.findall(rf"^{slices}=(\d+)", (ROOT / "slurm" / script).read_text(), re.MULTILINE)
    assert f"--array=0-{int(count) - 1} slurm/{script}" in submitted
    assert "--dependency=afterany:" in submitted, "after one failed part afterok would never start"


def test_an_edit_is_of_the_users_part_and_matches(tmp_path: Path) -> None:
    script = edited("pretrain.sbatch", tmp_path / "mine", (r"^model=.*$", r"model=\1"))
    assert "\nmodel=\\1\n" in script.read_text()
    with pytest.raises(AssertionError, match="matches 0 times"):
        edited("pretrain.sbatch", tmp_path / "mine", ("^srun", "exit"))


def test_the_cluster_keeps_to_its_folder(tmp_path: Path) -> None:
    text = slurm_conf(tmp_path)
    assert not [path for path in re.findall(r"[=:](/\S*)", text) if not path.startswith((str(tmp_path), "/bin/true"))]
    for name, address in NODES.items():
        assert f"NodeName={name} NodeAddr={address} " in text
    for line in text.splitlines():
        assert re.fullmatch(r"\w+=\S+( \w+=\S+)*", line)


@pytest.mark.parametrize(("missing", "user"), [("slurmd", 0), (None, 1000)])
def test_without_the_packages_or_root_it_refuses(
    missing: str | None, user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program, path: None if program == missing else program)
    monkeypatch.setattr(os, "getuid", lambda: user)
    assert not can_start()


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(slurm_cluster, "can_start", lambda: False)
    assert run_here(monkeypatch, "tests/cluster/check.py") == 2
    assert capsys.readouterr() == ("", f"{slurm_cluster.NEEDS}\n")
