"""Several processes that train one model together, each on a part of every batch.

The processes run the same program on the same settings. Each makes every batch whole
and puts its own rows on its own devices, so that draws do not depend on how many
processes there are. The first process decides and writes; the others learn from it what
it decided.

    join(Processes(num_processes=2, process_id=0, coordinator="10.0.0.1:12345"))
    pretrain(settings, folder)
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras

from roformer_keras import quirks
from roformer_keras.data.adapters import WholeBatches
from roformer_keras.errors import BackendError, ConfigurationError, ProcessError
from roformer_keras.training.process_settings import Processes

# Seconds after which a process that says nothing is taken for dead.
_HEARTBEAT = 30
# Seconds in which all processes must have started.
_START = 300
# Milliseconds for which one process may work while the others wait: a week.
_PATIENCE = 7 * 24 * 3600 * 1000

Model = TypeVar("Model", bound=keras.Model)
# Each exchange of a program has a number, which is the same in all processes.
_exchanges = itertools.count()


def join(processes: Processes) -> None:
    """Connects this process with the others; before any model or array is made.

    Raises:
        BackendError: Keras does not run on JAX.
    """
    if keras.backend.backend() != "jax":
        raise BackendError(
            "several processes train on JAX alone, got the backend "
            f"{keras.backend.backend()!r}: set KERAS_BACKEND=jax"
        )
    import jax

    # It would take SIGTERM for itself, and the process would not end.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        processes.coordinator,
        processes.num_processes,
        processes.process_id,
        initialization_timeout=_START,
        heartbeat_timeout_seconds=_HEARTBEAT,
    )


def leave() -> None:
    """Waits until all processes are done, and disconnects this one."""
    import jax

    jax.distributed.shutdown()


class Team:
    """The processes that train together, as one of them sees them.

    Attributes:
        count: int. How many there are; 1 unless JAX is connected to others.
        index: int. Of this one.
        is_first: bool. Whether this is the process that decides and writes.
    """

    def __init__(self):
        self.count, self.index = 1, 0
        if keras.backend.backend() == "jax":
            import jax

            self.count, self.index = jax.process_count(), jax.process_index()
        self.is_first = self.index == 0
        self._distribution = WholeBatches() if self.count > 1 else None

    def on_first(self, function: Callable[[], Any]) -> Any:
        """Calls a function in the first process, for which the others wait.

        Args:
            function: without arguments; returns JSON values.

        Returns:
            In all processes, what it returned in the first.

        Raises:
            ProcessError: in the others, where the function raises in the first.
        """
        if self.count == 1:
            return function()
        client = quirks.jax_client()
        key = f"roformer-keras/{next(_exchanges)}"
        if not self.is_first:
            answer = json.loads(client.blocking_key_value_get(key, _PATIENCE))
            if "error" in answer:
                raise ProcessError(f"process 0 has ended: {answer['error']}")
            return answer["value"]
        try:
            answer = json.dumps({"value": function()}, default=float)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            client.key_value_set(key, json.dumps({"error": reason}))
            # Until the others have read it: the connection ends with this process.
            time.sleep(1)
            raise
        client.key_value_set(key, answer)
        return json.loads(answer)["value"]

    def check_equal(self, name: str, value: Any) -> None:
        """Raises ConfigurationError unless JSON values equal the first process's.

        Args:
            name: of the values, in the plural, for the error.
            value: JSON values.
        """
        if self.count == 1:
            return
        # As text: NaN is not equal to itself.
        content = json.dumps(value, default=float, sort_keys=True)
        if self.on_first(lambda: content) != content:
            raise ConfigurationError(
                f"all processes must have the same {name}, and those of process "
                f"{self.index} are not those of process 0: give all of them the same "
                "flags, and files of a folder that all machines share"
            )

    def twin(self, model: Model, make: Callable[[], Model]) -> Model:
        """The model to train: the same one, or a copy on the devices of all processes.

        Args:
            model: of this process.
            make: makes such a model.
        """
        if self.count == 1:
            return model
        with self.together():
            other = make()
            copy_variables(model, other)
        return other

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within it, models are made for, and computed on, the devices of all."""
        with self._distributed(self._distribution):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Context in which a process computes something alone."""
        with self._distributed(None):
            yield

    @contextlib.contextmanager
    def _distributed(self, distribution):
        if self.count == 1:
            yield
            return
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)


def copy_variables(source: keras.Model, target: keras.Model) -> None:
    """Assigns the values of all variables of a model to those of another of its kind.

    Nothing happens if they are one model.
    """
    if source is target:
        return
    for one, other in zip(source.variables, target.variables, strict=True):
        other.assign(one.numpy())
