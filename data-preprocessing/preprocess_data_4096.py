"""Make a pretraining dataset of rows of 4096 tokens, with a third of Stories and of RealNews added."""

from pathlib import Path

from nystromformer.command_line import cli
from nystromformer.data.preprocessing.commands import dataset_command

MIXTURE = ("wiki", "bookcorpus", "realnews=1/3", "stories=1/3")

if __name__ == "__main__":
    cli.run(dataset_command(4096, MIXTURE, Path(__file__).resolve().parent))
