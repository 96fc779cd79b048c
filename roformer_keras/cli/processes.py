"""A training of several processes: each command starts a worker and watches it.

JAX ends a process, without an exception of Python, when another process of the training
is gone. So a command leaves the training to a worker, a separate process, and says in
its place why it ended. A worker whose command is gone ends too.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from roformer_keras.cli import interrupts
from roformer_keras.errors import ConfigurationError, ProcessError, RoFormerError
from roformer_keras.io.atomic import one_line
from roformer_keras.training.process_settings import Processes

# Seconds for which a worker may tidy up after an interruption.
_TIDYING = 10
# A warning of Python that would stand below the error.
_OF_LOCKS = "ignore:resource_tracker:UserWarning"
_RESUME = (
    "the other processes say why; the same command resumes the last saved state, with "
    "as many processes or others"
)


def train_together(train: Callable, arguments: tuple, processes: Processes) -> Any:
    """Calls a function, in a worker if there are several processes.

    Args:
        train: a function of a module; returns what can be pickled.
        arguments: of it, which can be pickled too.
        processes: `Processes`.

    Raises:
        BackendError: Keras does not run on JAX.
        ConfigurationError: one process has a coordinator.
        ProcessError: another process ended or cannot be reached, or the worker was
            killed.
        RoFormerError: as the function raises.
    """
    if processes.num_processes == 1:
        if processes.coordinator is not None:
            raise ConfigurationError(
                "--coordinator is for several processes: give each of them "
                "--num-processes and --process-id too"
            )
        return train(*arguments)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(theirs, train, arguments, processes))
    with _without_remarks():
        worker.start()
    theirs.close()
    try:
        return _watch(worker, ours, processes)
    finally:
        # After an interruption, which a terminal sends to the worker too: a second one
        # would disturb its tidying.
        worker.join(1)
        if worker.is_alive():
            worker.terminate()
            worker.join(_TIDYING)
            worker.kill()


@contextlib.contextmanager
def _without_remarks():
    """Starts processes that do not remark on locks that a killed one leaves behind."""
    name = "PYTHONWARNINGS"
    before = os.environ.get(name, "")
    os.environ[name] = ",".join(filter(None, [before, _OF_LOCKS]))
    try:
        yield
    finally:
        os.environ[name] = before


def _watch(worker, messages, processes):
    """Result of a worker; raises the error that ended it."""
    has_joined = False
    while True:
        try:
            kind, content = messages.recv()
        except EOFError:
            worker.join()
            raise error_of_end(worker.exitcode, has_joined, processes) from None
        if kind == "result":
            worker.join()
            return content
        if kind == "error":
            error, message, hint = content
            raise error(message, hint=hint)
        if kind == "lost" and not has_joined:
            raise error_of_end(-signal.SIGABRT, has_joined, processes)
        if kind == "lost":
            raise ProcessError(
                f"{_name(processes)} could not compute with the others ({content})",
                hint=_RESUME,
            )
        has_joined = True


def error_of_end(code: int, has_joined: bool, processes: Processes) -> ProcessError:
    """The error of a worker that ended without saying why.

    Args:
        code: int. Its exit code; below 0 the number of a signal.
        has_joined: bool. Whether it had met the others.
        processes: `Processes`.
    """
    name = _name(processes)
    # As Python counts, and as a shell does after an interruption.
    number = -code if code < 0 else code - 128
    if number == signal.SIGABRT and not has_joined:
        return ProcessError(
            f"{name} could not meet the others at {processes.coordinator}",
            hint="start all of them within five minutes, process 0 on the machine of "
            "that name, and choose a port that is free there",
        )
    if number == signal.SIGABRT:
        return ProcessError(
            f"{name} was ended because another has ended or cannot be reached",
            hint=_RESUME,
        )
    with contextlib.suppress(ValueError):
        hint = "the same command resumes the last saved state"
        if number == signal.SIGKILL:
            hint = f"the system does so where memory is short; {hint}"
        return ProcessError(
            f"{name} was killed by {signal.Signals(number).name}", hint=hint
        )
    return ProcessError(f"{name} ended with an error that is a bug, see above")


def _name(processes):
    return f"process {processes.process_id} of {processes.num_processes}"


# === In the worker ===


def _work(messages, train, arguments, processes):
    """Trains, sends what came of it, and ends the process."""
    threading.Thread(target=_end_with_command, daemon=True).start()
    # Libraries in C++ remark on their connections; the command prints the output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # In place of a lock between processes, which would be left behind.
    tqdm.set_lock(threading.RLock())
    code = 1
    with interrupts.watched():
        try:
            messages.send(("result", _train(messages, train, arguments, processes)))
            code = 0
        except RoFormerError as error:
            messages.send(("error", (type(error), error.message, error.hint)))
        except (Exception, KeyboardInterrupt) as error:
            # Caught on its way, an interruption becomes any other error.
            if interrupts.came():
                code = interrupts.exit_code()
            elif type(error).__name__ == "JaxRuntimeError" or "Gloo " in str(error):
                messages.send(("lost", one_line(error).rpartition("computation: ")[2]))
            else:
                traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # What JAX does at the end of a process would wait for the others.
    os._exit(code)


def _train(messages, train, arguments, processes):
    from roformer_keras.training.processes import join, leave

    join(processes)
    messages.send(("joined", None))
    result = train(*arguments)
    leave()
    return result


def _end_with_command():
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
