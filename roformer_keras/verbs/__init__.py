"""The verbs: what a model can be asked, with options, checks, answers and surfaces.

Each is one class in one file. The command, the function on a dataset of Ray and the
HTTP route are made from it. No module here imports a backend before a model is loaded.
"""

from roformer_keras.verbs import embed as embed
from roformer_keras.verbs import fill_mask as fill_mask
from roformer_keras.verbs import generate as generate
from roformer_keras.verbs import paraphrase as paraphrase
from roformer_keras.verbs import predict as predict
from roformer_keras.verbs import rerank as rerank
from roformer_keras.verbs import search as search
from roformer_keras.verbs import similarity as similarity
from roformer_keras.verbs.registered import VERBS as VERBS
from roformer_keras.verbs.registered import register as register
