"""Checkpoints made by an attacker, or damaged: no code may run, nothing outside may be written, one line at most."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tests.hostile.case import CANARY, EITHER, ERROR, WORKS, Box, Case, Result, Story, silent_unless

EVIL = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", CANARY]}}
OWN = {"class_path": "evil.Evil", "init_args": {}}
SYSTEM = {"class_path": "os.system", "init_args": {"command": f"touch {CANARY}"}}
EVIL_MODULE = f"open({CANARY!r}, 'w').close()\nimport heads\nclass Evil(heads.Linear): pass\n"
LIBRARIES = ("flash_attn", "apex", "torch", "heads", "wandb")
DOCUMENTS = {"in.txt": "a document about fishery\nanother one\n"}
PREDICT = ["predict", "--ckpt=bad.ckpt", "--input=in.txt", "--out=tags.jsonl"]
VERBS = {
    "predict": PREDICT,
    "test": ["test", "--ckpt=bad.ckpt"],
    "validate": ["validate", "--ckpt=bad.ckpt"],
    "rerank": ["rerank", "--ckpt=bad.ckpt", "--out=new.ckpt"],
    "tree": ["tree", "--ckpt=bad.ckpt"],
    "add-labels": ["add-labels", "--ckpt=bad.ckpt", "--input=few.jsonl", "--out=new.ckpt"],
    "from-stage": ["fit", "--config=tiny.yaml", "--stages=[{name: a, epochs: 1}]", "--from_stage=a", "--ckpt=bad.ckpt",
                   "--trainer.max_epochs=null", "--final_test=false"],
    "fit-with-ckpt": ["fit", "--ckpt=bad.ckpt"],
}  # fmt: skip
CALIBRATION: dict[str, Any] = {
    "method": "platt",
    "weights": [0.0, 1.0, 0.0, 0.0],
    "candidates": 10,
    "kind": "global",
    "target": "micro-f1",
    "cuts": {"global": [0.5], "class": [0.5] * 3, "label": [0.5]},
    "steps": [[], []],
}
FEW = {"few.jsonl": '{"text": "a new text", "labels": ["new"]}\n'}
Edit = Callable[[dict[str, Any]], None]


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def edited(model: str, edit: Edit, name: str = "bad.ckpt") -> Callable[[Box], None]:
    """Write a model's checkpoint with changes."""

    def setup(box: Box) -> None:
        content = load(box.model(model))
        edit(content)
        torch.save(content, box.folder / name)

    return setup


def config(change: Callable[[dict[str, Any]], None]) -> Edit:
    """Change the configuration in a checkpoint."""

    def edit(content: dict[str, Any]) -> None:
        settings = yaml.safe_load(content["zoo"]["config"])
        change(settings)
        content["zoo"]["config"] = yaml.safe_dump(settings, sort_keys=False)

    return edit


def put(path: str, value: Any) -> Edit:
    """Set one entry of the content, by its path."""

    def edit(content: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            content = content[parent]
        content[last] = value

    return edit


def setting(path: str, value: Any) -> Edit:
    return config(put(path, value))


def drop(path: str) -> Edit:
    def edit(content: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            content = content[parent]
        del content[last]

    return edit


def weights(change: Callable[[str, torch.Tensor], Any]) -> Edit:
    """Change every tensor of the state dict."""

    def edit(content: dict[str, Any]) -> None:
        state = content["state_dict"]
        for name, value in list(state.items()):
            if isinstance(value, torch.Tensor) and not name.endswith("threshold"):
                state[name] = change(name, value)

    return edit


def head_weights(change: Callable[[torch.Tensor], Any]) -> Edit:
    return weights(
        lambda name, value: change(value) if name.startswith("head.") and value.is_floating_point() else value
    )


def extra(key: str, change: Callable[[Any], Any], rename: str | None = None) -> Edit:
    """Change an entry of the head's extra state."""

    def edit(content: dict[str, Any]) -> None:
        state = content["state_dict"]["head._extra_state"]
        found = key or next(iter(state))
        value = change(state[found])
        if rename:
            del state[found]
        state[rename or found] = value

    return edit


def first_file(rename: str) -> Edit:
    return extra("", lambda value: value, rename)


def another_file(name: object) -> Edit:
    return lambda content: content["state_dict"]["head._extra_state"].update({name: torch.zeros(10, dtype=torch.uint8)})


def bytes_of(model: str, change: Callable[[bytearray], bytes | bytearray]) -> Callable[[Box], None]:
    def setup(box: Box) -> None:
        (box.folder / "bad.ckpt").write_bytes(change(bytearray(box.model(model).read_bytes())))

    return setup


def flipped(place: float, size: int) -> Callable[[bytearray], bytearray]:
    def change(content: bytearray) -> bytearray:
        start = int(len(content) * place)
        for i in range(start, min(start + size, len(content))):
            content[i] ^= 0xFF
        return content

    return change


def names_to(change: Callable[[int], Any], key: str = "names") -> Edit:
    """Replace the names of the labels, or another list of that length."""
    return lambda content: put(f"zoo/space/{key}", change(len(content["zoo"]["space"]["names"])))(content)


def thresholds(content: dict[str, Any]) -> list[str]:
    return [name for name in content["state_dict"] if "threshold" in name]


def without_thresholds(content: dict[str, Any]) -> None:
    for name in thresholds(content):
        del content["state_dict"][name]


def nan_thresholds(content: dict[str, Any]) -> None:
    content["state_dict"] |= {name: torch.tensor(float("nan")) for name in thresholds(content)}


def one_nan(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value.view(-1)[0] = float("nan")
    return value


def expanded(name: str, value: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1).expand(value.shape) if value.is_floating_point() else value


def shifted(name: str, value: torch.Tensor) -> torch.Tensor:
    return value if value.is_floating_point() or not value.ndim else value + 10**6


def negative(name: str, value: torch.Tensor) -> torch.Tensor:
    return -1 - value if value.dtype == torch.long and value.ndim else value


def one_jump(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value[:1], value[1:-1] + 10**8, value[-1:]])


def random_bytes(value: torch.Tensor) -> torch.Tensor:
    return torch.randint(0, 256, value.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Command:
    """Unpickles to a call of os.system."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


def zip_of(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def tags_are_sound(box: Box, result: Result) -> None:
    """If something was predicted: one line for each document, finite scores in order."""
    if result.code != 0 or not (box.folder / "tags.jsonl").exists():
        return
    rows = box.lines("tags.jsonl")
    silent_unless(len(rows) == 2, f"{len(rows)} rows for 2 documents")
    for row in rows:
        scores = [tag["score"] for tag in row["labels"]]
        silent_unless(scores == sorted(scores, reverse=True), "scores are not in order")
        silent_unless(all(0 <= score <= 1 for score in scores), "a score is not a probability")


POSITIONS: dict[str, tuple[str, Callable[[Any], Edit]]] = {
    "backbone": ("linear", lambda evil: setting("model/backbone", evil)),
    "head": ("linear", lambda evil: setting("model/head", evil)),
    "head-argument": ("linear", lambda evil: setting("model/head/init_args", {"loss": evil})),
    "backbone-argument": ("linear", lambda evil: setting("model/backbone/init_args/hidden", evil)),
    "depth": ("linear", lambda evil: setting("model/depth", evil)),
    "optimizer": ("linear", lambda evil: setting("model/optimizer", evil)),
    "scheduler": ("linear", lambda evil: setting("model/lr_scheduler", evil)),
    "data": ("linear", lambda evil: setting("data", evil)),
    "data-argument": ("linear", lambda evil: setting("data/init_args/seed", evil)),
    "callbacks": ("linear", lambda evil: setting("trainer/callbacks", [evil])),
    "plugins": ("linear", lambda evil: setting("trainer/plugins", [evil])),
    "logger": ("linear", lambda evil: setting("trainer/logger", evil)),
    "stages": ("linear", lambda evil: setting("stages", [{"name": "a", "epochs": 1, "optimizer": evil}])),
    "unknown-section": ("linear", lambda evil: setting("model/extra", evil)),
    "encoder-config": ("bert", lambda evil: setting("model/backbone/init_args/config/x", evil)),
    "encoder-config-known-key": ("bert", lambda evil: setting("model/backbone/init_args/config/hidden_act", evil)),
    "stored-backbone": ("bert", lambda evil: put("zoo/backbone/config/x", evil)),
    "stored-backbone-list": ("bert", lambda evil: put("zoo/backbone/config/x", [evil])),
    "stored-backbone-nested": ("bert", lambda evil: put("zoo/backbone/config/x", {"y": {"z": [evil]}})),
    "stored-backbone-name": ("bert", lambda evil: put("zoo/backbone/name", evil)),
    "tree": ("tree", lambda evil: setting("model/head/init_args/tree", evil)),
}
OWN_AT = ("head", "backbone", "data", "stored-backbone", "stages")
USED_BY = {"data": "test", "data-argument": "rerank", "optimizer": "test", "scheduler": "test", "callbacks": "test",
           "plugins": "fit-with-ckpt", "logger": "fit-with-ckpt", "stages": "fit-with-ckpt"}  # fmt: skip
# Wrong values of fields: None of them may be believed, or end in a traceback.
FIELDS: dict[str, Edit] = {
    "zoo-is-none": put("zoo", None),
    "config-is-broken": put("zoo/config", "model: {"),
    "config-without-model": put("zoo/config", "data: {}"),
    "config-with-python-tag": put("zoo/config", f"model: !!python/object/apply:os.system ['touch {CANARY}']"),
    "config-laughs": put("zoo/config", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
    ) + "model: *j\n"),
    "config-deep": put("zoo/config", "model: " + "[" * 20000),
    "space-is-none": put("zoo/space", None),
    "names-too-short": put("zoo/space/names", ["a"]),
    "names-are-numbers": names_to(lambda size: list(range(size))),
    "names-are-equal": names_to(lambda size: ["a"] * size),
    "counts-negative": names_to(lambda size: [-1] * size, "counts"),
    "vocabulary-size-huge": put("zoo/space/vocab_size", 10**12),
    "pad-id-out-of-range": put("zoo/space/pad_id", 10**6),
    "propensity-nan": put("zoo/space/propensity_a", float("nan")),
    "tokenizer-is-a-number": put("zoo/tokenizer", 3),
    "tokenizer-is-empty": put("zoo/tokenizer", "{}"),
    "tokenizer-is-deep": put("zoo/tokenizer", "[" * 100_000),
    "max-length-0": put("zoo/max_length", 0),
    "max-length-negative": put("zoo/max_length", -1),
    "max-length-huge": put("zoo/max_length", 2**70),
    "windows-huge": put("zoo/windows", 2**70),
    "calibration-is-text": put("zoo/calibration", "platt"),
    "calibration-is-foreign": put("zoo/calibration", {"method": "os.system"}),
    "calibration-nan": put("zoo/calibration", CALIBRATION | {"weights": [float("nan")] * 4}),
    "calibration-huge": put("zoo/calibration", CALIBRATION | {"candidates": 2**40}),
    "calibration-of-other-labels": put("zoo/calibration", CALIBRATION | {"cuts": CALIBRATION["cuts"] | {"label": []}}),
    "calibration-steps-fall": put("zoo/calibration", CALIBRATION | {"steps": [[0.0, 1.0], [0.9, 0.1]]}),
    "depth-text": setting("model/depth", "deep"),
    "hidden-huge": setting("model/backbone/init_args/hidden", 10**9),
    "stored-backbone-is-a-list": put("zoo/backbone", [1]),
    "state-is-none": put("state_dict", None),
    "state-without-threshold": without_thresholds,
    "threshold-nan": nan_thresholds,
    "weights-are-none": weights(lambda name, value: None),
    "weights-are-strings": weights(lambda name, value: "x"),
    "weights-are-sparse": weights(lambda name, value: value.to_sparse() if value.ndim else value),
    "weights-are-meta": weights(lambda name, value: value.to("meta")),
    "weights-are-integers": head_weights(lambda value: value.long()),
    "weights-are-transposed": weights(lambda name, value: value.T.contiguous() if value.ndim == 2 else value),
    "weights-are-views": weights(expanded),
    "weights-nan": head_weights(lambda value: torch.full_like(value, float("nan"))),
    "weights-inf": head_weights(lambda value: torch.full_like(value, float("inf"))),
    "one-weight-nan": head_weights(one_nan),
    "weights-of-another-model": lambda content: content["state_dict"].update({"more": torch.zeros(3)}),
}  # fmt: skip
MAY_WORK = {"weights-are-views", "weights-are-integers", "names-are-equal", "pad-id-out-of-range", "counts-negative",
            "counts-text", "counts-too-short", "propensity-nan", "stored-backbone-is-a-list", "max-length-huge",
            "weights-are-sparse", "threshold-nan"}  # fmt: skip


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


ENGINES: dict[str, tuple[str, Edit]] = {
    "svm-labels-out-of-range": ("svm", extra("labels", lambda value: torch.full_like(value, 10**6))),
    "svm-labels-negative": ("svm", extra("labels", lambda value: torch.full_like(value, -7))),
    "svm-labels-too-short": ("svm", extra("labels", lambda value: value[:3])),
    "svm-starts-descend": ("svm", extra("starts", lambda value: value.flip(0))),
    "svm-starts-too-large": ("svm", extra("starts", lambda value: value * 1000)),
    "svm-starts-too-short": ("svm", extra("starts", lambda value: value[:5])),
    "svm-starts-one-jump": ("svm", extra("starts", one_jump)),
    "svm-values-nan": ("svm", extra("values", lambda value: value * float("nan"))),
    "svm-values-text": ("svm", extra("values", lambda value: "x")),
    "svm-bias-too-short": ("svm", extra("bias", lambda value: value[:1])),
    "svm-without-bias": ("svm", drop("state_dict/head._extra_state/bias")),
    "svm-state-is-a-list": ("svm", put("state_dict/head._extra_state", [1])),
    "parabel-climbs": ("parabel", another_file(f"../../{CANARY}")),
    "parabel-absolute": ("parabel", another_file("/tmp/escaped-from-hostile")),
    "parabel-renamed-upwards": ("parabel", first_file("../x")),
    "parabel-name-nul": ("parabel", another_file("a\0b")),
    "parabel-name-is-a-number": ("parabel", another_file(3)),
    "parabel-content-truncated": ("parabel", extra("", lambda value: value[: len(value) // 2])),
    "parabel-content-flipped": ("parabel", extra("", lambda value: value ^ 0xFF)),
    "parabel-content-random": ("parabel", extra("", random_bytes)),
    "parabel-empty": ("parabel", put("state_dict/head._extra_state", {})),
}  # fmt: skip
TREE = "state_dict/head.trees._extra_state"
GROUP = "state_dict/head.features.groups"


def part(path: str, change: Callable[[torch.Tensor], Any]) -> Edit:
    """Change one entry of the content, by its path."""

    def edit(content: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            content = content[parent]
        content[last] = change(content[last])

    return edit


BLENDS: dict[str, Edit] = {
    "blend-trees-in-a-circle": part(f"{TREE}/left", lambda value: torch.zeros_like(value)),
    "blend-children-out-of-range": part(f"{TREE}/right", lambda value: value + 10**6),
    "blend-children-negative": part(f"{TREE}/left", lambda value: -1 - value),
    "blend-features-out-of-range": part(f"{TREE}/feature", lambda value: value + 10**6),
    "blend-roots-out-of-range": part(f"{TREE}/roots", lambda value: value + 10**6),
    "blend-roots-in-two-dimensions": part(f"{TREE}/roots", lambda value: value[:, None]),
    "blend-roots-too-many": part(f"{TREE}/roots", lambda value: value.repeat(100)),
    "blend-values-nan": part(f"{TREE}/value", lambda value: value * float("nan")),
    "blend-without-neighbours": put(f"{GROUP}.2._extra_state", None),
    "blend-neighbours-out-of-range": part(f"{GROUP}.2._extra_state/text/columns", lambda value: value + 10**6),
    "blend-neighbours-too-wide": put(f"{GROUP}.2._extra_state/lead/width", 2**62),
    "blend-neighbours-descend": part(f"{GROUP}.2._extra_state/labels/starts", lambda value: value.flip(0)),
    "blend-without-label-words": put(f"{GROUP}.3._extra_state", None),
    "blend-without-cooccurrence": put(f"{GROUP}.4._extra_state", None),
    "blend-cooccurrence-nan": part(f"{GROUP}.4._extra_state/values", lambda value: value * float("nan")),
    "blend-popen-as-member": setting("model/head/init_args/members/svm", EVIL),
    "blend-popen-as-feature": setting("model/head/init_args/features", [EVIL]),
    "blend-member-named-like-a-method": setting("model/head/init_args/members", {"forward": "heads.OneVsRestSvm"}),
}  # fmt: skip


def ensemble(edit: Edit) -> Callable[[Box], None]:
    """Write an ensemble of two models, with changes."""

    def setup(box: Box) -> None:
        members = [load(box.model(name)) for name in ("linear", "svm")]
        content = {"zoo": {"format": 2, "members": members, "threshold": 0.5}}
        edit(content)
        torch.save(content, box.folder / "bad.ckpt")

    return setup


def first_member(edit: Edit) -> Edit:
    return lambda content: edit(content["zoo"]["members"][0])


ENSEMBLES: dict[str, Edit] = {
    "ensemble-without-members": put("zoo/members", []),
    "ensemble-of-one": lambda content: content["zoo"]["members"].pop(),
    "ensemble-of-none": put("zoo/members", None),
    "ensemble-of-text": put("zoo/members", ["linear.ckpt", "/etc/passwd"]),
    "ensemble-of-numbers": put("zoo/members", {"a": 1}),
    "ensemble-of-ensembles": lambda content: content["zoo"]["members"].append({"zoo": dict(content["zoo"])}),
    "ensemble-of-itself": lambda content: content["zoo"]["members"].append(content),
    "ensemble-popen-in-member": first_member(setting("model/head", EVIL)),
    "ensemble-own-in-member": first_member(setting("model/head", OWN)),
    "ensemble-nan-in-member": first_member(head_weights(one_nan)),
    "ensemble-other-labels": first_member(lambda content: names_to(lambda n: [f"x{i}" for i in range(n)])(content)),
    "ensemble-member-of-the-future": first_member(put("zoo/format", 99)),
    "ensemble-without-weights": first_member(drop("state_dict")),
    "ensemble-threshold-nan": put("zoo/threshold", float("nan")),
    "ensemble-threshold-text": put("zoo/threshold", "high"),
    "ensemble-without-threshold": drop("zoo/threshold"),
}  # fmt: skip
TREES: dict[str, Edit] = {
    "tree-labels-out-of-range": weights(shifted),
    "tree-labels-negative": weights(negative),
    "tree-weights-nan": head_weights(lambda value: torch.full_like(value, float("nan"))),
}
FILES: dict[str, Callable[[Box], object]] = {
    "empty": bytes_of("linear", lambda content: b""),
    "text": bytes_of("linear", lambda content: b"hello"),
    "half": bytes_of("linear", lambda content: content[: len(content) // 2]),
    "without-end": bytes_of("linear", lambda content: content[:-30]),
    "without-start": bytes_of("linear", lambda content: content[100:]),
    "with-more": bytes_of("linear", lambda content: content + b"\0" * 100),
    **{f"flipped-at-{place:.0%}": bytes_of("linear", flipped(place, 8)) for place in (0.0, 0.02, 0.5, 0.9, 0.99)},
    "flipped-weights": bytes_of("linear", flipped(0.3, 200)),
    "flipped-svm": bytes_of("svm", flipped(0.5, 200)),
    "foreign-zip": lambda box: (box.folder / "bad.ckpt").write_bytes(zip_of({"a.txt": b"hello"})),
    "climbing-zip": lambda box: (box.folder / "bad.ckpt").write_bytes(zip_of({f"../../{CANARY}": b"x", "a/b": b"x"})),
    "zip-with-pickle": lambda box: (box.folder / "bad.ckpt").write_bytes(
        zip_of({"a/data.pkl": pickle.dumps(Command(), 2), "a/version": b"3\n", "a/byteorder": b"little"})
    ),
    "pickle": lambda box: (box.folder / "bad.ckpt").write_bytes(pickle.dumps(Command())),
    "old-pickle": lambda box: torch.save(
        {"state_dict": {}, "zoo": Command()}, box.folder / "bad.ckpt", _use_new_zipfile_serialization=False
    ),
    "torch-with-command": lambda box: torch.save({"state_dict": {}, "zoo": Command()}, box.folder / "bad.ckpt"),
    "torchscript": lambda box: torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(box.folder / "bad.ckpt")),
    "numpy": lambda box: np.savez((box.folder / "bad.ckpt").open("wb"), a=np.zeros(3)),
    "a-tensor": lambda box: torch.save(torch.zeros(3), box.folder / "bad.ckpt"),
    "a-list": lambda box: torch.save([1, 2], box.folder / "bad.ckpt"),
    "folder": lambda box: (box.folder / "bad.ckpt").mkdir(),
    "pipe": lambda box: os.mkfifo(box.folder / "bad.ckpt"),
    "link-to-itself": lambda box: (box.folder / "bad.ckpt").symlink_to("bad.ckpt"),
}  # fmt: skip
DAMAGED = {"flipped-weights", "flipped-svm", "flipped-at-50%"}  # in the weights: checksums would show it


def damage_shows(box: Box, result: Result) -> None:
    tags_are_sound(box, result)
    if result.code == 0:
        name = next(name for name in ("linear", "svm") if (box.folder / f"{name}.ckpt").exists())
        before = box.zoo("predict", f"--ckpt={name}.ckpt", "--input=in.txt")
        after = (box.folder / "tags.jsonl").read_text()
        silent_unless(after == before.out, "a damaged checkpoint gives other tags without a word")


def in_python(box: Box) -> str:
    """The same attack through `zoo.load`."""
    edited("linear", setting("model/head", EVIL))(box)

    def body() -> None:
        import zoo

        zoo.load("bad.ckpt", device="cpu")

    return box.judge(box.call(body), ERROR)


def hostile_folder(name: str) -> Callable[[Box], str]:
    """The installed command, in a folder with a module named like a library."""

    def tell(box: Box) -> str:
        box.write({f"here/{name}.py": f"open({CANARY!r}, 'w').close()\n", "here/in.txt": "a text\n"})
        model = box.model("bert" if name in LIBRARIES[:2] else "linear")
        script = "from zoo.commands.main import script; script()"
        argv = ["-P", "-c", script, "predict", f"--ckpt={model}", "--input=in.txt"]
        return box.judge(box.python(*argv, cwd=box.folder / "here", timeout=240), WORKS)

    return tell


def resumed(edit: Edit, expect: tuple[str, ...] = ERROR) -> Callable[[Box], str]:
    """`--ckpt_path last` of a run whose last.ckpt was replaced."""

    def tell(box: Box) -> str:
        last = box.run_folder("linear") / "checkpoints" / "last.ckpt"
        content = load(last)
        edit(content)
        torch.save(content, last)
        return box.judge(
            box.zoo("fit", "--config=tiny.yaml", "--name=linear", "--ckpt_path=last", "--trainer.max_epochs=2"), expect
        )

    return tell


def cases(seed: int) -> list[Case]:
    files = {**DOCUMENTS, **FEW, "evil.py": EVIL_MODULE}
    found = [Case("works", ["predict", "--ckpt=linear.ckpt", "--input=in.txt", "--out=tags.jsonl"], WORKS, files,
                  check=tags_are_sound)]  # fmt: skip
    for id, (model, at) in POSITIONS.items():
        verb = VERBS[USED_BY.get(id, "predict")]
        for kind, evil in [("popen", EVIL), *([("own", OWN)] if id in OWN_AT else [])]:
            found.append(Case(f"{kind}-as-{id}", verb, EITHER, files, edited(model, at(evil)), needs=(model,)))
    edit = setting("model/head", EVIL)
    for verb, argv in VERBS.items():
        expect = EITHER if verb == "from-stage" else ERROR
        found.append(Case(f"popen-with-{verb}", argv, expect, files, edited("linear", edit), needs=("linear",)))
    found.append(Case("system-as-head", PREDICT, ERROR, files, edited("linear", setting("model/head", SYSTEM)),
                      needs=("linear",)))  # fmt: skip
    found.append(Case("own-head-with-test", VERBS["test"], EITHER, files,
                      edited("linear", setting("model/head", OWN)), needs=("linear",)))  # fmt: skip
    for id, edit in FIELDS.items():
        expect = EITHER if id in MAY_WORK else ERROR
        found.append(Case(id, PREDICT, expect, files, edited("linear", edit), tags_are_sound, needs=("linear",)))
    for id, (model, edit) in ENGINES.items():
        found.append(Case(id, PREDICT, ERROR, files, edited(model, edit), tags_are_sound, needs=(model,)))
    for id, edit in TREES.items():
        found.append(Case(id, PREDICT, EITHER, files, edited("tree", edit), tags_are_sound, needs=("tree",)))
    for id, edit in BLENDS.items():
        found.append(Case(id, PREDICT, ERROR, files, edited("blend", edit), tags_are_sound, needs=("blend",)))
    pair = ("linear", "svm")
    for id, edit in ENSEMBLES.items():
        found.append(Case(id, PREDICT, ERROR, files, ensemble(edit), tags_are_sound, needs=pair))
    for verb, argv in VERBS.items():
        expect = WORKS if verb == "predict" else ERROR
        found.append(Case(f"ensemble-with-{verb}", argv, expect, files, ensemble(lambda content: None), needs=pair))
    for id, setup in FILES.items():
        check = damage_shows if id in DAMAGED else tags_are_sound
        expect = EITHER if id.startswith("flipped") or id == "with-more" else ERROR
        options = {"timeout": 15} if id == "pipe" else {}
        found.append(Case(f"file-{id}", PREDICT, expect, files, setup, check, options, needs=("linear", "svm")))
    found += [
        Case("popen-in-python", Story(in_python), needs=("linear",)),
        *(Case(f"folder-with-{name}", Story(hostile_folder(name)), needs=("linear", "bert")) for name in LIBRARIES),
        Case("resume-untouched", Story(resumed(lambda content: None, WORKS)), needs=("linear",)),
        Case("resume-with-popen", Story(resumed(setting("model/head", EVIL), EITHER)), needs=("linear",)),
        Case("resume-without-loops", Story(resumed(drop("loops"))), needs=("linear",)),
        Case("resume-without-optimizer", Story(resumed(drop("optimizer_states"))), needs=("linear",)),
        Case("resume-optimizer-of-text", Story(resumed(put("optimizer_states", "x"))), needs=("linear",)),
        Case("resume-callbacks-of-text", Story(resumed(put("callbacks", "x"))), needs=("linear",)),
        Case("resume-without-schedule", Story(resumed(drop("callbacks/StageSchedule"))), needs=("linear",)),
        Case("resume-schedule-attribute", Story(resumed(put("callbacks/StageSchedule/_apply", "x"), EITHER)),
             needs=("linear",)),
        Case("resume-step-of-text", Story(resumed(put("global_step", "x"))), needs=("linear",)),
        Case("resume-epoch-negative", Story(resumed(put("epoch", -5), EITHER)), needs=("linear",)),
        Case("resume-nan-weights", Story(resumed(head_weights(lambda value: value * float("nan")))), needs=("linear",)),
    ]  # fmt: skip
    return found
