"""Mutations of small checkpoints: each must end in a `UserError` or in a model that works, and run no foreign code.

`python -m tests.hostile.checkpoints 5000` tries that many; `ZOO_MUTATIONS=5000 pytest` does in the test suite.
"""

from __future__ import annotations

import io
import math
import random
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.sparse import random_array

from datamodules.batch import LabelSpace
from datamodules.prepare.vocabulary import PAD, UNK, Vocabulary, word_tokenizer
from heads import Blend, Head, OneVsRestSvm
from tests.support.blend import Corpus
from zoo.core.errors import UserError
from zoo.training.calibration import Calibration, Method
from zoo.training.checkpoint import build, save
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.tagger import Tag, load

WORDS = {word: i for i, word in enumerate([PAD, UNK, *(f"w{i}" for i in range(28))])}
LABELS = 12
SPACE = LabelSpace([f"label {i}" for i in range(LABELS)], list(range(LABELS, 0, -1)), 40, len(WORDS))
TEXTS = ["w1 w2 w3 w9", "", "unknown w20"]
SMALL = {"class_path": "backbones.BiLSTM", "init_args": {"embed_dim": 4, "hidden": 4}}
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
MODELS: dict[str, dict[str, Any]] = {
    "Linear": {"backbone": SMALL, "head": {"class_path": "heads.Linear", "init_args": {"loss": "heads.losses.BCE"}}},
    "PLT": {"backbone": SMALL, "head": {"class_path": "heads.PLT", "init_args": {"tree": {"max_leaf": 3}}}},
    "OneVsRestSvm": {"backbone": "backbones.Words", "head": "heads.OneVsRestSvm"},
    "Rerank": {"backbone": SMALL, "head": {"class_path": "heads.Rerank", "init_args": {"inner": "heads.Linear"}}},
    "Blend": {
        "backbone": "backbones.Words",
        "head": {"class_path": "heads.Blend", "init_args": {"members": {"svm": "heads.OneVsRestSvm"}}},
    },
}
CALIBRATED = ("Linear", "OneVsRestSvm")
ENSEMBLE = ("Linear", "OneVsRestSvm")
NAMES = (*MODELS, "Ensemble")
REST = {
    "seed_everything": 0,
    "data": {"class_path": "datamodules.Sample", "init_args": {"num_documents": 50}},
    "trainer": {"callbacks": [{"class_path": "callbacks.TailAugment", "init_args": {}}]},
}


def write(path: Path, name: str) -> Path:
    """A checkpoint of a small model, or an ensemble of two, with random weights."""
    if name == "Ensemble":
        members = [write(path.with_suffix(f".{member}"), member) for member in ENSEMBLE]
        contents = [torch.load(member, weights_only=True) for member in members]
        EnsembleTagger([load(member, "cpu") for member in members], contents).save(path)
        return path
    torch.manual_seed(0)
    module = build(MODELS[name], SPACE)
    fill(module.head)
    module.config_text = yaml.safe_dump({"model": MODELS[name]} | REST)
    module.vocabulary = Vocabulary(word_tokenizer(WORDS), 50)
    if name in CALIBRATED:
        module.calibration = calibration("isotonic" if name == "Linear" else "platt")
    save(module, path)
    return path


def calibration(method: Method) -> Calibration:
    cuts = {"global": [0.3], "class": [0.2, 0.3, 0.4], "label": [0.25] * LABELS}
    steps = [[-3.0, 0.0, 3.0], [0.1, 0.4, 0.9]] if method == "isotonic" else [[], []]
    return Calibration(method, [0.1, 0.9, -0.1, 0.05], 10, "label", "macro-f1", cuts, SPACE.counts, steps)


def fill(head: Head) -> None:
    """Give a head that is not trained by gradients something to predict with."""
    if isinstance(head, OneVsRestSvm):
        head.weights = random_array((len(WORDS), LABELS), density=0.3, format="csr", dtype=np.float32, rng=0)
        head.bias = np.zeros(LABELS, np.float32)
        head.tfidf.idf.fill_(1)
    elif isinstance(head, Blend):
        for member in head.inner_heads.values():
            fill(member)
        head.features.learn(Corpus(40, seed=0).context(), torch.arange(40))
        draw = np.random.default_rng(0)
        head.trees.learn(draw.normal(size=(2000, len(head.features.names))), draw.integers(0, 2, 2000))


def attempt(path: Path) -> str | None:
    """Load a checkpoint and tag texts: the message of a `UserError`, or None if the model works."""
    try:
        tagger = load(path, "cpu")
        check_tags(tagger.tag(TEXTS, threshold="auto", explain=True))
        tags = tagger.tag(TEXTS, k=3)
    except UserError as error:
        message = str(error)
    else:
        check_tags(tags)
        return None
    assert "\n" not in message
    assert str(path) in message
    return message


def check_tags(tags: list[list[Tag]]) -> None:
    assert len(tags) == len(TEXTS)
    for found in tags:
        assert all(isinstance(tag.label, str) and math.isfinite(tag.score) for tag in found)


class Mutator:
    """Draws mutations of a checkpoint.

    Args:
        original: file to mutate.
        canary: file that appears if foreign code has run.
        seed: seed of the draws.
    """

    def __init__(self, original: Path, canary: Path, seed: int) -> None:
        self.bytes, self.random = original.read_bytes(), random.Random(seed)
        self.content = torch.load(original, weights_only=True)
        self.command = f"touch {canary}"

    def mutations(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Yield mutations in turn, forever."""
        kinds = (self.flip, self.cut, self.compress, self.duplicate, self.swap, self.swap, self.swap)
        while True:
            yield from ((kind.__name__, kind) for kind in kinds)
            yield from ((kind.__name__, kind) for kind in (self.inject, self.inject, self.inject, self.scramble))

    def flip(self) -> bytes:
        data = bytearray(self.bytes)
        for _ in range(self.random.choice((1, 1, 8))):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def cut(self) -> bytes:
        return self.bytes[: self.random.randrange(len(self.bytes))]

    def compress(self) -> bytes:
        return self.rezipped(zipfile.ZIP_DEFLATED)

    def duplicate(self) -> bytes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.rezipped(zipfile.ZIP_STORED, again=True)

    def rezipped(self, compression: int, again: bool = False) -> bytes:
        target = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.bytes)) as source, zipfile.ZipFile(target, "w", compression) as sink:
            for name in source.namelist() * (1 + again):
                sink.writestr(name, source.read(name))
        return target.getvalue()

    def swap(self) -> bytes:
        """Replace a value of the checkpoint, its configuration included, by one that nobody expects."""
        content, config = self.copies()
        tree: dict[str, Any] = content | {"config": config}
        if content is not self.whole and self.random.random() < 0.3:
            content = tree = self.whole
        where = self.random.choice(list(places(tree)))
        put(tree, where, self.odd(get(tree, where)))
        return self.packed(content, tree)

    def inject(self) -> bytes:
        """Put a class or function where the configuration has another value."""
        content, config = self.copies()
        where = self.random.choice([path for path in places(config) if path])
        put(config, where, self.random.choice(self.hostile()))
        return self.packed(content, content | {"config": config})

    def scramble(self) -> bytes:
        """Change characters of the configuration or of the vocabulary."""
        content, config = self.copies()
        key = self.random.choice(("config", "tokenizer"))
        text = yaml.safe_dump(config) if key == "config" else content["zoo"]["tokenizer"]
        start = self.random.randrange(len(text))
        filler = self.random.choice(
            ("", "{", "[" * 5000, '"', "\x00", "\n- &a [*a]\n", "!!python/name:os.system ", "é")
        )
        content["zoo"][key] = text[:start] + filler + text[start + self.random.choice((0, 1, 20)) :]
        return self.packed(content, content if key == "config" else content | {"config": config})

    def copies(self) -> tuple[dict[str, Any], Any]:
        """Content of the model that is mutated, which is a member if this is an ensemble, and its configuration."""
        self.whole = torch.load(io.BytesIO(self.bytes), weights_only=True)
        content = self.random.choice(self.whole["zoo"].get("members", [self.whole]))
        return content, yaml.safe_load(content["zoo"]["config"])

    def packed(self, original: dict[str, Any], changed: dict[str, Any]) -> bytes:
        """Write the checkpoint with a changed model; an entry `config` replaces its configuration."""
        changed = dict(changed)
        if "config" in changed:
            config = changed.pop("config")
            if isinstance(changed.get("zoo"), dict):
                safe = yaml.safe_dump(config) if not holds_tensor(config) else config
                changed["zoo"] = changed["zoo"] | {"config": safe}
        original.clear()
        original.update(changed)
        file = io.BytesIO()
        torch.save(self.whole, file)
        return file.getvalue()

    def odd(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and self.random.random() < 0.8:
            changed = value.clone()
            if changed.numel():
                one = self.random.choice((-1, 2**30, 0, 1))
                bad = [math.nan, math.inf, -1e38] if changed.is_floating_point() else [one % 256 if one < 0 else one]
                if changed.dtype in (torch.int32, torch.int64):
                    bad += [-1, -(2**31)]
                changed.view(-1)[self.random.randrange(changed.numel())] = self.random.choice(bad)
            short = value.flatten()[:-1].clone()
            return self.random.choice(
                [changed, changed, changed, value[..., None], value.double(), value.bool(), short]
            )
        huge = torch.empty(0).expand(0) if self.random.random() < 0.1 else torch.zeros(1).expand(2**40)
        sparse = torch.sparse_coo_tensor(torch.tensor([[9]]), torch.ones(1), (3,), check_invariants=False)
        odd: list[Any] = [None, -1, 0, 2**40, 10**400, 0.5, math.nan, math.inf, "", "x", "é" * 1000, [], {}, True]
        return self.random.choice([*odd, [1], {"a": 1}, ["x"] * 12, [0] * 12, huge, sparse, torch.ones(2, 3)])

    def hostile(self) -> list[Any]:
        call = {"class_path": "subprocess.Popen", "init_args": {"args": self.command, "shell": True}}
        by_module = {"class_path": "hostile_module.Anything", "init_args": {}}
        names = ("subprocess.Popen", "os.system", "hostile_module.Anything", "hostile_module.function", "builtins.exec")
        inside = ("heads.losses.torch.hub.load", "heads.base.Any", "backbones.transformer.Path", "heads.Head")
        encoder = {"class_path": "backbones.Transformer", "init_args": {"name": "/tmp", "pretrained": True}}
        tiny = {"class_path": "backbones.Transformer", "init_args": {"name": "bert", "pretrained": False}}
        tiny["init_args"] |= {"config": BERT | {"x": call, "attn_implementation": "hostile/kernel"}}  # type: ignore[operator]
        return [
            *(call, by_module, encoder, tiny, *names, *inside),
            *({"class_path": name} for name in (*names, *inside)),
            {"class_path": "os.system", "init_args": {"command": self.command}},
            {"class_path": call, "init_args": call},
            {"class_path": "heads.Linear", "init_args": {"loss": call}, "dict_kwargs": {"x": call}},
            [call],
            {"x": {"y": [call, by_module]}},
        ]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values of a tree; of a long list only the first."""
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:2] if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def get(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    get(tree, path[:-1])[path[-1]] = value


def holds_tensor(tree: Any) -> bool:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return isinstance(tree, torch.Tensor) or any(map(holds_tensor, inner))


def mutate(name: str, count: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """Try mutations of a model's checkpoint; return how many of each kind were refused."""
    canary, path = folder / "canary", folder / "mutated.ckpt"
    (folder / "hostile_module.py").write_text(f"open({str(canary)!r}, 'w')\nclass Anything: ...\ndef function(): ...\n")
    original = write(folder / "original.ckpt", name)
    assert attempt(original) is None
    refused: dict[str, int] = {}
    sys.path.append(str(folder))
    try:
        for number, (kind, mutation) in zip(range(count), Mutator(original, canary, seed).mutations(), strict=False):
            path.write_bytes(mutation())
            try:
                refused[kind] = refused.get(kind, 0) + (attempt(path) is not None)
                assert not canary.exists(), "foreign code has run"
            except BaseException:
                sys.stderr.write(f"{name}, seed {seed}, mutation {number} ({kind}): {path}\n")
                raise
    finally:
        sys.path.remove(str(folder))
    return refused


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(delete=False) if sys.version_info >= (3, 12) else tempfile.TemporaryDirectory() as f
    ):
        for model in NAMES:
            print(model, mutate(model, int(sys.argv[1]) // len(NAMES), Path(f), int((sys.argv[2:] or ["0"])[0])))
