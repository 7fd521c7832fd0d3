"""Small trained models, which the cases attack: each is trained at most once in a run of the driver."""

from __future__ import annotations

from pathlib import Path

from datamodules.synthetic import SampleCorpus
from tests.hostile.case import TINY
from tests.hostile.sandbox import Sandbox
from tests.support.encoders import save_bert

TREE = "{class_path: PLT, init_args: {hidden: [8], tree: {clusters: 4}, beam: 3}}"
HTTN = "{class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2}}"
BERT = (
    "{class_path: Transformer, init_args: {name: bert, pretrained: false, config: {hidden_size: 8, "
    "num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8}}}"
)
BLEND = "{class_path: Blend, init_args: {members: {svm: OneVsRestSvm}, candidates: 8, ranker: {trees: 5, least: 5}}}"
DENSE = (
    "{class_path: Blend, init_args: {members: {near: {class_path: NearestNeighbours, init_args: {features: both}}}, "
    "features: [Scores, DenseNeighbours, LabelTexts, Clusters], candidates: 8, ranker: {trees: 5, least: 5}}}"
)
WORDS = "{class_path: WordTransformer, init_args: {name: encoder, max_length: 16}}"
ENGINE = ["--model.backbone=Words", "--stages=[{name: fit, on_enter: [fit]}]", "--trainer.max_epochs=null"]
MODELS = {
    "linear": [],
    "svm": [*ENGINE, "--model.head=OneVsRestSvm"],
    "parabel": [*ENGINE, "--model.head=Parabel"],
    "tree": [f"--model.head={TREE}", "--stages=[{name: main, epochs: 1, on_enter: [build_tree]}]"],
    "httn": [f"--model.head={HTTN}", "--stages=[{name: head, epochs: 1}, {name: transfer, on_enter: [transfer]}]"],
    "bert": [f"--model.backbone={BERT}"],
    "blend": [*ENGINE, f"--model.head={BLEND}", "--stages=[{name: fit, on_enter: [svm.fit, fit_ranker]}]"],
    "dense": [f"--model.backbone={WORDS}", f"--model.head={DENSE}", "--trainer.max_epochs=null",
              "--stages=[{name: fit, on_enter: [near.fit, fit_ranker]}]"],
    "dxml": ["--model.backbone=Bow", "--model.head=DXML", "--stages=[{name: a, epochs: 1, on_enter: [embed_labels]},"
             "{name: b, on_enter: [memorize]}]", "--trainer.max_epochs=null"],
}  # fmt: skip
RUNS = {"pair": "blend"}  # made of two runs by a command
WITH_STAGES = {"tree", "httn"}


def train(name: str, folder: Path, patience: float = 1) -> Path:
    """Train a model, and return its run folder."""
    folder.mkdir(parents=True)
    if name in RUNS:
        members = [str(train(one, folder / one, patience)) for one in ("linear", "svm")]
        return only_run(name, folder, [RUNS[name], *members, f"--name={name}", "--trees=5"], patience)
    if name == "dense":
        save_bert(folder / "encoder", [document.text for document in SampleCorpus(150, 20, 30).documents("train")])
    text = TINY.replace("  max_epochs: 1\n", "") if name in WITH_STAGES else TINY
    (folder / "tiny.yaml").write_text(text)
    return only_run(name, folder, ["fit", "--config=tiny.yaml", f"--name={name}", *MODELS[name]], patience)


def only_run(name: str, folder: Path, argv: list[str], patience: float) -> Path:
    """Run a command, and return the folder of the only run of that name."""
    done = Sandbox(folder, timeout=300, patience=patience).zoo(*argv)
    if done.code != 0:
        raise RuntimeError(f"the model {name!r} cannot be trained: exit code {done.code}\n{done.err}")
    (run,) = (folder / "runs" / name).iterdir()
    return run
