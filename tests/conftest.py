"""Settings that must precede the import of a backend."""

import contextlib
import functools
import gc
import os
import sys
import tempfile

import durations
import hypothesis
import pytest

# A busy machine is slower than Hypothesis allows an example to be.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# The tests compile many programs and run each of them briefly: without XLA's passes and
# its emitters of fusions, a step of generation compiles in a third of the time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
)

# JAX keeps all programs in the folder of JAX_COMPILATION_CACHE_DIR, if there is one.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# PyTorch's threads wait for each other by computing, which takes most of the time where
# operations are small and processes more than cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tracing makes many objects that live on, in which a collection finds nothing.
gc.set_threshold(20_000, 50, 1_000)

pytest_addoption = durations.pytest_addoption
pytest_configure = durations.pytest_configure


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Each test draws the same weights, whatever ran before it and wherever it runs."""
    # Tests without a model need not wait for a backend.
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Unit tests run first; everything in the folder `e2e` has the mark of that name.

    Long tests run before short ones, so that no process waits long for the last.
    """
    tiers = {"unit": [], "e2e": [], "model": []}
    for item in items:
        tiers[item.path.parent.name].append(item)
    for item in tiers["e2e"]:
        item.add_marker("e2e")
    # pytest-xdist gives each process one run of the list: each begins with unit tests.
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = [
        item
        for process in range(processes)
        for tier in tiers.values()
        for item in _share(tier, process, processes)
    ]


def _share(items, process, processes):
    """The part of a list that one of so many processes takes."""
    first, last = (
        len(items) * number // processes for number in (process, process + 1)
    )
    return items[first:last]


@pytest.fixture
def scratch(tmp_path_factory, monkeypatch):
    """A separate temporary folder: files left in it after a test are a leak."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


@pytest.fixture
def umask():
    """Another mask of new files than is usual; its value."""
    before = os.umask(0o026)
    yield 0o026
    os.umask(before)


@pytest.fixture(scope="module")
def real_bert4keras():
    """`real_bert4keras(version)`: one running bert4keras of each version."""
    from common import SHARED, reference_folder

    from roformer_keras.verification.reference import Reference

    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(version):
            folder = reference_folder(version)
            if folder is None:
                message = f"needs bert4keras {version} in .reference"
                (pytest.fail if SHARED.is_dir() else pytest.skip)(message)
            return stack.enter_context(Reference(folder))

        yield start


@pytest.fixture
def eagerly():
    """Functions of TensorFlow run without graphs, which take longer to trace than a few
    steps of a tiny model.
    """
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def cli(capsys):
    """The output of a command that succeeds and says nothing else."""
    from common import run_main

    def done(*words):
        code, out, err = run_main(*words, capsys=capsys)
        assert (code, err) == (0, ""), err
        return out

    return done


@pytest.fixture
def refused(capsys):
    """The error of a command that ends with a code and prints nothing else."""
    from common import run_main

    def error_of(*words, code=2):
        ended, out, err = run_main(*words, capsys=capsys)
        assert (ended, out, "Traceback" in err) == (code, "", False), err
        return err

    return error_of


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory):
    """The folder of the package's checkpoints, each of one layer."""
    from one_layer import write_one_layer

    folder = tmp_path_factory.mktemp("checkpoints")
    write_one_layer(folder)
    return folder


@pytest.fixture
def datasets(monkeypatch):
    """The datasets of TensorFlow that Keras's loops iterate over."""
    import tensorflow as tf

    seen = []
    create = tf.data.Dataset.__iter__

    def noted(self):
        seen.append(self)
        return create(self)

    kinds = {tf.data.Dataset, type(tf.data.Dataset.range(1))}
    for kind in {base for one in kinds for base in one.__mro__}:
        if "__iter__" in vars(kind) and issubclass(kind, tf.data.Dataset):
            monkeypatch.setattr(kind, "__iter__", noted)
    return seen
