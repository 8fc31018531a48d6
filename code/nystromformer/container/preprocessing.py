"""Which container a script of data-preprocessing/ needs.

That folder is /data-preprocessing in it. Other folders that flags name are where they are on this machine, so that what
a script writes down of them is what it would write without a container.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from nystromformer.container.compose import Mounts, Place, compose, engine_name
from nystromformer.container.flags import ScriptFlags
from nystromformer.container.links import LinkedMounts, Located, refuse_own
from nystromformer.container.options import LaunchOptions
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError
from nystromformer.paths import PROJECT

_HOME = PROJECT / "data-preprocessing"
_INSIDE = PurePosixPath("/data-preprocessing")
_UNIFIED = "unified"


def preprocess_spec(name: str, flags: ScriptFlags, options: LaunchOptions, place: Place) -> RunSpec:
    """The container that runs a script of data-preprocessing/; it gets no GPU.

    Args:
        name: a corpus (wiki), a length (512), or the script's path.
        flags: of the script; `folder_to_make` says what has to be made for them.

    Raises:
        UserError: there is no such script, or a flag is wrong.
    """
    script = find_script(name)
    what = _what_it_makes(script)
    mounts = Mounts(place)
    mounts.add(_HOME, str(_INSIDE))
    mounts.add_code(options.code)
    flags = (
        _Folders(mounts, flags).of_corpus(script.parent)
        if script.parent != _HOME
        else _Folders(mounts, flags).of_rows()
    )
    container = options.name or f"preprocess-{engine_name(what)}"
    return compose(
        options,
        mounts,
        ("python3", str(_INSIDE / script.relative_to(_HOME).as_posix()), *flags.words),
        name=container,
        output=_INSIDE / f"{container}.txt",
        command=f"preprocess {what}",
        home=_HOME,
        working_dir=str(_INSIDE),
    )


class _Folders:
    """Mounts the folders that a script reads and writes, and gives its flags their names in the container."""

    def __init__(self, mounts: Mounts, flags: ScriptFlags) -> None:
        self._mounts = mounts
        self._flags = flags
        self._links = LinkedMounts(mounts)
        self._is_here = mounts.place.is_here

    def of_corpus(self, folder: Path) -> ScriptFlags:
        """Of stage one. `folder` is the script's, where the corpus is if no flag says otherwise."""
        source = self._read("--source")
        if self._is_here:
            home = self._links.follow(_there(folder), _there(_HOME), read_only=False)
            self._links.follow(home / _UNIFIED, home, read_only=False)
            self._links.follow_below(source or home, but=(_UNIFIED,))
        self._write("--out")
        return self._flags

    def of_rows(self) -> ScriptFlags:
        """Of stage two."""
        corpora = self._read("--corpora") or _there(_HOME)
        if self._is_here:
            for entry in sorted(corpora.path.iterdir()):
                # Those of data-preprocessing may be where a dataset goes.
                corpus = self._links.follow(corpora / entry.name, corpora, read_only=corpora.path != _HOME)
                if (entry / _UNIFIED).is_dir():
                    self._links.follow_below(self._links.follow(corpus / _UNIFIED, corpus, read_only=True))
        self._tokenizer(corpora)
        self._write("--out")
        return self._flags

    def _read(self, flag: str) -> Located | None:
        """Mount the folder that a flag names; None without the flag."""
        path = self._named(flag)
        if path is None:
            return None
        if self._is_here:
            if not path.is_dir():
                what = "a file, where a folder was expected" if path.exists() else "no such folder"
                raise UserError(f"{flag} {path}: {what}")
            path = path.resolve()
        return self._mount(flag, path, read_only=True)

    def _write(self, flag: str) -> None:
        """Mount the folder that a flag names, which is to be made where there is none: see `folder_to_make`."""
        path = self._named(flag)
        if path is None:
            return
        if self._is_here:
            path = path.resolve()
            above = next(each for each in (path, *path.parents) if each.exists())
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                why = "cannot be written by this user" if above.is_dir() else "is a file, where a folder was expected"
                raise UserError(f"{flag} {path}: {above} {why}")
        self._mount(flag, path, read_only=False)

    def _tokenizer(self, corpora: Located) -> None:
        """As the script: a folder of that name, or one beside the corpora, or a name that is none of a folder."""
        flag = "--tokenizer"
        name = self._flags.last(flag)
        is_path = name is not None and (name.startswith((".", "/", "~")) or name.count("/") > 1)
        path = self._named(flag) or _HOME / "roberta-base"
        beside = corpora / (name or path.name)
        if not self._is_here:
            if is_path:
                self._mount(flag, path, read_only=True)
        elif name is not None and path.is_dir():
            # Not resolved: the dataset's manifest keeps the folder's name.
            self._links.follow_below(self._mount(flag, path, read_only=True))
        elif beside.path.is_dir():
            self._links.follow_below(self._links.follow(beside, corpora, read_only=True))
        elif is_path:
            raise UserError(f"{flag} {name}: no such folder")

    def _named(self, flag: str) -> Path | None:
        """The folder that a flag names, seen from where the launcher was called."""
        name = self._flags.last(flag)
        if name == "":
            raise UserError(f"{flag}: expected a folder, found nothing")
        return None if name is None else Path(os.path.abspath(name))

    def _mount(self, flag: str, path: Path, read_only: bool) -> Located:
        """Mount a folder, and give the flag its name in the container."""
        if path.is_relative_to(_HOME) and not (self._is_here and _leads_out(path)):
            folder = _there(path)
            self._flags = self._flags.with_value(flag, folder.inside)
            return self._links.follow(folder, _there(_HOME), read_only) if self._is_here else folder
        folder = Located(path, self._mounts.place.path(path))
        refuse_own(folder.inside, f"{flag} {path}")
        self._mounts.add(path, folder.inside, read_only)
        self._flags = self._flags.with_value(flag, folder.inside)
        return folder


def folder_to_make(flags: ScriptFlags, place: Place) -> Path | None:
    """The folder of --out, where it is a mount of its own that is not there yet: what a container mounts has to be. To
    mount the next one above it instead would give a script all that is there, such as a home."""
    name = flags.last("--out")
    if not name or not place.is_here:
        return None
    path = Path(os.path.abspath(name)).resolve()
    return None if path.exists() or path.is_relative_to(_HOME.resolve()) else path


def _leads_out(path: Path) -> bool:
    return not path.resolve().is_relative_to(_HOME.resolve())


def _there(path: Path) -> Located:
    """A folder of data-preprocessing."""
    return Located(path, str(_INSIDE / path.relative_to(_HOME).as_posix()))


def how_to_make(length: int) -> str:
    """The command for a dataset of rows of so many tokens: of the scripts, that for the next longer ones."""
    lengths = sorted(int(text) for text in map(_what_it_makes, _scripts()) if text.isdecimal())
    script = next((each for each in lengths if each >= length), lengths[-1])
    more = "" if script == length else f" --length {length}" + (f" --tokenizer_limit {length}" * (length > script))
    return f"python code/launch.py preprocess {script}{more}"


def find_script(name: str) -> Path:
    """The script of data-preprocessing/ that users mean.

    Raises:
        UserError: there is none; names those that are there.
    """
    inside = Path(name)
    if inside.is_absolute() and inside.is_relative_to(_HOME):
        inside = inside.relative_to(_HOME)
    elif inside.parts[:1] == (_HOME.name,):
        inside = inside.relative_to(_HOME.name)
    scripts = _scripts()
    for script in (_HOME / inside, _HOME / name / "preprocess.py", _HOME / f"preprocess_data_{name}.py"):
        if script in scripts:
            return script
    names = ", ".join(map(_what_it_makes, scripts))
    advice = (
        f". Rows of {name} tokens: `{how_to_make(int(name))}`" if re.fullmatch(r"[1-9]\d{0,8}", name, re.ASCII) else ""
    )
    raise UserError(f"preprocess {name}: expected one of {names} (scripts of {_HOME}){advice}")


def _scripts() -> list[Path]:
    return sorted([*_HOME.glob("*/preprocess.py"), *_HOME.glob("preprocess_data_*.py")])


def _what_it_makes(script: Path) -> str:
    """A corpus, or rows of a length: the name that users call a script by."""
    return script.parent.name if script.parent != _HOME else script.stem.removeprefix("preprocess_data_")
