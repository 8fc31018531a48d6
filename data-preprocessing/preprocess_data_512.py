"""Make the paper's pretraining dataset of rows of 512 tokens: Wikipedia and BookCorpus."""

from pathlib import Path

from nystromformer.command_line import cli
from nystromformer.data.preprocessing.commands import dataset_command

if __name__ == "__main__":
    cli.run(dataset_command(512, ("wiki", "bookcorpus"), Path(__file__).resolve().parent))
