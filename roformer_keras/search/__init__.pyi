"""The public names, and where each of them is."""

from .index import Hit as Hit
from .index import VectorIndex as VectorIndex
from .index import build_index as build_index
from .neighbours import Neighbours as Neighbours
from .neighbours import Pairs as Pairs
from .neighbours import cluster as cluster
from .neighbours import paraphrase_mining as paraphrase_mining
from .neighbours import semantic_search as semantic_search
from .rerank import rerank as rerank
