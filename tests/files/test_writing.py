"""Files on a full disk, or one that fails: the error names the file, and what was there before stays."""

import threading
from pathlib import Path

import pytest

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, write_figure, write_json, write_text
from nystromformer.training.log import RunLog

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def full_disk(path: Path) -> Path:
    """A path whose content, on its way there, comes to a full disk."""
    path.write_text("before")
    path.with_name(f"{path.name}.tmp").symlink_to(FULL)
    return path


def write_picture(path: Path, text: str) -> None:
    from matplotlib.figure import Figure

    write_figure(path, Figure(), dpi=20)


@pytest.mark.parametrize("write", [write_text, write_json, write_picture])
def test_the_error_names_the_file(write: object, tmp_path: Path) -> None:
    path = full_disk(tmp_path / "result.png")
    with pytest.raises(UserError, match=rf"{path}: no space left on the device"):
        write(path, "now")  # type: ignore[operator]
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    file = NewFile(path)
    file.__enter__().write(b"new")
    file.__exit__(RuntimeError, RuntimeError("stopped"), None)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot be written"), NewFile(path / "below"):
        pass


def test_pictures_are_of_the_kind_that_their_names_say(tmp_path: Path) -> None:
    for ending, begins in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        write_picture(tmp_path / f"picture.{ending}", "")
        assert (tmp_path / f"picture.{ending}").read_bytes().startswith(begins)


def test_the_log_of_a_run_names_its_file(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0, 10)
    log._file.close()
    log._file = FULL.open("w", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{tmp_path / 'log.jsonl'}: no space left"):
        log.event("start", 0)
    with pytest.raises(UserError, match=r"log\.jsonl: no space left"):
        log.close()


def test_what_tensorboards_thread_cannot_write_is_no_traceback(
    tmp_path: Path,
) -> None:
    """The next call raises it; traceback of other threads are shown as ever."""
    seen: list[object] = []
    before, threading.excepthook = threading.excepthook, lambda args: seen.append(args.exc_value)
    try:
        log = RunLog(tmp_path, 0, 10)
        for module in ("tensorboard.writer", "elsewhere"):
            thread = type("Worker", (threading.Thread,), {"__module__": module})(target=lambda: 1 // 0)
            thread.start()
            thread.join()
        log.close()
        assert len(seen) == 1
    finally:
        threading.excepthook = before
