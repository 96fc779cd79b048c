"""`roformer-keras fill-mask`."""

from roformer_keras.base.errors import refuse
from roformer_keras.base.types import EngineOrRay, FileEncoding
from roformer_keras.cli import layouts, verbs
from roformer_keras.cli.terminal import start_backend
from roformer_keras.cli.texts import answer_lines, read_texts

EXAMPLES = ("fill-mask 床前明[MASK]光", "fill-mask 太祖[MASK]位，大赦天下。 --top-k 3")
VERB = "roformer_keras.verbs.fill_mask.FillMask"
OPTIONS, SETTINGS = (VERB, layouts.JOB), verbs.SETTINGS


def run(
    texts: list[str],
    *,
    encoding: FileEncoding = "utf-8",
    as_json: bool = False,
    output: str = "-",
    engine: EngineOrRay = "auto",
    **flags,
) -> None:
    """Find the likeliest tokens for each [MASK].

    Args:
        texts: with [MASK] in it; - is the lines of standard input.
        encoding: of standard input or files, as in `embed`.
        output: with --engine ray, the folder of the parts.
        engine: as in `embed`; with ray the text is a path, folder or pattern of files.
    """
    flags |= {"output": output, "encoding": encoding, "engine": engine}
    command = verbs.VerbCommand(VERB, flags)
    if command.runs_on_ray(texts[0] if len(texts) == 1 else None):
        return
    refuse(
        output != "-",
        "--output is for files of texts: add --engine ray",
    )
    rows = [(text,) for text in read_texts(texts, encoding)]
    start_backend()
    answers = command.verb.load().answer(rows, range(len(rows)))
    if as_json:
        print("\n".join(answer_lines(rows, answers)))
        return
    for (text,), masks in zip(rows, answers["masks"], strict=True):
        print(text)
        for number, candidates in enumerate(masks, start=1):
            shown = (f"{one['token']} {one['probability']:.4f}" for one in candidates)
            print(f"  {number}  {'  '.join(shown)}")
