"""Opening what is to be served, and listening."""

import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from nystromformer.command_line import interrupt
from nystromformer.errors import UserError
from nystromformer.runs.record import is_finished
from nystromformer.serve.answers import Model
from nystromformer.serve.limits import allowed_hosts
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.opening import run_device
from nystromformer.training import Group

logger = logging.getLogger(__name__)


def serve_run(
    run: Path,
    checkpoint: str | None,
    tokenizer: Path | None,
    host: str,
    port: int,
    most_bytes: int,
    waiting: int,
    together: int,
    hosts: str,
    device: str,
    baseline: bool,
    show: Callable[[str], None],
) -> None:
    """Serve until stopped.

    Args:
        run: folder of a pretrained experiment, or of a finished fine-tuning run.
        baseline: serve the regression on words beside a run.
        hosts: names that requests may call the service beside the usual ones, with commas between them.
        show: prints the address.

    Raises:
        UserError: nothing to serve there, a port that is in use, or a wrong host name.
    """
    # At once, as they may be missing.
    from nystromformer.serve.app import Limits, create_app
    from nystromformer.serve.connections import Patience, Server

    names = allowed_hosts(hosts, host)
    with listen(host, port) as listener:
        model, seconds_of = open_served(run, checkpoint, tokenizer, device, baseline)
        limits = Limits(most_bytes, waiting=waiting, together=together, hosts=names)
        app = create_app(model, limits, seconds_of)
        address, bound = listener.getsockname()[:2]
        show(f"{model.name}: http://{f'[{address}]' if ':' in address else address}:{bound}/ (Ctrl-C ends it)")
        try:
            Server(app, listener, Patience.for_bodies_of(most_bytes)).run()
        except KeyboardInterrupt:
            interrupt.say()
            # A computation that nobody waits for any more would hold up the end; SIGTERM's default ends it, too.
            os._exit(interrupt.STATUS)


def open_served(
    run: Path, checkpoint: str | None, tokenizer: Path | None, device: str, baseline: bool = False
) -> tuple[Model, dict[str, Callable[[int, int], float]]]:
    """What a folder holds, and the seconds of its encoder, as `create_app` takes them.

    Raises:
        UserError: nothing that could be served.
    """
    from nystromformer.serve.cost import measure_encoder
    from nystromformer.serve.masks import FillMask
    from nystromformer.serve.runs import RunModel, WordsModel
    from nystromformer.tasks.prediction.loaded import load_run, load_words

    given = {"--checkpoint": checkpoint is not None, "--tokenizer": tokenizer is not None}
    if is_finished(run) and (found := [flag for flag, is_given in given.items() if is_given]):
        raise UserError(
            f"{found[0]}: expected none, because a finished run has its own tokenizer, and its best epoch is served"
        )
    model: Model
    if baseline:
        return WordsModel(load_words(run)), {}
    if is_finished(run):
        finished = load_run(run, device)
        model, config, chosen = RunModel(finished), finished.config.model, finished.device
    else:
        if not (run / "config.json").is_file():
            raise UserError(
                f"{run}: expected the folder of a pretrained experiment, with config.json, or of a finished "
                "fine-tuning run, with result.json"
            )
        experiment = open_experiment(run)
        chosen = run_device(experiment, device, Group())
        model, config = FillMask(experiment, checkpoint or "last", tokenizer, chosen), experiment.config.model
    logger.info("measuring the encoder")
    return model, measure_encoder(config, chosen, model.window)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, before anything is loaded.

    Raises:
        UserError: the port is in use or may not be used, or there is no such address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(256)
    except UnicodeError as error:  # a name with an empty part, or a long one
        raise UserError(f"--host {host:.80}: expected a name or an address, found none ({error})") from None
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "is in use: choose another with --port (0: any that is free)",
            errno.EACCES: "may not be used by this user: choose one from 1024 on with --port",
        }
        reason = reasons.get(error.errno or 0, f"cannot be listened on: {error.strerror or error}")
        raise UserError(f"--host {host} --port {port}: {reason}") from None
    return listener
