"""The texts of an index that are nearest to queries."""

import dataclasses
from collections.abc import Mapping

from roformer_keras.base.checks import integer
from roformer_keras.base.errors import refuse
from roformer_keras.verbs.loading import LoadedSource, Path
from roformer_keras.verbs.registered import register
from roformer_keras.verbs.rows import Answers, Numbers, OnStep, Rows, Texts, only_texts
from roformer_keras.verbs.surfaces import Inputs, Output, Route, scored_lines
from roformer_keras.verbs.vectors import VectorVerb


@register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(VectorVerb):
    """Find the texts of an index that are nearest to queries, by their cosines.

    Args:
        encoding: of a text file; auto looks for a byte-order mark, or tries UTF-8 and
            GB18030.
        index: folder of `roformer-keras index`.
        source: of the model (default: the one that made the index).
        max_length: tokens to which queries are cut (default: that of the index).
        top_k: how many texts are found for a query.
    """

    source: Path = ""
    index: Path = ""
    top_k: int = integer(10, minimum=1, maximum=10_000)

    name = "search"
    inputs = Inputs(
        ("query",),
        file="queries, one a line; or a table, as embed takes it; - is standard input",
        operands=("index",),
        typed="query to take instead of a file; may be repeated",
        columns="column or key of the texts (default: text)",
    )
    output = Output(
        {"results": [{"text": str, "score": float, "row": int}]},
        ".jsonl, or .tsv with rows of query, text, cosine and row; - for standard "
        "output",
        style="terminal",
    )
    route = Route(
        "/search",
        "queries",
        "results",
        left_out=("max_length", "index"),
        changes={"top_k": {"le": 100}},
        needs=("index",),
    )
    examples = (
        "search sentences.index --text 怎么办信用卡",
        "search sentences.index queries.txt -o found.jsonl --top-k 5",
    )

    def _check_together(self) -> None:
        super()._check_together()
        refuse(not self.index, "search needs the folder of an index")
        if not self.source:
            from roformer_keras.search.index import known_source

            object.__setattr__(self, "source", known_source(self.index))

    @classmethod
    def is_for(cls, loaded: LoadedSource) -> bool:
        # The backbone of other models gives vectors, as in `embed`.
        return super().is_for(loaded) or hasattr(loaded.model, "backbone")

    def start(self, loaded: LoadedSource) -> None:
        from roformer_keras.search.index import VectorIndex, read_record

        if self.index not in loaded.kept:
            # The texts of the index are cut where they were.
            length = read_record(self.index)["max_length"]
            encode = dataclasses.replace(self, max_length=length).encoder(loaded)
            loaded.kept[self.index] = VectorIndex(self.index, encode)

    def answer(
        self, loaded: LoadedSource, rows: Rows, numbers: Numbers, on_step: OnStep = None
    ) -> Answers:
        from roformer_keras.search.index import hits_of
        from roformer_keras.tasks.labels import rounded

        index = loaded.kept[self.index]
        length = self.max_length or index.max_length
        encode = dataclasses.replace(self, max_length=length).encoder(loaded)
        vectors = encode(only_texts(rows))
        hits = hits_of(index.texts, index.nearest(vectors, self.top_k))
        return {
            "results": [
                [
                    {"text": hit.text, "score": rounded(hit.score), "row": hit.number}
                    for hit in row
                ]
                for row in hits
            ]
        }

    def show(self, row: Texts, answers: Mapping[str, object]) -> list[str]:
        return scored_lines(row, answers["results"])
