"""`--durations-report=FILE`: where the seconds of a test run go.

The file is a table of tab-separated values. Its rows are sums: of all tests, of each
tier, of each test file and of each test function, the slowest first; what takes less
than a second is left out. `cpu` is seconds of processors, of the test process and of
the children that it waited for: other work on the machine changes them less than
`setup`, `call` and `teardown`, which are by the clock. `GB` is how far tests raised
the most memory that their process ever held.
"""

import resource
import time
from collections import Counter
from pathlib import Path

import pytest

PHASES = ("setup", "call", "teardown")


def pytest_addoption(parser):
    parser.addoption(
        "--durations-report",
        metavar="FILE",
        type=Path,
        help="write the seconds of tiers, test files and tests into this file",
    )


def pytest_configure(config):
    path = config.getoption("--durations-report")
    if path:
        config.pluginmanager.register(Clock(config), "durations-clock")
        # The processes of pytest-xdist measure, and their controller writes.
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Report(path), "durations-report")


def peak_memory():
    """The most memory that this process ever held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def cpu_seconds():
    """Processor seconds of this process and of the children that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Clock:
    """Measures the phases of tests, the collection and the memory of this process."""

    def __init__(self, config):
        self.config = config
        self.collection = None
        self.began = time.monotonic()
        self.last, self.peak = cpu_seconds(), peak_memory()

    def pytest_collection_finish(self):
        self.collection = (time.monotonic() - self.began, self._since_last())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        report.cpu_seconds = self._since_last()
        before, self.peak = self.peak, peak_memory()
        report.gigabytes = self.peak - before
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        if self.collection is None:
            return
        process = {"collection": self.collection, "gigabytes": peak_memory()}
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["durations"] = process
        else:
            self.config.pluginmanager.get_plugin("durations-report").add(process)

    def _since_last(self):
        before, self.last = self.last, cpu_seconds()
        return self.last - before


class Report:
    """Adds up what the processes measured, and writes the table."""

    def __init__(self, path):
        self.path = path
        self.tests = Counter()  # by group
        # By (group, phase), (group, "cpu") and (group, "GB").
        self.sums = Counter()
        self.processes = []

    def add(self, process):
        self.processes.append(process)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        if "durations" in getattr(node, "workeroutput", {}):
            self.add(node.workeroutput["durations"])

    def pytest_runtest_logreport(self, report):
        file, _, name = report.nodeid.partition("::")
        function = f"{file}::{name.partition('[')[0]}"
        for group in ("all", str(Path(file).parent), file, function):
            self.tests[group] += report.when == "call"
            self.sums[group, report.when] += report.duration
            self.sums[group, "cpu"] += report.cpu_seconds
            self.sums[group, "GB"] += report.gigabytes

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        columns = ("cpu", *PHASES, "GB")
        lines = [(*columns, "tests", "of")]
        for process in self.processes:
            wall, cpu = process["collection"]
            lines.append((f"{cpu:.1f}", f"{wall:.1f}", *[""] * 4, "collection"))
        # `all` and tiers before files, and files before functions.
        depth = {group: (group.count(".py"), group.count("::")) for group in self.tests}
        for group in sorted(
            self.tests, key=lambda group: (depth[group], -self.sums[group, "cpu"])
        ):
            values = [self.sums[group, column] for column in columns]
            is_small = values[0] < 1 and values[-1] < 0.1
            if depth[group] == (0, 0) or not is_small:
                shown = [f"{value:.1f}" for value in values]
                lines.append((*shown, str(self.tests[group]), group))
        peak = max((process["gigabytes"] for process in self.processes), default=0)
        lines.append((*[""] * 4, f"{peak:.1f}", "", "most memory of a process"))
        text = "".join("\t".join(line) + "\n" for line in lines)
        self.path.write_text(text, encoding="utf-8")
