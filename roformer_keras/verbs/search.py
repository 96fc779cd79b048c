"""The nearest texts of an index, and scores of texts for queries."""

import dataclasses
import os

from roformer_keras.base.checks import integer
from roformer_keras.base.errors import ConfigurationError, refuse
from roformer_keras.verbs.embed import VectorVerb
from roformer_keras.verbs.loading import LoadedSource
from roformer_keras.verbs.verb import LoadedVerb

_PAIR_TASKS = ("RoFormerTextClassifier", "RoFormerTextRegressor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(VectorVerb):
    """Texts of an index that are nearest to queries.

    Args:
        index: folder of `roformer-keras index`.
        top_k: how many texts are found for a query.
    """

    index: str | os.PathLike = ""
    top_k: int = integer(10, minimum=1, maximum=10_000)

    name = "search"
    fields = ("query",)
    column = "results"

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        # A server has an index only if it is given one.
        return False

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.search.index import VectorIndex, read_record
        from roformer_keras.tasks.labels import rounded

        refuse(
            not self.index,
            "search needs the folder of an index",
        )
        if self.index not in loaded.kept:
            length = read_record(self.index)["max_length"]
            encode = dataclasses.replace(self, max_length=length).encoder(loaded)
            loaded.kept[self.index] = VectorIndex(self.index, encode)
        index = loaded.kept[self.index]
        # Queries are cut where the texts of the index were, if not elsewhere.
        length = self.max_length or index.max_length
        encode = dataclasses.replace(self, max_length=length).encoder(loaded)

        def shown(hit):
            return {"text": hit.text, "score": rounded(hit.score), "row": hit.number}

        def answer(rows, numbers):
            vectors = encode([query for (query,) in rows])
            hits = index._hits(index.nearest(vectors, self.top_k))
            return {"results": [list(map(shown, row)) for row in hits]}

        return LoadedVerb(lambda row: self.check_row(loaded, row), answer, self.fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rerank(VectorVerb):
    """Scores of texts for queries, by a classifier of pairs or by vectors.

    Args:
        label: class of a classifier whose probability is the score; of two classes the
            second if not given.
    """

    label: str | None = None

    name = "rerank"
    fields = ("query", "text")
    column = "score"
    otherwise = "RoFormerSim"
    takes = (*VectorVerb.takes, *_PAIR_TASKS)

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        if loaded.name in _PAIR_TASKS:
            from roformer_keras.search.rerank import ranks_pairs

            return ranks_pairs(loaded.model) and 2 in loaded.tuned.answer_counts
        return loaded.name != "RoFormerBackbone" and super().is_for(loaded)

    def use(self, loaded: LoadedSource) -> LoadedVerb:
        from roformer_keras.search.cosines import pair_cosines
        from roformer_keras.search.rerank import ranks_pairs, scorer_of
        from roformer_keras.tasks.labels import rounded

        def score(rows):
            if loaded.name in _PAIR_TASKS:
                scores_of = scorer_of(loaded.model, self.label)
                return scores_of(rows, verbose=0, **self.computing)
            return pair_cosines(self.encoder(loaded), *zip(*rows, strict=True))

        def check(row):
            if loaded.name in _PAIR_TASKS:
                refuse(
                    ranks_pairs(loaded.model) and 2 not in loaded.tuned.answer_counts,
                    f"{self.source} was trained on single texts; ranking needs a "
                    "model of pairs, or one with vectors",
                )
                scorer_of(loaded.model, self.label)
            elif self.label is not None:
                raise ConfigurationError("label is for classifiers of pairs")
            self.check_row(loaded, row)

        def answer(rows, numbers):
            return {"score": list(map(rounded, score(list(rows))))}

        return LoadedVerb(check, answer, self.fields)
