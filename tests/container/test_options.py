"""What the launcher's own flags may say."""

from typing import Any

import pytest

from nystromformer.container.options import BuildOptions, LaunchOptions
from nystromformer.errors import UserError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mount": [":/x"]}, "--mount :/x"),
        ({"mount": ["/x:relative"]}, "--mount /x:relative"),
        ({"mount": ["/x:/y:z"]}, "--mount /x:/y:z"),
        ({"mount": ["/x:/y:ro:ro"]}, "--mount /x:/y:ro:ro"),
        ({"mount": ["/x:/y", "z"]}, "--mount z"),
        ({"env": ["=value"]}, "--env =value"),
        *(({"gpus": text}, "--gpus .*: expected all, none") for text in ("", "a,b", "0,0", "-1", "all,0", "0, 1")),
        *(({"gpus": text}, "--gpus .*: expected all, none") for text in ("0,", "0;1", "1.5", "ALL", "gpu0", "0\n1")),
        *(({"restart": text}, "--restart .*always fails, forever") for text in ("always", "unless-stopped", "yes")),
        *(({"restart": f"on-failure:{text}"}, "--restart on-failure") for text in ("", "-1", "0", "00", 10**20)),
        *(({"shm_size": text}, "--shm_size") for text in ("", "0", "8 g", "-8g", "1.5g", "g", "8gb", "8t", "lots")),
        *(({"user": text}, "--user .*: expected two numbers") for text in ("", "me", "1000", "1000:", "-1:0", "1:2:3")),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"(?s)^{words}"):
        LaunchOptions(**given)


def test_arguments_of_a_build() -> None:
    options = BuildOptions(base="ubuntu:24.04", build_arg=["UID=5", "PIP_INDEX_URL=https://x/?a=b", "EMPTY="])
    assert options.arguments == {
        "BASE_IMAGE": "ubuntu:24.04",
        "UID": "5",
        "PIP_INDEX_URL": "https://x/?a=b",
        "EMPTY": "",
    }
    assert BuildOptions(torch_index_url="https://y").arguments == {"TORCH_INDEX_URL": "https://y"}
    for text in ("UID", "=5", ""):
        with pytest.raises(UserError, match=f"--build_arg {text}: expected NAME=VALUE"):
            BuildOptions(build_arg=[text])
