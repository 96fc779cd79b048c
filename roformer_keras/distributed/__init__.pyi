"""The public names, and where each of them is."""

from .dataset import embed as embed
from .dataset import predict as predict
from .dataset import similarity as similarity
from .training import train as train
