"""An experiment folder's name."""

from pathlib import Path

import pytest
from small import small_config

from nystromformer.tasks.experiment import folder
from nystromformer.tasks.experiment.folder import Experiment, name_outside


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/home/x/nystrom-512", "nystrom-512"),
        (r"/home/x/the\040expériment\134", "the expériment\\"),
        ("/@home/a\u2028b\u00a0c", "a\u2028b\u00a0c"),
        ("/", None),
    ],
)
def test_a_mounted_folder_has_its_name_outside(place: str, name: str | None) -> None:
    lines = [f"22 27 0:21 {each} rw,relatime - ext4 /dev/sda rw" for each in ("/ /", "/x/code /code", "/y/z /model/z")]
    assert name_outside("\n".join([*lines, f"23 27 0:21 {place} /model rw - ext4 /dev/sda rw"])) == name
    assert name_outside("\n".join(lines)) is None


def test_a_folder_is_called_by_its_name_or_the_one_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    experiment = Experiment(tmp_path / "link", small_config())
    assert experiment.name == "mine"
    monkeypatch.setattr(folder, "CONTAINER_MODEL", tmp_path / "mine")
    monkeypatch.setattr(folder, "_MOUNTS", tmp_path / "mountinfo")
    assert experiment.name == "mine", "a system without the list"
    (tmp_path / "mountinfo").write_text(f"1 2 0:1 /home/x/nystrom-512 {tmp_path}/mine rw - ext4 /dev/sda rw\n")
    assert experiment.name == "nystrom-512"
