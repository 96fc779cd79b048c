"""`roformer-keras serve`."""

import os

from roformer_keras.cli.flags import Count
from roformer_keras.cli.terminal import remark, start_backend
from roformer_keras.errors import ConfigurationError
from roformer_keras.types import Engine

EXAMPLES = (
    "serve roformer-sim-char",
    "serve reviews --port 8080 --host 0.0.0.0 --api-key secret",
)
SETTINGS = "roformer_keras.server.options.ServerOptions"
KEY = "ROFORMER_KERAS_API_KEY"


def run(
    source: str = "roformer-sim-char",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: Engine = "keras",
    max_length: Count | None = None,
    api_key: str | None = None,
    quiet: bool = False,
    **limits,
) -> None:
    """Answer requests over HTTP.

    Routes: /v1/embeddings and /v1/completions as in OpenAI's API, /similarity,
    /paraphrase, /fill-mask and /predict, as far as the model can; /health, /ready,
    /metrics, /openapi.json, and at / a page to try it. Ctrl-C or SIGTERM ends it when
    the requests under way are answered.

    Args:
        source: checkpoint, preset folder, folder of `finetune` or name, as for the
            other commands.
        host: address to listen at; 0.0.0.0 is every address of the machine.
        port: to listen at; 0 takes a free one.
        engine: what computes the steps of texts that are written; all but keras need
            roformer-keras[export].
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned model,
            as in its training).
        api_key: key that clients must send as Authorization: Bearer KEY; better set
            the variable ROFORMER_KERAS_API_KEY, which other users do not see.
    """
    from roformer_keras.extras import import_extra

    for name in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(name, "roformer-keras serve")
    if not 0 <= port < 2**16:
        raise ConfigurationError(f"port must be from 0 to 65535, got {port}")
    api_key = api_key or os.environ.get(KEY)
    start_backend()
    from roformer_keras.server.options import ServerOptions
    from roformer_keras.server.run import serve

    serve(
        *(source, host, port, ServerOptions(**limits)),
        engine=engine,
        max_length=max_length,
        api_key=api_key,
        remark=(lambda text: None) if quiet else remark,
    )
