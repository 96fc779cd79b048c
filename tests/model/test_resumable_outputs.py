"""Conformance of everything that can be resumed, whatever ends its process.

The producers are in `tests/producers.py`; a new one must pass all of this.
"""

import os
import resource
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext

import pytest
from common import read_files, read_json, write_file
from common import run as start_python
from disk_steps import disk_states
from producers import PRODUCERS, STEPS, LineJob, RunFolder, copied
from sources import wrong_modes

from roformer_keras.base.errors import OutputError

WITH_RECORD = [producer for producer in PRODUCERS if producer.record]


@pytest.fixture(params=PRODUCERS, ids=lambda producer: producer.__name__)
def producer(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def expected(producer, tmp_path):
    """The files of an output that nothing interrupts."""
    return files_of_whole(producer, tmp_path / "whole")


def files_of_whole(producer, folder, **settings):
    folder.mkdir()
    producer.make(folder, **settings)
    assert producer.result in read_files(folder)
    return read_files(folder)


def test_files_have_the_mode_of_the_umask(producer, folder, umask):
    """Also those that stay of an output that was interrupted."""
    interrupt(producer, folder)
    assert wrong_modes(folder, umask) == []
    make_again(producer, folder)
    assert wrong_modes(folder, umask) == []


class Steps(list):
    """Counts steps, and raises an error at one of them."""

    def __init__(self, last=None, error=KeyboardInterrupt):
        super().__init__()
        self.last, self.error = last, error

    def __call__(self, number):
        self.append(number)
        if number == self.last:
            raise self.error


def interrupt(producer, folder, step=2, **settings):
    with pytest.raises(KeyboardInterrupt):
        producer.make(folder, Steps(step), **settings)
    return read_files(folder)


def make_again(producer, folder):
    """Makes an output in a folder that may hold a whole one; returns the steps."""
    steps = Steps()
    if producer.refuses_finished and (folder / producer.result).exists():
        with pytest.raises(OutputError, match="exists: choose another name"):
            producer.make(folder, steps)
    else:
        producer.make(folder, steps)
    return steps


# === Ends of a process ===


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_at_most_a_step(
    producer, folder, expected, tmp_path
):
    """With files as a process leaves them, and with a torn end."""
    states = disk_states(lambda: producer.make(folder), folder, tmp_path / "states")
    assert len(states) > 2 * STEPS
    first_steps = []
    for whole in states:
        torn = copied(whole, whole.with_name(f"{whole.name}-torn"))
        if (torn / producer.data).exists():
            producer.tear(torn / producer.data)
        for state in (whole, torn):
            steps = make_again(producer, state)
            # A kill just before the end can leave a record next to the result.
            assert expected.items() <= read_files(state).items()
            if steps:
                assert read_files(state) == expected
                assert steps == list(range(steps[0], STEPS))
            if steps and state is whole:
                first_steps.append(steps[0])
    assert first_steps == sorted(first_steps)
    assert set(first_steps) == set(range(STEPS))


def test_kill_9_releases_the_lock(tmp_path, folder):
    producer = LineJob(tmp_path)
    expected = files_of_whole(producer, tmp_path / "whole")
    code = """
        import pathlib, sys, time
        sys.path.insert(0, "tests")
        from producers import LineJob

        def at_step(number):
            if number == 2:
                print("ready", flush=True)
                time.sleep(60)

        input, folder = map(pathlib.Path, sys.argv[1:])
        LineJob(input).make(folder, at_step)
    """
    with start_python(code, tmp_path, folder) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        with pytest.raises(OutputError, match="another process"):
            producer.make(folder)
        process.kill()
    # The process wrote the same input anew.
    assert process.returncode == -signal.SIGKILL
    assert make_again(producer, folder) == [2, 3, 4]
    assert read_files(folder) == expected
    assert os.listdir(folder) == [producer.result]


def test_an_exception_loses_no_step(producer, folder, expected):
    errors = [KeyboardInterrupt, RuntimeError] * STEPS
    for last, error in zip(range(1, STEPS), errors, strict=False):
        steps = Steps(last, error)
        with pytest.raises(error):
            producer.make(folder, steps)
        assert steps == [last - 1, last]
    producer.make(folder)
    assert read_files(folder) == expected


@contextmanager
def max_file_size(size):
    """Lets writes beyond so many bytes fail, as on a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_what_was_written_before(producer, folder, expected):
    for size in (0, 100, 900, 5000, 100_000):
        is_enough = all(len(content) <= size for content in expected.values())
        refused = pytest.raises(OutputError, match=r"^no space left .*too large")
        output = folder / str(size)
        output.mkdir()
        with nullcontext() if is_enough else refused, max_file_size(size):
            producer.make(output)
        if size == 0:
            assert read_files(output) == {}
        if not is_enough:
            producer.make(output)
        assert read_files(output) == expected


def test_a_finished_output_is_not_made_again(producer, folder, expected):
    producer.make(folder)
    assert make_again(producer, folder) == []
    assert read_files(folder) == expected


# === Other writers ===


def test_a_second_writer_is_refused(producer, folder, expected):
    def at_step(number):
        before = read_files(folder)
        with pytest.raises(OutputError, match="being written by another process"):
            producer.make(folder)
        assert read_files(folder) == before
        steps.append(number)

    steps = []
    producer.make(folder, at_step)
    assert steps == list(range(STEPS))
    assert read_files(folder) == expected


def test_the_other_writer_ends_just_before_the_lock_is_taken(
    producer, folder, expected, monkeypatch
):
    module, _, name = producer.lock.rpartition(".")
    locked, steps = getattr(sys.modules[module], name), Steps()

    @contextmanager
    def late(path):
        monkeypatch.undo()
        producer.make(folder)
        with locked(path):
            yield

    monkeypatch.setattr(producer.lock, late)
    with (
        pytest.raises(OutputError, match="exists")
        if producer.refuses_finished
        else nullcontext()
    ):
        producer.make(folder, steps)
    assert steps == []
    assert read_files(folder) == expected


def test_of_many_writers_one_writes(producer, folder, expected):
    outcomes, writing = [], threading.Lock()

    def at_step(number):
        assert writing.acquire(blocking=False)
        writing.release()

    def make():
        try:
            producer.make(folder, at_step)
            outcomes.append("")
        except BaseException as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8 and "" in outcomes
    assert not [
        text
        for text in outcomes
        if text and "another process" not in text and "exists" not in text
    ]
    assert read_files(folder) == expected


# === Other runs ===


@pytest.fixture(params=WITH_RECORD, ids=lambda producer: producer.__name__)
def recorded(request, tmp_path):
    return request.param(tmp_path)


def refuse(message, producer, folder, **settings):
    before = read_files(folder)
    with pytest.raises(OutputError, match=message) as caught:
        producer.make(folder, **settings)
    assert "holds another run: " in str(caught.value)
    assert str(caught.value).endswith("or pass overwrite=True to discard it")
    assert read_files(folder) == before


def test_other_settings_are_refused_and_overwrite_on_request(
    recorded, folder, tmp_path
):
    interrupt(recorded, folder)
    refuse("seed was 1, now 2", recorded, folder, seed=2)
    # An interruption of the new run keeps that one.
    interrupt(recorded, folder, seed=2, overwrite=True)
    refuse("seed was 2, now 1", recorded, folder)
    steps = Steps()
    recorded.make(folder, steps, seed=2, overwrite=True)
    assert steps[0] == 2
    expected = files_of_whole(recorded, tmp_path / "whole", seed=2)
    assert read_files(folder) == expected


def test_changed_inputs_are_refused(recorded, folder):
    interrupt(recorded, folder)
    recorded.input.write_text("Input")
    refuse(r"input '(source|corpus)' has changed", recorded, folder)
    recorded.make(folder, overwrite=True)


def test_a_bad_record_is_refused(recorded, folder):
    interrupt(recorded, folder)
    for content in (b"", b"{", b"[]", b'{"settings": 1}', b"[" * 100_000):
        (folder / recorded.record).write_bytes(content)
        refuse("its record is missing or damaged", recorded, folder)
    if isinstance(recorded, RunFolder):
        (folder / recorded.record).unlink()
        # What is no training is not discarded, not even on request.
        with pytest.raises(OutputError, match="no training but other files"):
            recorded.make(folder, overwrite=True)
        (folder / recorded.record).write_bytes(content)
    recorded.make(folder, overwrite=True)


def test_a_job_with_odd_numbers_in_its_record_is_refused(tmp_path, folder):
    job = LineJob(tmp_path)
    interrupt(job, folder)
    record = folder / job.record
    content = read_json(record)
    odd = {"done": [None, -1, "1", True], "seed": [[1]], "bytes": [0.5, -1]}
    for name, values in odd.items():
        missing = {key: value for key, value in content.items() if key != name}
        for changed in (missing, *({**content, name: value} for value in values)):
            write_file(record, changed)
            refuse("its record is missing or damaged", job, folder)


def test_a_run_that_has_written_nothing_is_no_loss(recorded, folder, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        recorded.make(folder, Steps(0))
    recorded.make(folder, seed=2)
    assert read_files(folder) == files_of_whole(recorded, tmp_path / "whole", seed=2)


def test_lines_that_were_counted_and_are_gone_are_refused(tmp_path, folder):
    producer = LineJob(tmp_path)
    interrupt(producer, folder)
    os.truncate(folder / producer.data, 9)
    refuse("counts more than there is", producer, folder)
    producer.make(folder, overwrite=True)


def test_a_run_that_fails_at_once_discards_no_other(tmp_path, folder):
    producer = LineJob(tmp_path)
    before = interrupt(producer, folder)
    with pytest.raises(KeyboardInterrupt):
        producer.make(folder, Steps(0), seed=2, overwrite=True)
    assert read_files(folder) == before


def test_a_drawn_seed_is_kept(tmp_path, folder):
    producer = LineJob(tmp_path)
    interrupt(producer, folder, seed=None)
    lines = (folder / producer.data).read_bytes()
    producer.make(folder, seed=None)
    assert (folder / producer.result).read_bytes().startswith(lines)
    seeds = {
        line.split(b"; ")[0].split()[-1]
        for line in (folder / producer.result).read_bytes().splitlines()
    }
    assert len(seeds) == 1


def test_free_settings_may_differ(tmp_path, folder):
    producer = RunFolder(tmp_path)
    interrupt(producer, folder)
    steps = Steps()
    producer.make(folder, steps, workers=3)
    assert steps == [2, 3, 4]


def test_an_output_replaces_another_at_the_end_only(tmp_path, folder):
    producer = LineJob(tmp_path)
    expected = files_of_whole(producer, tmp_path / "whole")
    output = folder / producer.result
    output.write_text("old")
    interrupt(producer, folder, overwrite=True)
    assert output.read_text() == "old"
    steps = Steps()
    producer.make(folder, steps, overwrite=True)
    assert steps == [2, 3, 4] and read_files(folder) == expected
    # One that appears meanwhile is not replaced.
    output.unlink()
    with pytest.raises(OutputError, match="exists"):
        producer.make(folder, lambda number: output.write_text("of another"))
    assert output.read_text() == "of another"
    output.unlink()
    producer.make(folder, Steps(0))
    assert read_files(folder) == expected


def test_a_link_stays_a_link(tmp_path, folder):
    producer = LineJob(tmp_path)
    (folder / producer.result).symlink_to(tmp_path / "real.jsonl")
    interrupt(producer, folder)
    assert (tmp_path / "real.jsonl.partial").exists()
    producer.make(folder)
    assert (folder / producer.result).is_symlink()
    assert (tmp_path / "real.jsonl").read_text().count("\n") == STEPS
