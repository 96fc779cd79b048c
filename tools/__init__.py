"""Scripts for developers of roformer_keras; `dev.py` sets up, shows and tests it all.

Run from the root of the repository, for example `python -m tools.benchmarks.encode`.
Imports go down only: benchmarks and experiments import reference and workers.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Data sets that are not in the repository; every script takes other files.
DATA = ROOT.parent / "shared" / "data"
