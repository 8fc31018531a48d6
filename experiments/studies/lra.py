"""The Long Range Arena on two cores (docs/results/arena.md).

DIR holds imdb, lra/cifar-10-batches-py and lra/retrieval, or some of them. Some twelve core-hours.
"""

from collections.abc import Mapping, Sequence

from study import Line, Stage, main

DRAWN_SHORT = "--longer_than 50 --shorter_than 250 --seed 1"
DATA: Mapping[str, str] = {
    "listops": "",
    "listops-short": f"{DRAWN_SHORT} --train 20000",
    "listops-curriculum": f"{DRAWN_SHORT} --train 400000 --train_longer_than 3",
    "text": "--imdb {data}/imdb --length 1024",
    "retrieval": "--release {data}/lra/retrieval",
    "image": "--cifar {data}/lra",
    "pathfinder": "--train 1600 --validation 200 --test 200",
}
WIDTHS: Mapping[str, str] = {
    "nystrom": "num_landmarks=32",
    "softmax": "",
    "performer": "num_features=32",
    "linformer": "projected_length=32",
    "conv_linformer": "stride=8",
    "local": "block_size=32",
    "longformer": "window=32",
    "bigbird": "block_size=8,num_global_blocks=1",
    "sparse": "stride=16",
    "reformer": "chunk_length=32",
    "sinkhorn": "block_size=32",
    "linear": "",
    "near_far": "",
    "mra": "",
    "synthesizer": "",
}
"""Of expressions of 50 to 250 tokens: a width of 32 where one may be chosen."""
BOTH = ("nystrom", "softmax")
SHORT = "--steps 5000 --every 250 --lr 1e-3 --set model.max_seq_len=256"
DEEPER = (
    "--conv 0 --steps 10000 --every 500 --batch_size 128 --lr 1e-3 --set model.max_seq_len=256 "
    "--set pretraining_setting.warmup=0.02 --set model.positions=rotary --set model.position_offset=2 "
    "--set model.num_layers=6 --set model.dropout_prob=0 --set pretraining_setting.validate_batches_per_epoch=16"
)
TEXT = "--steps 1000 --every 250 --length 1024 --set pretraining_setting.validate_batches_per_epoch=20"


def train(data: str, name: str, flags: str, row: str = "") -> Line:
    """In float32 on every processor: models as narrow as these gain nothing from bfloat16 on one."""
    task = data.partition("-")[0]
    place = f"code/run_lra.py --task {task} --model {{here}} --data {{out}}/data/{data} --attention {name}"
    return Line(
        f"{data}-{row or name}", f"{place} {flags} --baselines --set model.mixed_precision=false", f"lra/{task}"
    )


def short(name: str, conv: int, seeds: str, track: str = "paper") -> Line:
    """On short expressions."""
    chosen = f"{name},{WIDTHS[name]}" if WIDTHS[name] else name
    flags = f"--conv {conv} --track {track} {SHORT} --seed {seeds}"
    return train("listops-short", chosen, flags, f"{name}-{track}-{conv}")


def stage(name: str, lines: Sequence[Line]) -> Stage:
    """Runs, and the table of all of them beside the paper's."""
    folders = " ".join(f"{{out}}/{name}/{line.name}" for line in lines)
    return Stage(lines, reports=[f"code/run_report.py lra {folders} --out {{results}}/{name}.md"])


STAGES = {
    # Each of these uses all cores itself.
    "prepared": Stage([
        Line(name, f"experiments/lra/prepare.py {name.partition('-')[0]} {flags} --out {{out}}/data/{name}")
        for name, flags in DATA.items()
    ]),
    "short": stage("short", [short(name, conv, "0") for conv in (0, 35) for name in WIDTHS]),
    "tracks": stage("tracks", [short(name, 0, "0,1,2", track) for track in ("paper", "modern") for name in BOTH]),
    "curriculum": stage("curriculum", [
        train("listops-curriculum", "softmax", DEEPER),
        train("listops-curriculum", "nystrom,num_landmarks=32", DEEPER, "nystrom"),
    ]),
    "others": stage("others", [
        *(train("text", name, TEXT) for name in BOTH),
        *(train("image", name, "--steps 500 --every 100 --batch_size 64") for name in BOTH),
        train("retrieval", "nystrom", "--steps 60 --every 20 --batch_size 8"),
        train("pathfinder", "nystrom", "--steps 100 --every 50"),
    ]),
    "listops": stage("listops", [
        *(train("listops", name, "--steps 1000 --every 250", f"{name}-1000") for name in (*BOTH, "linear")),
        train("listops", "nystrom", "--steps 5000 --every 250"),
    ]),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES)
