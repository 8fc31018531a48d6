"""What `run_benchmark.py gpu` does once its flags are read."""

from pathlib import Path

from nystromformer.benchmark.results import with_place
from nystromformer.errors import UserError


def measure_on_gpu(
    sections: str, minutes: float, seed: int | None, dry_run: bool, folder: Path, command: str
) -> tuple[str, bool]:
    """Measure and write; returns what to print, and whether all went well and agreed with float64.

    Args:
        command: what repeats the measurement.

    Raises:
        UserError: a package is missing, or as `choose_settings`.
    """
    # Imported here: an installation without the extra `gpu` has not all that they need.
    try:
        from nystromformer.benchmark.gpu.run import run_gpu_benchmark
        from nystromformer.benchmark.gpu.settings import choose_settings
        from nystromformer.benchmark.gpu.summary import failures, summary
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise UserError(f"the package {package} is not installed: pip install {package}") from None
    settings = choose_settings(sections, minutes, seed, dry_run)
    folder.mkdir(parents=True, exist_ok=True)
    figures = run_gpu_benchmark(settings, folder, command)
    return with_place(summary(figures), folder), not failures(figures)
