"""English docstrings of the installed Python packages, in the unified format."""

from pathlib import Path
from typing import Annotated

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.data.preprocessing.commands import ALL_WORK, Documents, WorkFlags
from nystromformer.data.preprocessing.docstrings import DocstringSettings, unify_docstrings

HERE = Path(__file__).resolve().parent


@with_flag_groups
def main(
    settings: DocstringSettings,
    out: Documents = HERE / "unified",
    work: Annotated[WorkFlags, Without("array_index", "array_size")] = ALL_WORK,
) -> None:
    """Turn the docstrings of Python packages into documents of sentences, a module each, which preprocess_data_512.py
    and preprocess_data_4096.py make rows of: files 00000.jsonl, … and corpus.json about them.
    """
    unify_docstrings(out, settings, work.workers)


if __name__ == "__main__":
    cli.run(main)
