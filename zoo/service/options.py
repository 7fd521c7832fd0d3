"""Settings of the service."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from zoo.core.errors import UserError, check_low, check_range

MEGABYTE = 2**20
MAX_K = 1000  # labels of a text in an answer
MAX_WORKERS = 256
MAX_WAIT = 10_000  # milliseconds


@dataclass(frozen=True)
class ServiceOptions:
    """What to serve, where, and how much of it at once.

    Args:
        ckpt: checkpoint to serve; a new version of the file replaces the model.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        workers: processes, each with a copy of the model.
        max_batch: most texts in one call of the model; 1 turns batching off.
        max_wait: longest time that texts wait for others, in milliseconds.
        max_chars: longest text, in characters.
        max_texts: most texts in one request.
        max_body: largest request, in megabytes.
        max_requests: most requests in progress in a process; further ones are refused.
        threads: threads of the model in each process; 0 shares the cores among the workers.
        learn: whether clients may teach the model labels, which changes the checkpoint.
        token: what clients must present as a bearer token; empty for an open service.
        device: device such as `cpu` or `cuda`.
        trust: modules outside the zoo with classes that the checkpoint may use.
        reload_every: seconds between two looks at the checkpoint file.
    """

    ckpt: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_batch: int = 64
    max_wait: float = 5.0
    max_chars: int = 200_000
    max_texts: int = 64
    max_body: float = 8.0
    max_requests: int = 256
    threads: int = 0
    learn: bool = False
    token: str = field(default="", repr=False)
    device: str | None = None
    trust: tuple[str, ...] = ()
    reload_every: float = 2.0

    def __post_init__(self) -> None:
        check_range(0, 65535, port=self.port)
        check_range(1, MAX_WORKERS, workers=self.workers)
        check_range(0, MAX_WAIT, max_wait=self.max_wait)
        check_low(1, max_batch=self.max_batch, max_chars=self.max_chars, max_texts=self.max_texts)
        check_low(1, max_requests=self.max_requests)
        check_range(0.001, 2**12, max_body=self.max_body)
        check_range(0, 2**12, threads=self.threads)
        if self.learn and not self.token and not self.is_local:
            raise UserError(f"`learn` lets anyone who reaches `host={self.host}` change the model: set a token")

    @property
    def body_bytes(self) -> int:
        return int(self.max_body * MEGABYTE)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the service."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a name or an address, which may be in brackets, is of this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
