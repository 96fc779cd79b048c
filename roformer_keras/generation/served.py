"""Generation by an exported model, which loads without Keras."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from roformer_keras.base.argument_names import takes_other_names
from roformer_keras.base.checks import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_path,
)
from roformer_keras.base.errors import (
    ConfigurationError,
    Hint,
    SourceError,
    errors_at,
    refuse,
)
from roformer_keras.base.other_names import explain_withdrawn
from roformer_keras.base.types import ENGINES, Engine
from roformer_keras.engines.programs import OpenVINOProgram
from roformer_keras.generation import generate as writing
from roformer_keras.generation import paraphrase as paraphrasing
from roformer_keras.generation.engines import FORMAT, SUFFIX
from roformer_keras.generation.prompts import DefaultLengths
from roformer_keras.generation.stateful import Reading, StatefulDecoder
from roformer_keras.io.export_file import (
    check_types,
    has_export,
    parse_export,
    read_export,
    readable_network,
)
from roformer_keras.io.sources import EXPORT
from roformer_keras.text.tokenizer import RoFormerTokenizer

# The field of the metadata that only an export which writes has.
FIELD = "generator"
# The fields of that.
_FIELDS = {"networks": list, "reading": dict, "new_tokens": dict}


def is_served_generator(source: str | os.PathLike) -> bool:
    """True if a source is a folder of `export_generator`."""
    return has_export(source) and FIELD in parse_export(source)


class ServedGenerator:
    """Writes texts by an exported model, as the model did.

    `engine=` of its methods may be left out, or name the engine of the export.

    Args:
        folder: the folder that `export_generator` wrote.
        bfloat16: bool. True computes in bfloat16, if the processor does.

    Attributes:
        folder: Path of the export.
        metadata: dict, the content of `export.json`.
        tokenizer: `RoFormerTokenizer`.

    Raises:
        SourceError: there is no such export in the folder, or a file of it is missing
            or damaged.
        ConfigurationError: OpenVINO is not installed, or its `export.json` is damaged.

    Example:
        >>> model = roformer_keras.RoFormerCausalLM.from_preset("roformer-gpt-char")
        >>> found = export.export_generator(model, "served", overwrite=True)
        >>> served = generation.ServedGenerator("served")
        >>> text = served.generate("床前明月光，", method="greedy", max_new_tokens=5)
    """

    generate = writing.generate
    stream = writing.stream
    paraphrase = paraphrasing.paraphrase

    def __init__(self, folder: str | os.PathLike, bfloat16: bool = False):
        check_path("folder", folder)
        check_flag("bfloat16", bfloat16)
        refuse(
            not is_served_generator(folder),
            f"a generator is exported by export_generator, or by export "
            f"--generator; {folder} has no {EXPORT} of one",
            error=SourceError,
        )
        self.folder, self._bfloat16 = Path(folder), bfloat16
        self.metadata = read_export(folder, (FORMAT,))
        with errors_at(self.folder / EXPORT):
            self._reads = _checked_reading(self.metadata)
            options = self.metadata.get("options", {})
            check_instance("options", options, dict)
            self.max_length = options.get("max_length", 512)
            check_integer("max_length", self.max_length, minimum=2)
        generator = self.metadata[FIELD]
        self.default_lengths = DefaultLengths(
            new_tokens=generator["new_tokens"].get("fixed"),
        )
        self.config = SimpleNamespace(
            attention=self._reads.attention,
            vocabulary_size=self._reads.vocabulary_size,
            hidden_dim=self.metadata["dim"],
        )
        self.tokenizer = RoFormerTokenizer.from_preset(folder)
        self._own_decoder = StatefulDecoder(self._program("decoder"), self._reads)
        self._vectors: OpenVINOProgram | None = None

    def text_tokenizer(self) -> RoFormerTokenizer:
        return self.tokenizer

    @takes_other_names
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        max_length: int | None = None,
        verbose: int | str = "auto",
        batch_tokens: int | None = None,
        engine: Engine | None = None,
    ) -> np.ndarray | Iterator[np.ndarray]:
        """A vector of length 1 for each text, as `RoFormerSim.encode` gives it.

        Args:
            texts, max_length, verbose, batch_tokens: as in `RoFormerSim.encode`.
            engine: that of the export, if given.

        Returns:
            As `RoFormerSim.encode`.

        Raises:
            ConfigurationError: the export is of a model without vectors.
        """
        from roformer_keras.text.rows import TOKENS_PER_BATCH
        from roformer_keras.text.vectors import embed_rows

        self._check_engine(engine)
        paraphrasing.check_vectors(self)
        if self._vectors is None:
            self._vectors = self._program("vectors")
        return embed_rows(
            self._unit_vectors,
            self.tokenizer,
            texts,
            dim=self.metadata["dim"],
            max_length=self.max_length if max_length is None else max_length,
            verbose=verbose,
            batch_tokens=batch_tokens or TOKENS_PER_BATCH,
        )

    @property
    def has_vectors(self) -> bool:
        return "vectors" in self.metadata[FIELD]["networks"]

    def _unit_vectors(self, inputs):
        assert self._vectors is not None
        names = "token_ids", "segment_ids"
        ids = {name: inputs[name] for name in names}
        return self._vectors.outputs(ids)["vectors"]

    def _program(self, name):
        path = self.folder / (name + SUFFIX)
        with readable_network(path):
            return OpenVINOProgram(str(path), self._bfloat16)

    # === A `WritingModel` ===

    @property
    def is_continuation(self) -> bool:
        return self._reads.attention == "causal"

    def _decoder(self, engine=None):
        self._check_engine(engine)
        return self._own_decoder

    @property
    def engine(self) -> str:
        """Engine of the export."""
        return self.metadata["format"] + ("-int8" if self.metadata["int8"] else "")

    def _check_engine(self, engine):
        engine = engine or "auto"
        check_choice("engine", engine, ENGINES)
        refuse(
            engine not in ("auto", self.engine),
            f"an export computes with its own engine, {self.engine!r}, got {engine!r}",
            hint=Hint("leave out {engine}"),
        )


def _checked_reading(metadata):
    """The `Reading` of a generator's metadata, whose own field is checked."""
    check_types(metadata, {FIELD: dict}, "it")
    generator = metadata[FIELD]
    check_types(generator, _FIELDS, f"its {FIELD}")
    reading, networks = dict(generator["reading"]), generator["networks"]
    # Version 0.1 has it as null, but for an encoder-decoder.
    if reading.pop("start_id", None) is not None:
        raise ConfigurationError(explain_withdrawn("RoFormerSeq2Seq"))
    if (value := generator["new_tokens"].get("fixed")) is not None:
        check_integer("new_tokens.fixed", value, minimum=1)
    refuse(
        [name for name in networks if name != "vectors"] != ["decoder"],
        f"networks must be decoder, and may be vectors; got {networks!r:.80}",
    )
    return Reading.from_dict(reading)
