"""A training of two workers of Ray Train."""

import dataclasses
import json
import os

import pytest
from common import ROOT, run, write_lines
from safetensors.numpy import load_file

from roformer_keras import distributed
from roformer_keras.base.errors import OutputError
from roformer_keras.training.pretraining_settings import PretrainingSettings

ray = pytest.importorskip("ray")
# Ray Data sets fields that it calls deprecated itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`use_:DeprecationWarning:ray.data.context"
)
TEXTS = ["今天天气不错", "她在北京", "我们学习语言", "你说的是这个人"]


@pytest.fixture
def cluster(monkeypatch):
    """One Ray of this machine, which ends with the test and reports to nobody."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=10**8,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    yield
    ray.shutdown()


def test_two_workers_train_and_refuse_as_one_process(cluster, tmp_path):
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16}
    settings = PretrainingSettings(
        objective="lm",
        data=[{"files": [str(write_lines(tmp_path / "texts.txt", TEXTS))]}],
        stages=[{"steps": 8, "length": 16, "batch_size": 4}],
        model={**size, "dropout": 0.0, "attention_dropout": 0.0},
        min_count=1,
    )
    by_one, by_two = tmp_path / "one", tmp_path / "two"
    reference = run(
        """
        import json
        import sys
        from roformer_keras.training.pretrain import pretrain
        from roformer_keras.training.pretraining_settings import PretrainingSettings

        settings = PretrainingSettings.from_dict(json.loads(sys.argv[1]))
        pretrain(settings, sys.argv[2], verbose=False)
        """,
        *(json.dumps(settings.to_dict()), by_one),
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert distributed.train(settings, by_two, num_workers=2) == by_two / "preset"
    _, shown = reference.communicate(timeout=300)
    assert reference.returncode == 0, shown[-4000:]
    states = [load_file(path / "state.safetensors") for path in (by_one, by_two)]
    for name, values in states[0].items():
        assert abs(states[1][name] - values).max(initial=0) <= 1e-6, name
    with pytest.raises(OutputError, match=r"two holds another run: seed was 0, now 1"):
        distributed.train(dataclasses.replace(settings, seed=1), by_two, num_workers=1)
