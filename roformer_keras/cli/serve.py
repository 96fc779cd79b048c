"""`roformer-keras serve`."""

import os

from roformer_keras.base.errors import refuse
from roformer_keras.base.extras import require
from roformer_keras.base.types import Engine
from roformer_keras.cli.flags import Count
from roformer_keras.cli.terminal import remark, start_backend

EXAMPLES = (
    "serve roformer-sim-char",
    "serve reviews --port 8080 --allowed-host reviews.example.com",
)
SETTINGS = {"": "roformer_keras.server.options.ServerOptions"}


def run(
    source: str = "roformer-sim-char",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: Engine = "auto",
    max_length: Count | None = None,
    api_key: str | None = None,
    allowed_host: list[str] | None = None,
    quiet: bool = False,
    **limits,
) -> None:
    """Answer requests over HTTP.

    Routes: /v1/embeddings and /v1/completions as in OpenAI's API, /v1/rerank,
    /similarity, /paraphrase, /fill-mask, /predict and, with --index, /search, as far as
    the model can; /health, /metrics, /openapi.json, and at / a page to try it.
    Ctrl-C or SIGTERM ends it when the requests under way are answered.

    Args:
        source: checkpoint, preset folder, folder of `finetune` or name, as for the
            other commands.
        host: address to listen at; 0.0.0.0 is every address of the machine.
        port: to listen at; 0 takes a free one.
        engine: what computes; auto is openvino where it is installed and can,
            else keras; openvino-int8 has weights in 8 bits.
        max_length: tokens to which texts are cut (default: 512; of a fine-tuned model,
            as in its training).
        api_key: key that clients must send as Authorization: Bearer KEY; better set
            the variable ROFORMER_KERAS_API_KEY, which other users do not see.
        allowed_host: name by which clients may call the server, such as that of a proxy
            before it; may be repeated. A server at 127.0.0.1 has the name localhost,
            and one at other addresses takes any name if none is given.
    """
    require("roformer-keras serve")
    refuse(
        not 0 <= port < 2**16,
        f"port must be from 0 to 65535, got {port}",
    )
    from roformer_keras.server.options import KEY_VARIABLE, ServerOptions

    if api_key is None:
        api_key = os.environ.get(KEY_VARIABLE)
    refuse(
        api_key == "",
        f"the key of --api-key or of {KEY_VARIABLE} must not be empty: leave it "
        "out for a server without a key",
    )
    options = ServerOptions(**limits)
    if options.index:
        from roformer_keras.search.index import read_record

        read_record(options.index)
    from roformer_keras.server.run import listening, serve

    # An address that is taken is known before the backend is imported.
    listening(host, port).close()
    start_backend()
    serve(
        source,
        host,
        port,
        options,
        engine=engine,
        max_length=max_length,
        api_key=api_key,
        allowed_hosts=allowed_host or (),
        remark=(lambda text: None) if quiet else remark,
    )
