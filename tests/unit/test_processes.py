"""Processes that train together: what a command says of a worker that has ended."""

import signal

from roformer_keras.cli.processes import error_of_end
from roformer_keras.training.process_settings import Processes

TWO = Processes(num_processes=2, process_id=1, coordinator="node-0:1234")


def test_the_error_of_a_worker_that_has_ended():
    for code, has_joined, message in (
        (-signal.SIGABRT, False, "1 of 2 could not meet the others at node-0:1234"),
        (-signal.SIGABRT, True, "1 of 2 was ended because another has ended or cannot"),
        (-signal.SIGKILL, True, "1 of 2 was killed by SIGKILL: the system does so"),
        (128 + signal.SIGTERM, True, "process 1 of 2 was killed by SIGTERM"),
        (1, True, "process 1 of 2 ended with an error that is a bug, see above"),
    ):
        error = error_of_end(code, has_joined, TWO)
        assert error.exit_code == 7
        assert message in str(error)
