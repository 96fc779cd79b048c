"""All verbs."""

from roformer_keras.verbs.embed import Embed, Similarity
from roformer_keras.verbs.fill_mask import FillMask
from roformer_keras.verbs.predict import Predict
from roformer_keras.verbs.search import Rerank, Search
from roformer_keras.verbs.verb import Verb
from roformer_keras.verbs.writing import Generate, Paraphrase

VERBS: dict[str, type[Verb]] = {
    kind.name: kind
    for kind in (
        Embed,
        Similarity,
        Search,
        Rerank,
        Predict,
        Generate,
        Paraphrase,
        FillMask,
    )
}
