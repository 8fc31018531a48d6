"""Which folder an experiment's name means."""

from pathlib import Path

import pytest
from small import SHIPPED

from nystromformer.files.paths import experiment_folder


def test_a_shipped_experiment_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, config in SHIPPED.items():
        assert experiment_folder(name) == config.parent
        assert experiment_folder(f"elsewhere/{name}") == Path("elsewhere") / name, "a path is a path"
    (tmp_path / "nystrom-tiny-conv").mkdir()
    assert experiment_folder("nystrom-tiny-conv") == Path("nystrom-tiny-conv"), "what is here comes first"
    assert experiment_folder("nowhere") == Path("nowhere")
    assert experiment_folder("n" * 400) == Path("n" * 400), "for the command to refuse"
