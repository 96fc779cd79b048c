"""What must be set before anything imports a backend."""

import os

# The tests compile many programs and run each of them briefly. The notebooks, whose
# outputs are held against those committed, run without it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
