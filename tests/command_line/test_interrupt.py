"""Ctrl-C in a command's first seconds."""

import signal
import subprocess
from pathlib import Path

import pytest
from processes import wait_for
from small import ROOT, command

SCRIPTS = sorted(
    [*(ROOT / "code").glob("run_*.py"), ROOT / "code/launch.py", *(ROOT / "data-preprocessing").rglob("*.py")]
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_script_is_ready_for_it_before_it_imports_anything(path: Path) -> None:
    first = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(("import", "from")))
    assert first.startswith("import nystromformer.command_line.interrupt ")


@pytest.mark.parametrize(
    ("words", "library"),
    [
        (("code/run_glue.py", "--task", "MRPC", "--model", "nystrom-tiny-conv"), "_pydantic_core"),
        (("code/run_glue.py", "--task", "MRPC", "--model", "nystrom-tiny-conv"), "libtorch_cpu"),
        (("data-preprocessing/preprocess_data_512.py", "--workers", 2), "_pydantic_core"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_while_a_library_is_imported(words: tuple[str, ...], library: str, tmp_path: Path) -> None:
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(lambda: library in maps.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")


def test_what_is_taken_down_at_the_end_is_not_shown(tmp_path: Path) -> None:
    """Ctrl-C once all is done: libraries that clean up behind themselves would end in a traceback."""
    (tmp_path / "script.py").write_text(
        "import nystromformer.command_line.interrupt\nimport atexit, os, signal\n"
        "from nystromformer.command_line import cli\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\ncli.run(lambda: print('done'))\n"
    )
    ended = subprocess.run(command(tmp_path / "script.py"), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_within_a_finalizer(tmp_path: Path) -> None:
    """Python prints what a finalizer raises, and goes on: an interrupt would be lost."""
    (tmp_path / "script.py").write_text(
        "import nystromformer.command_line.interrupt\nimport os, signal\nfrom nystromformer.command_line import cli\n"
        "class Finalized:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "def work():\n    Finalized()\n    print('went on')\n"
        "cli.run(work)\n"
    )
    ended = subprocess.run(command(tmp_path / "script.py"), capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
