"""`zoo serve`: serve a model over HTTP, with a page for people and an API for programs."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.core.errors import UserError, first_line
from zoo.core.extras import require_extra

TOKEN = "ZOO_TOKEN"
# oneDNN keeps a kernel with its buffers for each shape of a batch, of which requests have many: 1,024 by default
SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")


def serve(
    *,
    ckpt: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    max_batch: int = 64,
    max_wait: float = 5.0,
    max_chars: int = 200_000,
    max_texts: int = 64,
    max_body: float = 8.0,
    max_requests: int = 256,
    threads: int = 0,
    learn: bool = False,
    token_file: str | None = None,
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Serve a trained model: a web page, and an API.

    The page is at /, the description of the API at /docs. A new version of the checkpoint file is loaded while the
    old one goes on answering. If $ZOO_TOKEN or --token_file is given, clients need it as a bearer token.

    Args:
        ckpt: checkpoint of `zoo fit`.
        host: address to listen on; 0.0.0.0 for all of this machine.
        port: port to listen on; 0 takes a free one.
        workers: processes, each with a copy of the model.
        max_batch: most texts in one call of the model; 1 turns batching off.
        max_wait: longest time that texts wait for others, in milliseconds.
        max_chars: longest text, in characters.
        max_texts: most texts in one request.
        max_body: largest request, in megabytes.
        max_requests: most requests in progress in a worker; further ones get status 429.
        threads: threads of the model in each worker; 0 shares the cores among the workers.
        learn: allow clients to teach the model labels; this changes the checkpoint.
        token_file: file with the bearer token.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo serve --ckpt best.ckpt
        ZOO_TOKEN=secret zoo serve --ckpt best.ckpt --host 0.0.0.0 --workers 4
    """
    require_extra("serve", "`zoo serve`")
    os.environ.setdefault(*SHAPES)  # before torch is imported
    from zoo.service.options import ServiceOptions
    from zoo.service.running import run
    from zoo.training.hub_models import located
    from zoo.training.model_folder import WEIGHTS

    place = located(ckpt)
    if learn and place.name == WEIGHTS:
        raise UserError(
            f"`learn` changes the checkpoint, and {ckpt} is a shared model: serve a checkpoint file of your own"
        )
    run(
        ServiceOptions(
            str(place),
            host,
            port,
            workers,
            max_batch,
            max_wait,
            max_chars,
            max_texts,
            max_body,
            max_requests,
            threads,
            learn,
            read_token(token_file),
            device,
            tuple(trust or ()),
        )
    )


def read_token(file: str | None) -> str:
    """The bearer token, from a file or the environment: the command line is visible to others. "" if there is none."""
    if file is None:
        token, source = os.environ.get(TOKEN, ""), f"${TOKEN}"
        if not token:
            return ""
    else:
        try:
            token, source = Path(file).expanduser().read_text("utf8").strip(), file
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"`token_file={file}` cannot be read: {first_line(error)}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"the token in {source} must be ASCII characters without spaces")
    return token
