"""Which container a script of data-preprocessing/ needs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from nystromformer.container.compose import Mounts, Place, compose, engine_name
from nystromformer.container.flags import ScriptFlags
from nystromformer.container.options import LaunchOptions
from nystromformer.container.scripts import PROJECT
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError

_HOME = PROJECT / "data-preprocessing"
_INSIDE = PurePosixPath("/data-preprocessing")


def preprocess_spec(name: str, flags: ScriptFlags, options: LaunchOptions, place: Place) -> RunSpec:
    """The container that runs a script of data-preprocessing/; it gets no GPU.

    Args:
        name: a corpus (wiki), a length (512), or the script's path.

    Raises:
        UserError: there is no such script, or a flag is wrong.
    """
    script = _find_script(name)
    what = _what_it_makes(script)
    mounts = Mounts(place)
    mounts.add(_HOME, str(_INSIDE))
    mounts.add_code(options.code)
    container = options.name or f"preprocess-{engine_name(what)}"
    return compose(
        options,
        mounts,
        ("python3", str(_INSIDE / script.relative_to(_HOME).as_posix()), *flags.argv),
        name=container,
        output=_INSIDE / f"{container}.txt",
        command=f"preprocess {what}",
        home=_HOME,
        working_dir=str(_INSIDE),
    )


def _find_script(name: str) -> Path:
    inside = Path(name)
    if inside.is_absolute() and inside.is_relative_to(_HOME):
        inside = inside.relative_to(_HOME)
    elif inside.parts[:1] == (_HOME.name,):
        inside = inside.relative_to(_HOME.name)
    scripts = sorted([*_HOME.glob("*/preprocess.py"), *_HOME.glob("preprocess_data_*.py")])
    for script in (_HOME / inside, _HOME / name / "preprocess.py", _HOME / f"preprocess_data_{name}.py"):
        if script in scripts:
            return script
    names = ", ".join(map(_what_it_makes, scripts))
    raise UserError(f"preprocess {name}: expected one of {names} (scripts of {_HOME})")


def _what_it_makes(script: Path) -> str:
    """A corpus, or rows of a length: the name that users call a script by."""
    return script.parent.name if script.parent != _HOME else script.stem.removeprefix("preprocess_data_")
