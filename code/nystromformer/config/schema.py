"""What a config.json may say: the authors' sections and keys, each with a sentence and checked where it is declared."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .messages import Impossible, StrictModel, quoted
from .network import ModelConfig
from .ranges import LEAST_RATE, MOST_RATE, MOST_TOKENS, Folder, Seed, Size, as_tuple

ObjectiveName = Literal["mlm", "sop"]
Schedule = Literal["linear", "cosine", "wsd"]
Resize = Literal["lossless", "lossy"]
Positions = Literal["repeat", "interpolate"]


class PretrainingConfig(StrictModel):
    """The pretraining run."""

    objectives: Annotated[tuple[ObjectiveName, ...], BeforeValidator(as_tuple)] = Field(
        default=("mlm",), json_schema_extra={"uniqueItems": True, "contains": {"const": "mlm"}}
    )
    """Training objectives: mlm (predict masked tokens), which is required, and optionally sop (are the two parts of a
    row in order or swapped?). The loss is the mean over masked tokens plus the sum over rows with an order, each
    weighted by 1 / (batch_size x their share of all rows), even in a step with few of them."""
    batch_size: Size
    """Rows of each optimiser step, over all devices."""
    batch_size_start: Size | None = None
    """Rows of the first steps, a divisor of batch_size: batches grow by this many rows at a time until
    batch_growth_tokens tokens were seen. null: batch_size from the first step on."""
    batch_growth_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Tokens (rows x their length) over which batches grow from batch_size_start to batch_size, divided equally among
    the sizes."""
    learning_rate: float = Field(ge=LEAST_RATE, le=MOST_RATE)
    """Peak learning rate, reached at the end of the warm-up."""
    schedule: Schedule = "linear"
    """How the learning rate falls to 0 after the warm-up. linear; cosine: half a cosine; wsd (warm-up, stable, decay):
    constant, then linear over the last steps, a fraction set by decay."""
    decay: float | None = Field(default=None, gt=0, le=1)
    """With schedule wsd: fraction of all steps in which the rate falls; null: 0.2."""
    warmup: float = Field(ge=0, le=1)
    """Fraction of all steps in which the learning rate rises linearly from 0 to its peak."""
    batches_per_report: Size = 10
    """Steps between two lines of log.jsonl."""
    batches_per_epoch: Size
    """Steps of an epoch, which ends with a validation and a checkpoint."""
    epoch: Size
    """Number of epochs, of batches_per_epoch steps each."""
    validate_batches_per_epoch: Size
    """Batches of batch_size rows in each validation, always the same ones."""
    mask_prob: float = Field(default=0.15, ge=1e-4, le=0.95)
    """Masking rate: fraction of each row's tokens that mlm has to predict."""
    mask_replace_prob: float = Field(default=0.8, ge=0, le=1)
    """Fraction of the predicted tokens that are replaced by [MASK]."""
    random_replace_prob: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the predicted tokens that are replaced by a random token; the rest stays unchanged."""
    validation_mask_prob: float | None = Field(default=None, ge=1e-4, le=0.95)
    """Masking rate of validations, with BERT's fractions of [MASK] and random tokens (0.8 and 0.1), to compare runs
    with different masking; null: as in training."""
    optimizer: Literal["adamw", "stable_adamw"] = "adamw"
    """adamw; or stable_adamw (Wortsman et al. 2023), AdamW with a smaller step for each tensor whose squared gradients
    exceed their running mean, which needs no max_grad_norm."""
    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Weight decay of matrices; norms and biases have none."""
    adam_beta1: float = Field(default=0.9, ge=0, le=0.9999)
    """AdamW's beta1: decay of the running mean of the gradient."""
    adam_beta2: float = Field(default=0.999, ge=0, le=0.999999)
    """AdamW's beta2: decay of the running mean of the squared gradient."""
    adam_eps: float = Field(default=1e-6, ge=1e-16, le=1)
    """AdamW's epsilon."""
    max_grad_norm: float | None = Field(default=1.0, ge=1e-6, le=1e12)
    """Largest norm of the gradient; a larger gradient is scaled down to it. null: no limit."""
    seed: Seed = 0
    """Seed of the initial weights, the order of the rows, masking and dropout: the same seed gives the same run."""
    keep_epochs: Size | None = None
    """Number of epochs whose checkpoints are kept, state (.cp) and weights (.model), the latest ones; earlier ones are
    removed at each epoch's end and when the run is started again. null: all."""
    minutes_per_checkpoint: float = Field(default=10.0, ge=1e-6, le=525_600)
    """Minutes between two checkpoints within an epoch."""

    def impossible(self) -> Impossible:
        if "mlm" not in self.objectives or len(set(self.objectives)) < len(self.objectives):
            yield ("objectives",), f'expected "mlm" among them, each once, found {quoted(self.objectives)}'
        if self.decay is not None and self.schedule != "wsd":
            yield ("decay",), f'expected schedule "wsd" with it, found "{self.schedule}"'
        if self.schedule == "wsd" and self.warmup + self.decay_share > 1 + 1e-9:
            text = f"expected at most 1 together with warmup = {self.warmup:g}, found {self.decay_share:g}"
            yield ("decay",), text
        start, tokens = self.batch_size_start, self.batch_growth_tokens
        if (start is None) != (tokens is None):
            missing = "batch_size_start" if start is None else "batch_growth_tokens"
            yield (missing,), "missing: batch_size_start and batch_growth_tokens need each other"
        elif start is not None and (self.batch_size % start or start == self.batch_size):
            text = f"expected a smaller number that divides batch_size = {self.batch_size}, found {start}"
            yield ("batch_size_start",), text
        shares = self.mask_replace_prob + self.random_replace_prob
        if shares > 1 + 1e-9:
            text = f"expected at most 1 together with mask_replace_prob = {self.mask_replace_prob:g}, found {shares:g}"
            yield ("random_replace_prob",), text
        if not shares:
            text = "expected mask_replace_prob or random_replace_prob above 0: else every token to predict is visible"
            yield ("mask_replace_prob",), text

    @property
    def decay_share(self) -> float:
        """Fraction of all steps at whose end the rate of schedule "wsd" falls."""
        return 0.2 if self.decay is None else self.decay

    @property
    def smallest_batch(self) -> int:
        """Rows of the first step."""
        return self.batch_size_start or self.batch_size

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epoch * self.batches_per_epoch

    @property
    def warmup_steps(self) -> int:
        """Optimiser steps in which the learning rate rises."""
        return round(self.warmup * self.num_steps)


class GpuConfig(StrictModel):
    """How the work is divided among devices."""

    inst_per_gpu: Size
    """Rows that one device computes at once, a divisor of batch_size; gradients are accumulated over the batch."""


class ExperimentConfig(StrictModel):
    """A config.json: one experiment."""

    schema_url: str | None = Field(default=None, alias="$schema")
    """Path of this file's JSON schema, config.schema.json, for editors; not used by runs."""
    model_checkpoints: Folder = "/model/model"
    """Folder where checkpoints and logs are written. /model, here and below, is the experiment folder (--model), and
    relative paths begin there."""
    data_folder: Folder = "/dataset"
    """Folder of the dataset for pretraining, as preprocessing writes it; the flag --dataset names another."""
    glue_dataset_folder: Folder = "/glue"
    """Folder of the GLUE tasks' files; the flag --glue names another."""
    imdb_dataset_folder: Folder = "/imdb"
    """Folder of the IMDB reviews; the flag --imdb names another."""
    wikihop_dataset_folder: Folder = "/wikihop"
    """Folder of the WikiHop files; the flag --wikihop names another."""
    documents_folder: Folder = "/documents"
    """Folder where run_classify.py looks for tables that are not in the current one."""
    from_cp: Folder | None = None
    """Checkpoint (.model or .cp) of another run, whose weights a new run starts from; null: random weights. A run that
    has its own checkpoint resumes from that."""
    from_cp_resize: Resize = "lossless"
    """What may differ in size from from_cp's checkpoint. lossless: positions, sentence types and larger convolution
    kernels; lossy: also smaller kernels, which lose their outer taps."""
    from_cp_positions: Positions = "repeat"
    """How a longer table of learned positions is filled from a checkpoint. repeat: its positions repeat; interpolate:
    its positions are stretched over the table, which needs from_cp_resize "lossy"."""
    model: ModelConfig
    """The network: sizes, attention and computation."""
    pretraining_setting: PretrainingConfig
    """The pretraining run: length, optimiser, checkpoints and logs."""
    gpu_setting: GpuConfig
    """How a batch is divided among devices."""

    def impossible(self) -> Impossible:
        setting, rows = self.pretraining_setting, self.gpu_setting.inst_per_gpu
        for key, batch in (("batch_size", setting.batch_size), ("batch_size_start", setting.smallest_batch)):
            if batch % rows:
                text = f"expected a multiple of gpu_setting.inst_per_gpu = {rows}, found {batch}"
                yield ("pretraining_setting", key), text
                break
