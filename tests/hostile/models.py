"""Small trained models, which the cases attack: each is trained at most once in a run of the driver."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.case import TINY
from tests.hostile.sandbox import Sandbox

TREE = "{class_path: PLT, init_args: {hidden: [8], tree: {clusters: 4}, beam: 3}}"
HTTN = "{class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2}}"
BERT = (
    "{class_path: Transformer, init_args: {name: bert, pretrained: false, config: {hidden_size: 8, "
    "num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8}}}"
)
BLEND = "{class_path: Blend, init_args: {members: {svm: OneVsRestSvm}, candidates: 8, ranker: {trees: 5, least: 5}}}"
ENGINE = ["--model.backbone=Words", "--stages=[{name: fit, on_enter: [fit]}]", "--trainer.max_epochs=null"]
MODELS = {
    "linear": [],
    "svm": [*ENGINE, "--model.head=OneVsRestSvm"],
    "parabel": [*ENGINE, "--model.head=Parabel"],
    "tree": [f"--model.head={TREE}", "--stages=[{name: main, epochs: 1, on_enter: [build_tree]}]"],
    "httn": [f"--model.head={HTTN}", "--stages=[{name: head, epochs: 1}, {name: transfer, on_enter: [transfer]}]"],
    "bert": [f"--model.backbone={BERT}"],
    "blend": [*ENGINE, f"--model.head={BLEND}", "--stages=[{name: fit, on_enter: [svm.fit, fit_ranker]}]"],
}
WITH_STAGES = {"tree", "httn"}


def train(name: str, folder: Path) -> Path:
    """Train a model, and return its run folder."""
    folder.mkdir(parents=True)
    text = TINY.replace("  max_epochs: 1\n", "") if name in WITH_STAGES else TINY
    (folder / "tiny.yaml").write_text(text)
    done = Sandbox(folder, timeout=300).zoo("fit", "--config=tiny.yaml", f"--name={name}", *MODELS[name])
    if done.code != 0:
        raise RuntimeError(f"the model {name!r} cannot be trained: exit code {done.code}\n{done.err}")
    (run,) = (folder / "runs").glob("*/*")
    return run
