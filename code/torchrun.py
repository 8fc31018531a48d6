"""PyTorch's torchrun, with its flags. It ends with a sentence and the processes' status, not with a traceback and 1."""

import sys

from nystromformer.command_line.torchrun import launch

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
