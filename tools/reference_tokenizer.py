"""The real bert4keras tokenizer in a process of its own.

`ReferenceTokenizer` starts this file with bert4keras on its path and speaks with it in
lines of JSON: `{"method": ..., "arguments": {...}}` in, `{"result": ...}` out. From a
shell, one request after another:

    PYTHONPATH=.:.reference/bert4keras-0.11.5 TF_KERAS=1 TF_USE_LEGACY_KERAS=1 \
        python tools/reference_tokenizer.py < requests.jsonl > answers.jsonl

Every method takes `vocabulary` (a path) and `level` besides the arguments below.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import time

from roformer_keras.errors import ReferenceUnavailable

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION = "0.11.5"


def reference_folder() -> pathlib.Path:
    """Where bert4keras is installed, as `pip install --target` does.

    Raises:
        ReferenceUnavailable: it is not there; says how to install it.
    """
    default = ROOT / ".reference" / f"bert4keras-{VERSION}"
    folder = pathlib.Path(os.environ.get("ROFORMER_KERAS_REFERENCE", default))
    if not (folder / "bert4keras").is_dir():
        raise ReferenceUnavailable(
            f"bert4keras is not in {folder}; run: pip install --no-deps --target "
            f"{default} bert4keras=={VERSION}, or set ROFORMER_KERAS_REFERENCE"
        )
    return folder


class ReferenceTokenizer:
    """Calls the functions below in the process of the reference.

    `send` and `receive` are apart, so that both processes can work at a time.
    """

    def __init__(self):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(reference_folder()), str(ROOT)]),
            "PYTHONWARNINGS": "ignore",
            "TF_KERAS": "1",
            "TF_USE_LEGACY_KERAS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def send(self, method, **arguments):
        request = {"method": method, "arguments": arguments}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self):
        answer = self._process.stdout.readline()
        if not answer:
            raise ReferenceUnavailable(
                f"the process of bert4keras ended with code {self._process.wait()}; "
                f"run {__file__} by hand to see why"
            )
        return json.loads(answer)["result"]

    def call(self, method, **arguments):
        self.send(method, **arguments)
        return self.receive()


def tokenize(tokenizer, texts):
    return [tokenizer.tokenize(text) for text in texts]


def encode(tokenizer, texts, pairs=None, max_length=None, truncate_from="right"):
    """Ids and segments of each text; an exception's name where one is raised."""
    answers = []
    for first, second in zip(texts, pairs or [None] * len(texts), strict=True):
        try:
            answers.append(
                tokenizer.encode(
                    first, second, maxlen=max_length, truncate_from=truncate_from
                )
            )
        except IndexError as error:
            answers.append(type(error).__name__)
    return answers


def decode(tokenizer, rows):
    return [tokenizer.decode(ids) for ids in rows]


def time_encode(tokenizer, texts):
    """CPU seconds that a plain loop of `encode` takes."""
    start = time.process_time()
    for text in texts:
        tokenizer.encode(text)
    return time.process_time() - start


def simplify(tokenizer, vocabulary, startswith):
    from bert4keras.tokenizers import load_vocab

    return load_vocab(vocabulary, simplified=True, startswith=startswith)


@functools.cache
def _build(vocabulary, level):
    import jieba
    from bert4keras.tokenizers import Tokenizer

    if level == "character":
        return Tokenizer(vocabulary, do_lower_case=True)
    jieba.initialize()
    return Tokenizer(
        vocabulary,
        do_lower_case=True,
        pre_tokenize=lambda text: jieba.cut(text, HMM=False),
    )


def _serve(requests, answers):
    methods = {f.__name__: f for f in (tokenize, encode, decode, time_encode)}
    for line in requests:
        request = json.loads(line)
        arguments = request["arguments"]
        vocabulary = arguments.pop("vocabulary")
        tokenizer = _build(vocabulary, arguments.pop("level"))
        if request["method"] == "simplify":
            result = simplify(tokenizer, vocabulary, **arguments)
        else:
            result = methods[request["method"]](tokenizer, **arguments)
        print(json.dumps({"result": result}), file=answers, flush=True)


if __name__ == "__main__":
    # Whatever TensorFlow and jieba print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(sys.stdin, answers)
