"""Models made of other models, heads that keep documents, and document vectors in the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hostile.case import CANARY, EITHER, ERROR, WORKS, Bad, Box, Case, Story, lost_unless, silent_unless
from tests.hostile.cases.checkpoints import (
    DOCUMENTS,
    EVIL,
    FEW,
    PREDICT,
    VERBS,
    Command,
    Edit,
    drop,
    edited,
    head_weights,
    load,
    one_nan,
    part,
    put,
    setting,
    tags_are_sound,
)

FILES = {**DOCUMENTS, "texts.json": "{", "deep.json": "[" * 100_000}
RANKER = "zoo/ranker"
PAIR = ("linear", "svm")


def of_ranker(edit: Edit) -> Edit:
    """Change the ranker in the checkpoint of `zoo blend`."""
    return lambda content: edit(content["zoo"]["ranker"])


def swapped(content: dict[str, Any]) -> None:
    content["zoo"]["ranker"] = content["zoo"]["members"][0]


def inside_itself(content: dict[str, Any]) -> None:
    content["zoo"]["ranker"] = content["zoo"]["members"][0] = content


RANKERS: dict[str, Edit] = {
    "is-none": put(RANKER, None),
    "is-text": put(RANKER, "pair.ckpt"),
    "is-a-list": put(RANKER, [1]),
    "is-empty": put(RANKER, {}),
    "is-a-member": swapped,
    "is-the-blend": inside_itself,
    "with-one-member": of_ranker(setting("model/head/init_args/members", {"svm": "heads.blend.Proposals"})),
    "with-popen-as-member": of_ranker(setting("model/head/init_args/members", {"a": EVIL, "b": EVIL})),
    "with-popen-as-head": of_ranker(setting("model/head", EVIL)),
    "with-popen-as-backbone": of_ranker(setting("model/backbone", EVIL)),
    "with-real-members": of_ranker(setting("model/head/init_args/members", dict.fromkeys("ab", "heads.OneVsRestSvm"))),
    "without-weights": of_ranker(drop("state_dict")),
    "without-space": of_ranker(drop("zoo/space")),
    "other-labels": of_ranker(part("zoo/space/names", lambda names: names[::-1])),  # type: ignore[attr-defined]
    "candidates-huge": of_ranker(setting("model/head/init_args/candidates", 2**40)),
    "exponent-nan": of_ranker(setting("model/head/init_args/exponent", float("nan"))),
    "trees-huge": of_ranker(setting("model/head/init_args/ranker", {"trees": 10**12})),
    "clusters-float": of_ranker(
        lambda content: content["state_dict"].update(
            {name: value | {"cluster_of": value["cluster_of"].float()}
             for name, value in content["state_dict"].items() if isinstance(value, dict) and "cluster_of" in value}
        )
    ),
    "roots-out-of-range": of_ranker(part("state_dict/head.trees._extra_state/roots", lambda value: value + 10**6)),
    "of-the-future": of_ranker(put("zoo/format", 99)),
    "members-nan": lambda content: head_weights(one_nan)(content["zoo"]["members"][0]),
    "members-swapped": lambda content: content["zoo"]["members"].reverse(),
    "members-missing": lambda content: content["zoo"]["members"].pop(),
}  # fmt: skip
MAY_WORK = {"clusters-float", "candidates-huge", "members-swapped"}  # the features may have no clusters
NEAR, GROUPS = "state_dict/head.near._extra_state", "state_dict/head.features.groups"
KEPT: dict[str, tuple[str, Edit]] = {
    "near-columns-out-of-range": ("dense", part(f"{NEAR}/index/columns", lambda value: value + 10**6)),
    "near-columns-negative": ("dense", part(f"{NEAR}/index/columns", lambda value: -1 - value)),
    "near-starts-too-large": ("dense", part(f"{NEAR}/index/starts", lambda value: value * 1000)),
    "near-width-huge": ("dense", put(f"{NEAR}/index/width", 2**40)),
    "near-other-documents": ("dense", part(f"{NEAR}/labels/starts", lambda value: value[:-3])),
    "near-labels-nan": ("dense", part(f"{NEAR}/labels/values", lambda value: value * float("nan"))),
    "near-is-none": ("dense", put(NEAR, None)),
    "near-is-text": ("dense", put(NEAR, "x")),
    "vectors-of-one-document": ("dense", part(f"{GROUPS}.1._extra_state/vectors", lambda value: value[:1])),
    "vectors-nan": ("dense", part(f"{GROUPS}.1._extra_state/vectors", lambda value: value * float("nan"))),
    "vectors-of-no-width": ("dense", part(f"{GROUPS}.1._extra_state/vectors", lambda value: value[:, :0])),
    "vectors-are-a-list": ("dense", part(f"{GROUPS}.2._extra_state/vectors", lambda value: value.tolist())),
    "state-is-a-list": ("dense", put(f"{GROUPS}.2._extra_state", [1])),
    "clusters-too-few": ("dense", part(f"{GROUPS}.3._extra_state/cluster_of", lambda value: value[:3])),
    "pieces-out-of-range": ("dense", part("state_dict/backbone.pieces", lambda value: value + 10**6)),
    "around-out-of-range": ("dense", part("state_dict/backbone.around", lambda value: value + 10**6)),
    "encoder-is-a-folder": ("dense", put("zoo/backbone/name", "encoder")),
    "encoder-is-pretrained": ("dense", put("zoo/backbone/pretrained", True)),
    "memory-starts-out-of-range": ("dxml", part("state_dict/head.memory_starts", lambda value: value + 10**6)),
    "memory-labels-out-of-range": ("dxml", part("state_dict/head.memory_labels", lambda value: value + 10**6)),
    "memory-labels-negative": ("dxml", part("state_dict/head.memory_labels", lambda value: -1 - value)),
    "memory-nan": ("dxml", part("state_dict/head.memory", lambda value: value * float("nan"))),
    "memory-of-more-documents": ("dxml", put("zoo/space/num_documents", 10**9)),
    "windows-of-a-bilstm": ("linear", put("zoo/windows", 1000)),
    "windows-0": ("linear", put("zoo/windows", 0)),
    "windows-text": ("linear", put("zoo/windows", "2")),
    "windows-of-an-encoder": ("bert", put("zoo/windows", 10**6)),
}  # fmt: skip
KEPT_MAY_WORK = {
    "near-is-none",
    "windows-of-a-bilstm",
    "windows-of-an-encoder",
    "vectors-of-no-width",
    "encoder-is-a-folder",
}


def runs(box: Box, *names: str) -> list[str]:
    return [str(box.run_folder(name).relative_to(box.folder)) for name in names]


def command(
    verb: str, *options: str, names: tuple[str, ...] = ("linear", "svm"), expect: tuple[str, ...] = ERROR
) -> Story:
    """`zoo blend` or `zoo ensemble` of finished runs."""

    def tell(box: Box) -> str:
        found = box.judge(box.zoo(verb, *runs(box, *names), "--out=new", *options, timeout=120), expect)
        finished = [folder for folder in box.folder.glob("new/*/*") if (folder / "metrics.json").exists()]
        lost_unless(found != "survived" or finished, "there is no run")
        for folder in finished:
            lost_unless((folder / "checkpoints" / "best.ckpt").is_file(), "a finished run without a checkpoint")
        return found

    return Story(tell)


def of_changed(verb: str, change: Callable[[Box, Path], object], expect: tuple[str, ...] = ERROR) -> Story:
    """The same after a change of one of the runs."""

    def tell(box: Box) -> str:
        first, second = runs(box, *PAIR)
        change(box, box.folder / first)
        return box.judge(box.zoo(verb, first, second, "--out=new", timeout=120), expect)

    return Story(tell)


def in_run(edit: Edit) -> Callable[[Box, Path], None]:
    def change(box: Box, run: Path) -> None:
        content = load(run / "checkpoints" / "best.ckpt")
        edit(content)
        torch.save(content, run / "checkpoints" / "best.ckpt")

    return change


def facts(**changes: Any) -> Callable[[Box, Path], None]:
    def change(box: Box, run: Path) -> None:
        found = json.loads((run / "metrics.json").read_text())
        (run / "metrics.json").write_text(json.dumps(found | changes))

    return change


def full_disk(verb: str) -> Story:
    """The disk is full when the checkpoint is written: no run that looks finished."""

    def tell(box: Box) -> str:
        limit = min((box.folder / run / "checkpoints" / "best.ckpt").stat().st_size for run in runs(box, *PAIR))
        found = box.judge(box.zoo(verb, "runs/linear", "runs/svm", "--out=new", file_size=limit, timeout=120), ERROR)
        left = [path.name for path in box.folder.glob("new/*/*/metrics.json")]
        lost_unless(not left, "a run without a checkpoint looks finished")
        return found

    return Story(tell)


CHANGES: dict[str, tuple[Callable[[Box, Path], object], tuple[str, ...]]] = {
    "popen-as-head": (in_run(setting("model/head", EVIL)), ERROR),
    "popen-as-data": (in_run(setting("data", EVIL)), ERROR),
    "popen-as-data-argument": (in_run(setting("data/init_args/seed", EVIL)), ERROR),
    "other-documents": (in_run(setting("data/init_args/limit_train", 30)), EITHER),
    "other-seed-of-splits": (in_run(setting("data/init_args/seed", 5)), EITHER),
    "other-labels": (in_run(part("zoo/space/names", lambda names: names[::-1])), ERROR),  # type: ignore[attr-defined]
    "label-texts-anywhere": (in_run(setting("data/init_args/label_texts", "/etc/passwd")), EITHER),
    "nan-weights": (in_run(head_weights(one_nan)), ERROR),
    "no-checkpoint": (lambda box, run: shutil.rmtree(run / "checkpoints"), ERROR),
    "checkpoint-is-text": (lambda box, run: (run / "checkpoints" / "best.ckpt").write_text("hello"), ERROR),
    "no-metrics": (lambda box, run: (run / "metrics.json").unlink(), ERROR),
    "odd-name": (facts(experiment="../../[red]\x1b[2J"), EITHER),
    "name-is-a-list": (facts(experiment=["a"]), EITHER),
    "seconds-are-text": (facts(seconds="long", parameters=None), EITHER),
}
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "name-climbs": ("--name=../../x", ERROR),
    "name-empty": ("--name=", ERROR),
    "exponent-nan": ("--exponent=nan", ERROR),
    "exponent-negative": ("--exponent=-1", ERROR),
    "candidates-0": ("--candidates=0", ERROR),
    "candidates-huge": ("--candidates=999999999", EITHER),
    "trees-0": ("--trees=0", ERROR),
    "trees-huge": ("--trees=1e18", ERROR),
    "seed-negative": ("--seed=-1", ERROR),
    "max-length-0": ("--max_length=0", ERROR),
    "label-texts-missing": ("--label_texts=no.json", ERROR),
    "label-texts-broken": ("--label_texts=texts.json", ERROR),
    "label-texts-deep": ("--label_texts=deep.json", ERROR),
    "out-is-a-file": ("--out=texts.json", ERROR),
    "device-unknown": ("--device=abacus", ERROR),
    "trust-os": ("--trust=os", ERROR),
}
ENCODER = ["data", "embed", "in.jsonl", "--encoder=encoder", "--max_length=16", "--out=out"]


def encoder_of(box: Box) -> None:
    """A folder with the encoder, and a corpus."""
    shutil.copytree(box.models["dense"].parents[2] / "encoder", box.folder / "encoder")
    rows = [{"id": f"d{i}", "text": f"a text on fishery {i}", "labels": [f"l{i % 3}"]} for i in range(40)]
    box.write({"in.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})


def again_after(change: Callable[[Path], object], expect: tuple[str, ...] = WORKS) -> Story:
    """Document vectors are the same after the cache was damaged."""

    def tell(box: Box) -> str:
        encoder_of(box)
        box.judge(box.zoo(*ENCODER), WORKS)
        before = np.load(box.folder / "out" / "train.npy")
        shutil.rmtree(box.folder / "out")
        for folder in list((box.folder / "cache" / "vectors").iterdir()):
            if folder.is_dir():
                change(folder)
        found = box.judge(box.zoo(*ENCODER), expect)
        if found == "survived":
            silent_unless(np.array_equal(before, np.load(box.folder / "out" / "train.npy")), "other vectors")
        return found

    return Story(tell)


def flipped(folder: Path) -> None:
    content = bytearray((folder / "vectors.npy").read_bytes())
    content[-40:] = bytes(byte ^ 0x55 for byte in content[-40:])
    (folder / "vectors.npy").write_bytes(content)


def as_pickle(folder: Path) -> None:
    """An array of objects, which NumPy would unpickle, and a manifest that fits it."""
    from datamodules.prepare.cache import write_manifest

    np.save(folder / "vectors.npy", np.array([Command()], dtype=object), allow_pickle=True)
    write_manifest(folder, folder.name, ["vectors.npy"])


def as_block_pickle(folder: Path) -> None:
    shutil.rmtree(folder)
    blocks = folder.with_name(f"{folder.name}.blocks")
    blocks.mkdir()
    np.savez(blocks / "0.npz", vectors=np.array([Command()], dtype=object))


def block_of_nan(folder: Path) -> None:
    shape = np.load(folder / "vectors.npy").shape
    shutil.rmtree(folder)
    blocks = folder.with_name(f"{folder.name}.blocks")
    blocks.mkdir()
    np.savez(blocks / "0.npz", vectors=np.zeros((shape[0] + 1, shape[1]), np.float32))


def other_shape(folder: Path) -> None:
    from datamodules.prepare.cache import write_manifest

    np.save(folder / "vectors.npy", np.zeros((3, 3), np.float64))
    write_manifest(folder, folder.name, ["vectors.npy"])


VECTORS: dict[str, Callable[[Path], object]] = {
    "untouched": lambda folder: None,
    "deleted": shutil.rmtree,
    "flipped": flipped,
    "truncated": lambda folder: (folder / "vectors.npy").write_bytes(b"\x93NUMPY"),
    "pickle": as_pickle,
    "of-another-shape": other_shape,
    "block-pickle": as_block_pickle,
    "block-of-another-shape": block_of_nan,
    "folder-is-a-file": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
    "no-manifest": lambda folder: [file.unlink() for file in folder.iterdir() if file.name != "vectors.npy"],
}
EMBEDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "encoder-missing": (["--encoder=nowhere"], ERROR),
    "encoder-is-a-file": (["--encoder=in.jsonl"], ERROR),
    "encoder-is-empty": (["--encoder=empty"], ERROR),
    "encoder-with-code": (["--encoder=remote"], ERROR),
    "length-0": (["--max_length=0"], ERROR),
    "length-beyond-encoder": (["--max_length=5000"], ERROR),
    "windows-0": (["--windows=0"], ERROR),
    "windows-huge": (["--windows=999999999999"], ERROR),
    "batch-size-0": (["--batch_size=0"], ERROR),
    "split-unknown": (["--splits=dev"], ERROR),
    "out-is-a-file": (["--out=in.jsonl"], ERROR),
    "pooling-unknown": (["--pooling=max"], ERROR),
}


def embed(options: list[str], expect: tuple[str, ...]) -> Story:
    def tell(box: Box) -> str:
        encoder_of(box)
        (box.folder / "empty").mkdir()
        remote = Path(shutil.copytree(box.folder / "encoder", box.folder / "remote"))
        settings = json.loads((remote / "config.json").read_text())
        settings |= {"model_type": "mine", "auto_map": dict.fromkeys(("AutoConfig", "AutoModel"), "evil.Evil")}
        (remote / "config.json").write_text(json.dumps(settings))
        (remote / "evil.py").write_text(f"open({str(box.folder / CANARY)!r}, 'w').close()\nclass Evil: pass\n")
        before = (box.folder / "in.jsonl").read_text()
        found = box.judge(box.zoo(*ENCODER, *options), expect)
        lost_unless((box.folder / "in.jsonl").read_text() == before, "the corpus was overwritten")
        return found

    return Story(tell)


def works_as_one(box: Box) -> str:
    """What `zoo blend` made predicts, and is tested and compared like any other run."""
    box.model("pair")
    box.write(DOCUMENTS)
    result = box.zoo("predict", "--ckpt=pair.ckpt", "--input=in.txt", "--out=tags.jsonl")
    box.judge(result, WORKS)
    tags_are_sound(box, result)
    return box.judge(box.zoo("compare", str(box.run_folder("pair"))), WORKS)


def killed(box: Box) -> str:
    """A blend that is killed leaves nothing that looks finished; the same command then works."""
    import signal

    from tests.hostile.cases.faults import once
    from tests.hostile.sandbox import Kill

    argv = ["blend", *runs(box, *PAIR), "--out=new"]
    kill = Kill(signal.SIGKILL, once(box, "new/*/*/predictions.parquet"))
    result = box.zoo(*argv, kill=kill, timeout=120)
    if result.code not in (0, -signal.SIGKILL):
        raise Bad("untidy", f"exit code {result.code}")
    for folder in box.folder.glob("new/*/*"):
        finished = (folder / "metrics.json").exists()
        lost_unless(not finished or (folder / "checkpoints" / "best.ckpt").is_file(), "finished without a checkpoint")
    return box.judge(box.zoo(*argv, timeout=120), WORKS)


def cases(seed: int) -> list[Case]:
    found = [Case("works", Story(works_as_one), needs=("pair",))]
    for id, edit in RANKERS.items():
        expect = EITHER if id in MAY_WORK else ERROR
        found.append(
            Case(f"ranker-{id}", PREDICT, expect, FILES, edited("pair", edit), tags_are_sound, needs=("pair",))
        )
    for verb in ("test", "rerank", "add-labels"):
        argv = [word.replace("bad.ckpt", "pair.ckpt") for word in VERBS[verb]]
        found.append(Case(f"blend-with-{verb}", argv, ERROR, FEW, needs=("pair",)))
    for id, (model, edit) in KEPT.items():
        expect = EITHER if id in KEPT_MAY_WORK else ERROR
        found.append(Case(f"kept-{id}", PREDICT, expect, FILES, edited(model, edit), tags_are_sound, needs=(model,)))
    for id, (option, expect) in OPTIONS.items():
        found.append(Case(f"blend-{id}", command("blend", option, expect=expect), files=FILES, needs=PAIR))
    for verb in ("blend", "ensemble"):
        for id, (change, expect) in CHANGES.items():
            found.append(Case(f"{verb}-of-{id}", of_changed(verb, change, expect), needs=PAIR))
        found += [
            Case(f"{verb}-of-one", command(verb, names=("linear",)), needs=PAIR),
            Case(f"{verb}-of-a-blend", command(verb, names=("linear", "pair")), needs=("linear", "pair")),
            Case(f"{verb}-of-nothing", [verb, "nowhere"], ERROR),
            Case(f"{verb}-on-a-full-disk", full_disk(verb), needs=PAIR),
        ]
    found += [Case("blend-killed", Story(killed), needs=PAIR)]
    found += [Case(f"vectors-{id}", again_after(change, EITHER), needs=("dense",)) for id, change in VECTORS.items()]
    found += [Case(f"embed-{id}", embed(*rest), needs=("dense",)) for id, rest in EMBEDS.items()]
    return found
