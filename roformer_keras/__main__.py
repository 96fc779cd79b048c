import sys

from roformer_keras.cli import main

sys.exit(main())
