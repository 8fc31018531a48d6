"""Training for a metric beside training by cross-entropy whose threshold and epoch the metric chooses
(docs/objectives.md).

DIR holds glue and, as minilm/, the files of all-MiniLM-L6-v2 (see minilm.py). Every method has the same seeds, batches
and steps. Some three core-hours.
"""

from collections.abc import Sequence

from study import Line, Stage, main

PAIRS = "code/run_glue.py --model {here} --glue {data}/glue --task MRPC --train_rows 1500 --epoch 2 --lr 5e-5"
PIXELS = (
    "code/run_lra.py --model {here} --task pathfinder_path --data {out}/pictures/drawn --steps 400 --every 100 "
    "--batch_size 16 --lr 2e-3 --attention near_far --conv 0 --set pretraining_setting.warmup=0.1 "
    "--set model.positions=rotary --set model.position_offset=2 --baselines"
)


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
    "pictures": Stage([
        Line(
            "drawn",
            "experiments/lra/prepare.py pathfinder_path --contour 9 --no_distractors --train 1500 --validation 200 "
            "--test 400 --out {here}",
        ),
    ]),
    **{
        f"pairs-{name}": stage(
            name, (method,), f"{PAIRS} --batch_size 16 --set model.pooling=mean", "original/softmax", ",stratify=true"
        )
        for name, method in (("f_beta", "dual"), ("average_precision", "eban"))
    },
    "pixels-iou": stage("iou", ("dual",), PIXELS, "lra/pathfinder_path"),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
