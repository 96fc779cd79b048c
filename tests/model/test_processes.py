"""Messages between processes that train together."""

import time
from types import SimpleNamespace

import keras
import pytest
from jax._src import distributed

from roformer_keras.errors import BackendError, ConfigurationError, ProcessError
from roformer_keras.training import processes
from roformer_keras.training.process_settings import Processes


@pytest.fixture
def teams(monkeypatch):
    """Two teams, of the first process and of another, that share their answers."""
    answers = {}
    client = SimpleNamespace(
        key_value_set=answers.__setitem__,
        blocking_key_value_get=lambda key, timeout: answers[key],
    )
    monkeypatch.setattr(distributed, "global_state", SimpleNamespace(client=client))
    monkeypatch.setattr(processes, "_exchanges", iter([1, 1, 2, 2]))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    first, other = processes.Team(), processes.Team()
    first.count = other.count = 2
    other.index, other.is_first = 1, False
    return first, other


def test_all_learn_what_the_first_has_found(teams):
    assert [team.on_first(lambda: {"loss": (1, None)}) for team in teams] == [
        {"loss": [1, None]}
    ] * 2
    teams[0].check_equal("settings", {"seed": 0})
    with pytest.raises(ConfigurationError, match="must have the same settings, and"):
        teams[1].check_equal("settings", {"seed": 1})


def test_all_learn_why_the_first_has_ended(teams):
    def fail():
        raise ConfigurationError("the folder holds another run")

    with pytest.raises(ConfigurationError):
        teams[0].on_first(fail)
    with pytest.raises(ProcessError, match="process 0 has ended: the folder holds"):
        teams[1].on_first(fail)


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(BackendError, match="train on JAX alone, got the backend"):
        processes.join(Processes())
