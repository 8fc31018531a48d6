"""Training for a metric beside training by cross-entropy whose threshold and epoch the metric chooses
(docs/objectives.md).

DIR holds glue and, as minilm/, the files of all-MiniLM-L6-v2 (see minilm.py). Every method has the same seeds, batches
and steps. Some two core-hours.
"""

from collections.abc import Sequence

from study import Line, Stage, main

PAIRS = "code/run_glue.py --model {here} --glue {data}/glue --task MRPC --train_rows 1500 --epoch 2 --lr 5e-5"


def stage(metric: str, methods: Sequence[str], command: str, start: str, options: str = "") -> Stage:
    """A metric by each method; differences are those of equal seeds."""
    seeds = "--seed 0,1,2,3,4 --device cpu"
    lines = [
        Line(method, f"{command} {seeds} --objective {metric},method={method}{options}", start)
        for method in ("cross_entropy", *methods)
    ]
    return Stage(lines, (metric,), "cross_entropy", by_seed=True)


STAGES = {
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here}")]),
    **{
        f"pairs-{name}": stage(
            name, (method,), f"{PAIRS} --batch_size 16 --set model.pooling=mean", "original/softmax", ",stratify=true"
        )
        for name, method in (("f_beta", "dual"), ("average_precision", "eban"))
    },
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
