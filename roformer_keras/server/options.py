"""Limits of a server."""

import dataclasses

from roformer_keras.base.checks import Settings, integer, number

# The environment variable of the key that clients must send.
KEY_VARIABLE = "ROFORMER_KERAS_API_KEY"
# Texts of a request: the check of a longer list would itself take long.
MOST_TEXTS = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(Settings):
    """Limits and timeouts of a server.

    Args:
        max_batch: int. Texts that are computed together.
        turn_tokens: int. Tokens that are read together; a batch of more is divided, so
            that others have their turn.
        batch_wait: float. Milliseconds for which a text waits for others, if there were
            some in the last batch.
        queue_size: int. Texts that may wait; beyond it requests get 503.
        max_texts: int. Texts of a request, at most 2048.
        max_characters: int. Characters of a text.
        max_tokens: int. New tokens of a text that is written.
        max_written: int. New tokens of all texts that are written for one; they are
            written in steps, between which others have their turn.
        max_body: int. Bytes of a request.
        max_connections: int. Open connections; beyond it requests get 503.
        timeout: float. Seconds for which a request is computed; then it gets 504.
        read_timeout: float. Seconds within which a client must have sent the body of
            its request, and for which a connection stays open without one.
        model_name: names by which clients may ask for the model, in place of its own;
            answers have the first.
        index: folder of `roformer-keras index`, in which /search and the page find
            texts.

    Raises:
        ConfigurationError: an argument breaks its rule.

    Example:
        >>> server.ServerOptions(timeout=10.0).max_batch
        64
    """

    max_batch: int = integer(64, minimum=1)
    turn_tokens: int = integer(1024, minimum=1)
    batch_wait: float = number(2.0, minimum=0)
    queue_size: int = integer(1024, minimum=1)
    max_texts: int = integer(256, minimum=1, maximum=MOST_TEXTS)
    max_characters: int = integer(10_000, minimum=1)
    max_tokens: int = integer(1024, minimum=1)
    max_written: int = integer(2**16, minimum=1)
    max_body: int = integer(4 * 2**20, minimum=1)
    max_connections: int = integer(1000, minimum=1)
    timeout: float = number(60.0, above=0)
    read_timeout: float = number(10.0, above=0)
    model_name: tuple[str, ...] = ()
    index: str | None = None
