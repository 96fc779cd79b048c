"""The command line of the experiment."""

import sys

from tools.experiments.translation import Translation

if __name__ == "__main__":
    sys.exit(Translation.main())
