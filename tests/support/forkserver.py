"""`python -m zoo` in processes of its own, forked from a server that has imported everything.

A start takes milliseconds instead of the seconds that importing torch and Lightning takes. Ranks other than the first,
which Lightning's launcher starts, are forked as well. A few tests use real processes: forks share a hash seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

SERVER = "ZOO_TEST_FORKSERVER"  # the server's socket


class Forked:
    """A forked `python -m zoo`, with the part of `subprocess.Popen` that tests and Lightning's launcher use."""

    def __init__(
        self, args: list[str], env: dict[str, str], cwd: str, outputs: tuple[int, int], group: int = 0
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(env[SERVER])
        request = json.dumps({"args": args, "env": env, "cwd": cwd, "group": group})
        socket.send_fds(self._socket, [request.encode()], outputs)
        self.pid = int(self._socket.recv(100))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._socket], [], [], 0)[0]:
            self.returncode = int(self._socket.recv(100))
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        if self.returncode is None:
            self._socket.settimeout(timeout)
            self.returncode = int(self._socket.recv(100))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Run:
    """A forked run whose output is kept, and which ends with its `with` block."""

    def __init__(self, args: list[str], env: dict[str, str], cwd: Path) -> None:
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end of the block)
        self._stderr, write = os.pipe()
        self.process = Forked(args, env, str(cwd), (self._stdout.fileno(), write))
        os.close(write)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        os.close(self._stderr)
        self._stdout.seek(0)
        self.stdout = self._stdout.read().decode()
        self._stdout.close()

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def communicate(self, timeout: float = 300) -> str:
        """Standard error, once all processes of the run have closed it."""
        end, parts = time.monotonic() + timeout, []
        while True:
            if not select.select([self._stderr], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError(f"{self.process.args} takes more than {timeout} s: {b''.join(parts).decode()}")
            if not (part := os.read(self._stderr, 1 << 16)):
                break
            parts.append(part)
        self.process.wait()
        return b"".join(parts).decode()


@contextlib.contextmanager
def forkserver(folder: Path) -> Iterator[str]:
    """Start a server; yields the path of its socket. It ends with the process that started it."""
    path = str(folder / "zoo.sock")
    command = [sys.executable, "-m", __name__, path]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield path
        server.stdin.close()


def serve(path: str) -> list[str]:
    """Fork for each request, until standard input is closed. Returns, in each fork, the arguments of its run."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors leave no zombies
        os.write(1, b"ready\n")
        while True:
            if sys.stdin in (ready := select.select([server, sys.stdin], [], [])[0]):
                sys.exit()
            assert ready
            client, _ = server.accept()
            if os.fork() == 0:
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, outputs, _, _ = socket.recv_fds(client, 1 << 20, 2)
    request = json.loads(message)
    if child := os.fork():
        for output in outputs:
            os.close(output)
        client.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):  # nobody waits for it
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    client.close()
    _become(request, outputs)
    return list(request["args"])


def _become(request: dict, outputs: list[int]) -> None:
    """Take the surroundings of the request, as a process that has just begun."""
    import numpy as np
    import torch
    from pytorch_lightning.strategies.launchers import subprocess_script

    os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, *outputs)):
        os.dup2(file, number)
        os.close(file)
    sys.path[:0] = [request["cwd"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["zoo", *request["args"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    random.seed()
    np.random.seed()
    torch.seed()

    def start(command: list[str], env: dict[str, str], cwd: str | None) -> Forked:
        return Forked(request["args"], env, cwd or os.getcwd(), (1, 2), os.getpgid(0))

    subprocess_script.subprocess = SimpleNamespace(Popen=start)  # type: ignore[attr-defined]


if __name__ == "__main__":
    import pandas  # noqa: F401 (pyarrow imports it in each run)

    import zoo.commands.lightning  # noqa: F401 (main imports it in each run)
    from zoo.commands.catalog import import_parts
    from zoo.commands.main import main

    import_parts()
    main(serve(sys.argv[1]))
