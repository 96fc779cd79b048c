"""The public names, and where each of them is."""

from .dataset import embed as embed
from .dataset import fill_mask as fill_mask
from .dataset import generate as generate
from .dataset import paraphrase as paraphrase
from .dataset import predict as predict
from .dataset import rerank as rerank
from .dataset import search as search
from .dataset import similarity as similarity
from .training import train as train
