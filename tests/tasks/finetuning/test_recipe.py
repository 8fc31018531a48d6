"""What a run keeps for predictions, and what becomes of it when a write fails."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.recipe import keep_recipe


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_write_that_failed_is_made_up_for_by_the_next_start(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = train_tokenizer(["a few words"] * 9, 262)
    keep_recipe(tmp_path / "undisturbed", {"kind": "classes"}, tokenizer)
    left, replace = [failing], os.replace

    def fails(source: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(UserError, match="cannot be written"):
            keep_recipe(tmp_path / "run", {"kind": "classes"}, tokenizer)
    keep_recipe(tmp_path / "run", {"kind": "classes"}, tokenizer)

    assert _files(tmp_path / "run") == _files(tmp_path / "undisturbed")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
