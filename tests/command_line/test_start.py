"""What every command does before its work."""

import subprocess
import sys


def test_commands_start_without_what_they_may_not_need() -> None:
    """The compiler, Triton and what shards models: they take longer to import than torch itself."""
    program = (
        "import sys, nystromformer.tasks.pretraining.pretrain, nystromformer.tasks.finetuning.sweep\n"
        "sys.exit(' '.join({'torch._dynamo', 'triton', 'torch.distributed.tensor'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
