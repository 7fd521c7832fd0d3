"""Small models for the service, and a service in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from fastapi import FastAPI
from uvicorn import Config, Server

import zoo
from backbones import BiLSTM
from datamodules.prepare.vocabulary import PAD, UNK, Vocabulary, word_tokenizer
from heads import PrototypeTransfer
from tests.support.documents import label_space
from tests.unit.training.test_tagger import make
from zoo.service.app import make_app
from zoo.service.options import ServiceOptions
from zoo.training.ranking_model import RankingModel

WORDS = {PAD: 0, UNK: 1, "cod": 2, "quota": 3, "levy": 4, "ban": 5}
LEARNER = """
model:
  backbone: {class_path: backbones.BiLSTM, init_args: {embed_dim: 4, hidden: 4}}
  head: {class_path: heads.PrototypeTransfer, init_args: {hidden: 4, tail_labels: 2}}
"""


def small_model(folder: Path) -> Path:
    """A checkpoint with five labels."""
    make().save(folder / "small.ckpt")
    return folder / "small.ckpt"


def learner(folder: Path) -> Path:
    """A checkpoint whose head takes labels from a few documents."""
    torch.manual_seed(0)
    space = label_space([9, 7, 5, 3, 2], vocab_size=len(WORDS))
    module = RankingModel(
        space, lambda space: BiLSTM(space, 4, 4), lambda dim, space: PrototypeTransfer(dim, space, 4, tail_labels=2)
    )
    module.vocabulary, module.config_text = Vocabulary(word_tokenizer(WORDS), 50), LEARNER
    torch.nn.init.normal_(module.head.prototypes)
    torch.nn.init.eye_(module.head.map)
    module.head.ready.fill_(True)  # as after `transfer`
    zoo.Tagger(module).save(folder / "learner.ckpt")
    return folder / "learner.ckpt"


def application(ckpt: Path, **settings) -> FastAPI:
    return make_app(ServiceOptions(str(ckpt), **{"threads": 1, "reload_every": 0.02} | settings))


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application on a free port in a thread; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(Config(app, lifespan="on", ws="none", log_config=None, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)
