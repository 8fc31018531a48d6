"""Stories, one file a document, in the unified format."""

from pathlib import Path

from nystromformer import cli
from nystromformer.data.preprocessing.commands import corpus_command

if __name__ == "__main__":
    cli.run(corpus_command("stories", Path(__file__).resolve().parent))
