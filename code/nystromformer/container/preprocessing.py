"""Which container a script of data-preprocessing/ needs.

That folder is /data-preprocessing in it. Other folders that flags name are where they are on this machine, so that what
a script writes down of them is what it would write without a container.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from nystromformer.container.command_line import ScriptFlags
from nystromformer.container.mounts import Mounts, Place
from nystromformer.container.options import LaunchOptions
from nystromformer.container.spec import RunSpec, container_name
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT

_HOME = PROJECT / "data-preprocessing"
_INSIDE = PurePosixPath("/data-preprocessing")
_UNIFIED = "unified"


def preprocess_spec(name: str, flags: ScriptFlags, options: LaunchOptions, place: Place) -> RunSpec:
    """The container that runs a script of data-preprocessing/; it gets no GPU.

    Args:
        name: a corpus (wiki), a length (512), or the script's path.
        flags: of the script.

    Raises:
        UserError: there is no such script, or a flag is wrong.
    """
    script = find_script(name)
    what = _what_it_makes(script)
    mounts = Mounts(place)
    mounts.add(_HOME, str(_INSIDE), read_only=False)
    mounts.add_code(options.code)
    folders = _Folders(mounts, flags)
    if script.parent == _HOME:
        folders.add_rows()
    else:
        folders.add_corpus(script.parent)
    name = options.name or f"preprocess-{container_name(what)}"
    return RunSpec(
        name=name,
        options=options,
        argv=("python3", str(_INSIDE / script.relative_to(_HOME).as_posix()), *folders.flags.words),
        output=str(_INSIDE / f"{name}.txt"),
        mounts=(*mounts.entries, *options.more_mounts),
        command=f"preprocess {what}",
        home=place.path(_HOME),
        user=place.user,
        working_dir=str(_INSIDE),
        to_make=folders.to_make,
    )


class _Folders:
    """Mounts the folders that a script reads and writes, and gives its flags their names in the container."""

    def __init__(self, mounts: Mounts, flags: ScriptFlags) -> None:
        self.flags = flags
        self.to_make: str | None = None
        self._mounts = mounts

    def add_corpus(self, home: Path) -> None:
        """Of stage one. `home` is the script's folder, where the corpus is if no flag says otherwise."""
        source = self._mount_to_read("--source")
        for folder in (home, home / _UNIFIED):
            self._mounts.follow(folder, read_only=False)
        self._mounts.follow_below(source or home)
        self._mount_to_write("--out")

    def add_rows(self) -> None:
        """Of stage two."""
        corpora = self._mount_to_read("--corpora") or _HOME
        for corpus in sorted(corpora.iterdir()) if self._mounts.place.is_here else ():
            # Those of data-preprocessing may be where a dataset goes.
            self._mounts.follow(corpus, read_only=corpora != _HOME)
            self._mounts.follow_below(corpus / _UNIFIED)
        self._add_tokenizer(corpora)
        self._mount_to_write("--out")

    def _mount_to_read(self, flag: str) -> Path | None:
        """Mount the folder that a flag names; None without the flag."""
        path = self._named_folder(flag)
        if path is not None:
            if self._mounts.place.is_here and not (path := path.resolve()).is_dir():
                raise UserError(f"{flag} {path}: no such folder")
            self._mount(flag, path)
        return path

    def _mount_to_write(self, flag: str) -> None:
        """Mount the folder that a flag names, which is to be made where there is none. To mount the next one above it
        instead would give a script all that is there, such as a home."""
        path = self._named_folder(flag)
        if path is not None:
            path = path.resolve() if self._mounts.place.is_here else path
            is_new = self._mount(flag, path, read_only=False)
            self.to_make = str(path) if is_new and self._mounts.place.is_here and not path.exists() else None

    def _add_tokenizer(self, corpora: Path) -> None:
        """As the script: a folder of that name, or one beside the corpora, or a name that is none of a folder."""
        name, path = self.flags.last("--tokenizer"), self._named_folder("--tokenizer")
        if name == "train":  # a tokenizer, whatever folder has that name
            return
        is_here = self._mounts.place.is_here
        # What looks like a path is one, and "me/mine" a name of the hub.
        is_path = name is not None and (name.startswith((".", "/")) or name.count("/") > 1)
        if path is not None and (path.is_dir() if is_here else is_path):
            # Not resolved: the dataset's manifest keeps the folder's name.
            self._mount("--tokenizer", path)
            self._mounts.follow_below(path)
        elif is_here:
            self._mounts.follow_below(corpora / (name or "roberta-base"))

    def _named_folder(self, flag: str) -> Path | None:
        """The folder that a flag names, seen from where the launcher was called."""
        name = self.flags.last(flag)
        if len(self.flags.values(flag)) > 1:
            raise UserError(f"{flag}: expected one folder for a container, found several: name one above them")
        if name == "":
            raise UserError(f"{flag}: expected a folder, found nothing")
        return None if name is None else Path(os.path.abspath(name))

    def _mount(self, flag: str, path: Path, read_only: bool = True) -> bool:
        """Mount a folder where it is on the engine's machine, if no mount shows it yet, and give the flag its name in
        the container; returns whether it was mounted."""
        views, place = self._mounts.views(path), self._mounts.place
        is_new = not views or views[0].read_only > read_only
        inside = (str(path) if place.is_here else place.path(path)) if is_new else views[0].target
        if is_new:
            self._mounts.add(path, inside, read_only)
        self.flags = self.flags.with_value(flag, inside)
        return is_new


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
    scripts = _scripts()
    for place in (name, f"{name}/preprocess.py", f"preprocess_data_{name}.py", Path("..", name)):
        script = Path(os.path.normpath(_HOME / place))
        if script in scripts:
            return script
    names = ", ".join(map(_what_it_makes, scripts))
    advice = f". Rows of {name} tokens: `{how_to_make(int(name))}`" if re.fullmatch(r"[1-9][0-9]{0,8}", name) else ""
    raise UserError(f"preprocess {name}: expected one of {names} (scripts of {_HOME}){advice}")


def _scripts() -> list[Path]:
    return sorted([*_HOME.glob("*/preprocess.py"), *_HOME.glob("preprocess_data_*.py")])


def _what_it_makes(script: Path) -> str:
    """A corpus, or rows of a length: the name that users call a script by."""
    return script.parent.name if script.parent != _HOME else script.stem.removeprefix("preprocess_data_")
