"""`roformer-keras export`."""

from pathlib import Path
from typing import Literal

from roformer_keras.base.extras import require
from roformer_keras.cli.terminal import remark, start_backend
from roformer_keras.cli.texts import print_json, read_lines
from roformer_keras.io.atomic import check_target
from roformer_keras.io.export_file import check_options
from roformer_keras.io.sources import EXPORT

EXAMPLES = (
    "export roformer-sim-char served --format onnx --int8",
    "export reviews served",
    "export roformer-gpt-char writer --generator --int8",
)


def run(
    source: str,
    target: str,
    *,
    format: Literal["saved_model", "onnx", "openvino"] | None = None,
    int8: bool = False,
    generator: bool = False,
    calibration_texts: str | None = None,
    config: str | None = None,
    vocabulary: str | None = None,
    overwrite: bool = False,
    as_json: bool = False,
) -> None:
    """Write a model that runs without this package and without Keras.

    A fine-tuned model gives its answers, RoFormerSim its vectors; any other model gives
    the output of each position, and the pooled output if it has a pooler. With
    --generator it is a model that writes, for generate and paraphrase.

    Args:
        target: folder.
        format: of the model (default: saved_model, with --generator openvino).
        int8: compute products of integers, with --format onnx and openvino; of a
            generator store weights in 8 bits.
        generator: export what generate runs, not what the model computes for a text.
        calibration_texts: file of some 100 typical texts, one a line; for --int8 with
            --format openvino.
    """
    format = format or ("openvino" if generator else "saved_model")
    require(f"the format {format!r}")
    if int8 and format == "openvino" and not generator:
        require("int8 in OpenVINO")
    # Before the backend is imported.
    check_target(Path(target), overwrite, folder=EXPORT)
    texts = () if calibration_texts is None else read_lines(calibration_texts)
    check_options(format, int8, texts, generator)
    start_backend()
    if generator:
        from roformer_keras.export import check_generator_export, export_generator
        from roformer_keras.verbs.generate import Generate

        check_generator_export(format)
        verb = Generate(source=source, config=config, vocabulary=vocabulary)
        loaded = verb.load()
        if loaded.is_guess:
            remark(verb.remark(loaded))
        metadata = export_generator(
            loaded.model, target, format=format, int8=int8, overwrite=overwrite
        )
        _show_generator(target, metadata, as_json)
        return
    from roformer_keras.export import check_export, export_model

    # Before a model is loaded.
    check_export(format, int8, texts)
    metadata = export_model(
        _load(source, config, vocabulary),
        target,
        format,
        int8=int8,
        calibration_texts=texts,
        overwrite=overwrite,
    )
    if as_json:
        print_json(metadata)
        return
    print(target)
    for name, shape in metadata["outputs"].items():
        difference = metadata["differences"][name]
        print(
            f"  {name:<20} {shape:<28} to Keras at most {difference['largest']:.1e}, "
            f"mean {difference['mean']:.1e}, cosine at least "
            f"{difference['min_cosine']:.6f}"
        )


def _show_generator(target, found, as_json):
    if as_json:
        print_json(found)
        return
    difference = found["differences"]
    print(target)
    print(
        f"  {found['model']}, logits to Keras at most {difference['largest']:.1e}, "
        f"mean {difference['mean']:.1e}"
    )


def _load(source, config, vocabulary):
    """A fine-tuned model, a `RoFormerSim`, or else the encoder."""
    from roformer_keras import tasks
    from roformer_keras.verbs.loading import load_source

    takes = (*tasks.__all__, "RoFormerSim")
    return load_source(source, takes, config=config, vocabulary=vocabulary).model
