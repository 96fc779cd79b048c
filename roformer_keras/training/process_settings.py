"""Processes that train together, and the number of this one."""

import dataclasses

from roformer_keras.checks import Settings, integer
from roformer_keras.errors import ConfigurationError, Hint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes(Settings):
    """The processes of a training, and which of them this one is.

    Args:
        num_processes: int. How many there are.
        process_id: int in [0, num_processes). Of this one.
        coordinator: str, `HOST:PORT`. Where the others find process 0: a name of its
            machine that they can reach, and a free port there.

    Raises:
        ConfigurationError: an argument breaks its rule.
    """

    num_processes: int = integer(1, minimum=1, maximum=2**16)
    process_id: int = integer(0, minimum=0)
    coordinator: str | None = None

    def _check_together(self):
        if self.process_id >= self.num_processes:
            raise ConfigurationError(
                "processes are numbered from 0, so process_id must be below "
                f"num_processes, got process_id={self.process_id} and "
                f"num_processes={self.num_processes}"
            )
        if self.num_processes > 1 and not _is_address(self.coordinator):
            raise ConfigurationError(
                "processes meet at HOST:PORT, the machine of process 0 and a free port "
                f"there, got coordinator={self.coordinator!r}",
                hint=Hint("give {coordinator} to each of them"),
            )


def _is_address(text):
    host, _, port = (text or "").rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) < 6
    return bool(host) and is_number and 0 < int(port) < 2**16
