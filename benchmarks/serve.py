"""Requests a second and latency of `zoo serve`, with and without batching, beside bare FastAPI handlers.

    python benchmarks/serve.py CKPT ... [--texts FILE] [--words N] [--clients 1 8 64] [--seconds S] [--rounds N]
    python benchmarks/serve.py CKPT --soak 600 [--rate 20]

The bare handlers are what the documentation of FastAPI leads to: the model is loaded once, and the handler calls it in
place, in the event loop (`async def`) or in FastAPI's pool of threads (`def`). All servers have one process and one
thread for the model, and get the same texts. CPU ms is the server's processor time for a request. The servers take
turns in each round; the medians of the rounds are shown. Clients are coroutines of this process with a connection
each; each sends its next request when it has the answer.
`--soak` asks at a fixed rate for a long time and shows memory and lost requests.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import zoo

SERVERS = {
    "zoo serve": ["-m", "zoo", "serve", "--port=0"],
    "zoo serve --max_batch 1": ["-m", "zoo", "serve", "--port=0", "--max_batch=1"],
    "bare handler, async def": [__file__, "--bare", "async"],
    "bare handler, def": [__file__, "--bare", "threads"],
}
K = 5


class Asked(BaseModel):
    """Body of a request to a bare handler."""

    text: str
    k: int = K


def bare(ckpt: str, kind: str) -> None:
    """Serve a checkpoint as FastAPI's tutorial would."""
    torch.set_num_threads(1)
    app, tagger = FastAPI(), zoo.load(ckpt)

    def tags(asked: Asked) -> dict[str, object]:
        (found,) = tagger.tag([asked.text], k=asked.k)
        return {"labels": [{"label": tag.label, "score": tag.score} for tag in found]}

    if kind == "threads":
        app.post("/v1/suggest")(tags)
    else:

        @app.post("/v1/suggest")
        async def suggest(asked: Asked) -> dict[str, object]:
            return tags(asked)

    tagger.tag(["warm up"])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listener])


@contextmanager
def started(name: str, ckpt: str) -> Iterator[tuple[int, int]]:
    """Port and process of a server."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *SERVERS[name], *([f"--ckpt={ckpt}"] if "zoo" in name else [ckpt])]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    said = ""
    while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", said)):
        line = process.stderr.readline()
        if not line:
            raise SystemExit(f"{name} did not start: {said}")
        said += line
    try:
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.communicate()


class Client:
    """A connection that asks for the labels of texts, one after the other."""

    def __init__(self, port: int, requests: list[bytes], first: int) -> None:
        self.port, self.requests, self.next = port, requests, first
        self.seconds: list[float] = []
        self.failed = 0

    async def run(self, until: float, pause: float = 0.0) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while time.perf_counter() < until:
            start = time.perf_counter()
            writer.write(self.requests[self.next % len(self.requests)])
            self.next += 1
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            self.failed += b" 200 " not in head[:16]
            self.seconds.append(time.perf_counter() - start)
            if pause:
                await asyncio.sleep(max(0.0, start + pause - time.perf_counter()))
        writer.close()


async def load(port: int, clients: int, requests: list[bytes], seconds: float) -> dict[str, float]:
    """Requests a second and percentiles of latency in milliseconds."""
    several = [Client(port, requests, random.randrange(len(requests))) for _ in range(clients)]
    start = time.perf_counter()
    await asyncio.gather(*(client.run(start + seconds) for client in several))
    elapsed = time.perf_counter() - start
    times = sorted(second for client in several for second in client.seconds)
    failed = sum(client.failed for client in several)
    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    return {"count": len(times), "rate": len(times) / elapsed, "p50": p50, "p99": p99, "failed": failed}


def compare(ckpt: str, requests: list[bytes], args: argparse.Namespace) -> None:
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for name in SERVERS:
            with started(name, ckpt) as (port, process):
                asyncio.run(load(port, 1, requests, args.seconds / 4))  # warm-up
                for clients in args.clients:
                    before = cpu_seconds(process)
                    one = asyncio.run(load(port, clients, requests, args.seconds))
                    one["cpu"] = 1000 * (cpu_seconds(process) - before) / one.pop("count")
                    found.setdefault((name, clients), []).append(one)
    print(f"\n{ckpt}\n\n| server | clients | requests/s | p50 ms | p99 ms | CPU ms | failed |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for (name, clients), several in sorted(found.items(), key=lambda item: item[0][1]):
        values = {key: median(one[key] for one in several) for key in several[0]}
        print(f"| {name} | {clients} | {values['rate']:.1f} | {values['p50']:.1f} | {values['p99']:.1f} ", end="")
        print(f"| {values['cpu']:.2f} | {sum(one['failed'] for one in several):.0f} |", flush=True)


def cpu_seconds(process: int) -> float:
    """Time that a process has spent on the processor: other than the clock, it does not depend on what else runs."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Memory of a process in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


async def soak(port: int, process: int, requests: list[bytes], args: argparse.Namespace) -> None:
    clients = [Client(port, requests, 7 * number) for number in range(8)]
    start = time.perf_counter()
    tasks = [asyncio.create_task(one.run(start + args.soak, len(clients) / args.rate)) for one in clients]
    print("| minute | requests | failed | memory, MB |\n|--:|--:|--:|--:|")
    for minute in range(int(args.soak / 60) + 1):
        done, failed = sum(len(one.seconds) for one in clients), sum(one.failed for one in clients)
        print(f"| {minute} | {done:,} | {failed} | {resident(process):.1f} |", flush=True)
        await asyncio.sleep(max(0.0, min(start + 60 * (minute + 1), start + args.soak) - time.perf_counter()))
    await asyncio.gather(*tasks)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    answered = sum(map(float, re.findall(r'zoo_requests_total\{[^}]*suggest",status="200"\} (\S+)', text)))
    print(f"sent {sum(len(one.seconds) for one in clients):,}, answered with 200: {answered:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ckpt", nargs="+")
    parser.add_argument("--texts", default=f"{os.environ.get('ZOO_DATA', 'data')}/reuters/test.jsonl.gz")
    parser.add_argument("--words", type=int, default=10**6, help="words of a text; the others are cut off")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second of --soak")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        bare(args.ckpt[0], args.bare)
        return
    random.seed(0)
    with gzip.open(args.texts, "rt", encoding="utf8") as file:
        texts = [" ".join(json.loads(line)["text"].split()[: args.words]) for line in file]
    random.shuffle(texts)
    bodies = [json.dumps({"text": text, "k": K}).encode() for text in texts]
    head = (
        "POST /v1/suggest HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    )
    requests = [head.format(len(body)).encode() + body for body in bodies]
    for ckpt in args.ckpt:
        if args.soak:
            with started("zoo serve", ckpt) as (port, process):
                asyncio.run(soak(port, process, requests, args))
        else:
            compare(ckpt, requests, args)


if __name__ == "__main__":
    main()
