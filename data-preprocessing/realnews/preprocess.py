"""RealNews, one article a JSON line, in the unified format."""

from pathlib import Path

from nystromformer.command_line import cli
from nystromformer.data.preprocessing.commands import corpus_command
from nystromformer.data.preprocessing.formats import FORMATS

if __name__ == "__main__":
    cli.run(corpus_command(FORMATS["realnews"], Path(__file__).resolve().parent, min_words=1000))
