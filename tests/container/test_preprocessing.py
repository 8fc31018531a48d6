"""Which folder, program and flags a script of data-preprocessing gets in its container."""

import pytest

from nystromformer.container.compose import Place
from nystromformer.container.flags import ScriptFlags
from nystromformer.container.options import LaunchOptions
from nystromformer.container.preprocessing import preprocess_spec
from nystromformer.container.scripts import CODE_FOLDER, PROJECT
from nystromformer.container.spec import Mount, RunSpec
from nystromformer.errors import UserError

HERE = Place(is_here=True, user="1000:1000")


@pytest.mark.parametrize(
    ("name", "script", "label"),
    [
        ("wiki", "wiki/preprocess.py", "preprocess-wiki"),
        ("docstrings", "docstrings/preprocess.py", "preprocess-docstrings"),
        ("512", "preprocess_data_512.py", "preprocess-512"),
        ("4096", "preprocess_data_4096.py", "preprocess-4096"),
        ("wiki/preprocess.py", "wiki/preprocess.py", "preprocess-wiki"),
        ("data-preprocessing/wiki/preprocess.py", "wiki/preprocess.py", "preprocess-wiki"),
        ("./data-preprocessing/preprocess_data_512.py", "preprocess_data_512.py", "preprocess-512"),
        (str(PROJECT / "data-preprocessing" / "preprocess_data_512.py"), "preprocess_data_512.py", "preprocess-512"),
    ],
)
def test_preprocessing(name: str, script: str, label: str) -> None:
    home = PROJECT / "data-preprocessing"
    made = preprocess_spec(name, ScriptFlags(words=("--workers", "4", "text")), LaunchOptions(), HERE)
    assert made == RunSpec(
        name=label,
        image="nystromformer",
        argv=("python3", f"/data-preprocessing/{script}", "--workers", "4", "text"),
        output=f"/data-preprocessing/{label}.txt",
        mounts=(Mount(str(home), "/data-preprocessing"), Mount(str(CODE_FOLDER), "/code", True)),
        user="1000:1000",
        labels={
            "nystromformer.command": f"preprocess {label.removeprefix('preprocess-')}",
            "nystromformer.experiment": str(home),
            "nystromformer.gpus": "none",
        },
        working_dir="/data-preprocessing",
    )


@pytest.mark.parametrize("name", ["", ".", "..", "wikipedia", "README.md", "../code/run_pretrain.py", "/etc/passwd"])
def test_no_script_of_preprocessing(name: str) -> None:
    with pytest.raises(UserError, match=r"expected one of .*512.*wiki"):
        preprocess_spec(name, ScriptFlags(), LaunchOptions(), HERE)
