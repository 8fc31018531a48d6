"""An experiment folder's name, and what may change between two starts of one run."""

from pathlib import Path
from typing import Any

import pytest
from small import small_config

from nystromformer.errors import UserError
from nystromformer.tasks.experiment import folder
from nystromformer.tasks.experiment.checks import check_resumable
from nystromformer.tasks.experiment.folder import Experiment, name_outside


def facts(attn_type: Any) -> dict[str, Any]:
    config = small_config(model__attn_type=attn_type).model_dump(mode="json", by_alias=True)
    return {"config": config, "dataset": "rows"}


def test_by_what_the_attention_is_computed_may_change() -> None:
    before = facts({"name": "nystrom", "implementation": "torch"})
    for now in (facts({"name": "nystrom"}), facts({"name": "nystrom", "implementation": "triton"})):
        assert check_resumable(before, now, Path("cp.cp")) == []


def test_the_attention_may_not_change() -> None:
    with pytest.raises(UserError, match=r"model\.attn_type"):
        check_resumable(facts({"name": "nystrom"}), facts({"name": "nystrom", "pinv_iterations": 3}), Path("cp.cp"))


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
