"""The tables of docs/results/lightattention.md: LightAttention, AttentionXML with and without its tree.

    python benchmarks/plt.py reuters --seeds 0 1 2 --epochs 5 --average_from 3 --jobs 2
    python benchmarks/plt.py eurlex --epochs 8 --hidden 100 --jobs 2 --data.limit_train=12000 --data.max_length=100 \\
        --data.batch_size=40 --data.limit_val=1000
    python benchmarks/plt.py eurlex --steps 10 --hidden 100 --data.limit_train=12000 --data.max_length=100 \\
        --data.batch_size=40

Other options are passed to `zoo fit`. Finished runs are skipped. `--steps N` only times training steps of all methods
in one process: N steps of each method in each of five rounds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
import yaml
from jobs import cell, fit, markdown, results, run_parallel

from backbones import BiLSTM, PerLevel
from datamodules import Batch, EurLex, Reuters, TextDataModule
from heads import PLT, AttentionXML
from heads.tree.plt import TreeSettings
from zoo.commands.rerank import corpus_of
from zoo.training.checkpoint import rebuild
from zoo.training.module import ZooModule
from zoo.training.ranking_metrics import RankingMetrics

SHAPES = {"reuters": (16, 6), "eurlex": (64, 16)}  # clusters and beam, as in the experiments
WIDTHS = {"reuters": 150, "eurlex": 128}  # LSTM widths, as in the experiments
FLAT = "AttentionXML, flat"
METHODS = ("LightAttention", "AttentionXML, tree", FLAT)
FORMS = {"labels alone": 0, "products": 1}  # `path_weight`
RANKING = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
OWN = ("clusters@beam", "labels@beam")
GROUPS = {"macroR@5/rare": "R@5, labels with 1 to 3 documents"} | {
    f"macroF@5/{group}": f"F@5, {words}"
    for group, words in {"few": "up to 20", "medium": "21 to 100", "many": "over 100"}.items()
}
ROUNDS = 5


def arguments(method: str, options: argparse.Namespace) -> list[str]:
    """Arguments of `zoo fit` for a method; with a tree, clusters and labels each get half of the epochs."""
    corpus, epochs, begin = options.corpus, options.epochs, options.average_from
    averaged = [f"--stages.main.average_from={begin}"] if begin is not None else []
    width = [f"--model.backbone.hidden={options.hidden}"] if options.hidden else []
    if method == "LightAttention":
        return [
            f"--config=experiments/lightattention_{corpus}.yaml",
            f"--stages.main.epochs={epochs}",
            *averaged,
            *width,
        ]
    if method == FLAT:
        chosen = [f"--stages.main.epochs={epochs}", *averaged, *width, "--model.head.negatives=null"]
        return [f"--config=experiments/attentionxml_{corpus}.yaml", *chosen]
    width = [f"--model.backbone.encoder.init_args.hidden={options.hidden}"] if options.hidden else []
    levels = {"clusters": epochs // 2, "labels": epochs - epochs // 2}
    stages = [
        setting
        for name, number in levels.items()
        for setting in (f"--stages.{name}.epochs={number}", f"--stages.{name}.average_from={number // 2}")
    ]
    return [f"--config=experiments/attentionxml_tree_{corpus}.yaml", *width, *stages]


def train(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Results of every method and seed; trees are tested with both forms of label probabilities."""
    runs = Path(options.out)

    def trained(method: str, seed: int) -> Path:
        given = [*arguments(method, options), f"--seed_everything={seed}", *options.extra]
        return fit(runs, f"{slug(method)}-{options.corpus}-{seed}", *given)

    run_parallel([partial(trained, method, seed) for seed in options.seeds for method in options.methods], options.jobs)
    found: dict[str, list[dict[str, float]]] = {}
    for method in options.methods:
        folders = [trained(method, seed) for seed in options.seeds]
        if method == FLAT:
            found[method] = [results(folder) for folder in folders]
        else:
            for form, weight in FORMS.items():
                found[f"{method}, {form}"] = [results(folder) | tested(folder, weight) for folder in folders]
    return found


@torch.inference_mode()
def tested(folder: Path, weight: float) -> dict[str, float]:
    """Test the best checkpoint with this `path_weight`, in per cent; empty if the run itself used this value."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    if config["model"]["head"]["init_args"]["path_weight"] == weight:
        return {}
    checkpoint = folder / "checkpoints" / "best.ckpt"
    module = rebuild(checkpoint)
    data = corpus_of(module, str(checkpoint), trust=())
    for tree in module.head.trees:
        tree.path_weight = weight
    metrics = RankingMetrics(module.space)
    for batch in data.test_dataloader():
        ranking = module.rank(batch, min(module.depth, module.space.num_labels))
        metrics.update(ranking.scores, ranking.labels, batch.targets, counted=batch.rows >= 0)
    return {name: 100 * float(value) for name, value in metrics.compute().items()}


def slug(method: str) -> str:
    return re.sub(r"\W+", "_", method.lower()).strip("_")


def tables(options: argparse.Namespace) -> None:
    table = train(options)
    for names in ({name: name for name in (*RANKING, *OWN)}, GROUPS):
        rows = [
            [method, *(cell([r[name] for r in seeds]) if name in seeds[0] else "" for name in names)]
            for method, seeds in table.items()
        ]
        print(markdown(["", *names.values()], rows), end="\n\n")


def modules(options: argparse.Namespace, data: TextDataModule) -> dict[str, ZooModule]:
    """Untrained model of each method; trees have one model for each level."""
    clusters, beam = SHAPES[options.corpus]
    settings = {"embed_dim": 100, "hidden": options.hidden or WIDTHS[options.corpus], "dropout": 0.3, "pooling": "mean"}
    encoder = partial(BiLSTM, **settings)
    tree = partial(PLT, tree=TreeSettings(clusters=clusters), beam=beam)
    made = {
        "LightAttention": ZooModule(data.space, encoder, tree),
        "AttentionXML, tree: clusters": ZooModule(
            data.space, partial(PerLevel, encoder=encoder), partial(tree, layer_per_level=True)
        ),
        "AttentionXML, tree: labels": ZooModule(
            data.space, partial(PerLevel, encoder=encoder), partial(tree, layer_per_level=True)
        ),
        FLAT: ZooModule(data.space, encoder, AttentionXML),
        "the encoder alone": ZooModule(data.space, encoder, AttentionXML),
    }
    for level, name in enumerate(("clusters", "labels")):
        module = made[f"AttentionXML, tree: {name}"]
        module.head.level.fill_(level)
        module.backbone.level.fill_(level)
        for name, parameter in module.named_parameters():
            parameter.requires_grad = f"encoders.{level}." in name or f"levels.{level}." in name
    return made


def stepper(module: ZooModule, batches: Iterator[Batch], whole: bool) -> Callable[[], float]:
    """Return a function that runs a training step and returns its time in seconds."""
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3, fused=True)

    def step() -> float:
        batch = next(batches)
        start = time.perf_counter()
        features = module(batch)
        loss = module.head.loss(features, batch.targets, "train")["loss"] if whole else features.tokens.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in trained if p.grad is not None], 5.0)
        optimizer.step()
        return time.perf_counter() - start

    return step


def seconds(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    given = dict(option.removeprefix("--data.").split("=") for option in options.extra)
    data = (Reuters if options.corpus == "reuters" else EurLex)(**{key: int(value) for key, value in given.items()})
    batches = list(data.train_dataloader())
    torch.manual_seed(0)
    made = modules(options, data)
    steps = {name: stepper(module, cycle(batches), name != "the encoder alone") for name, module in made.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            taken = [step() for _ in range(options.steps)]
            times[name] += taken if number else []  # the first round is warm-up
    flat = statistics.median(times[FLAT])
    rows = []
    for name, taken in times.items():
        middle = statistics.median(taken)
        rows.append([name, f"{middle:.3f}", f"{middle * len(batches):.0f}", f"{middle / flat:.2f}"])
    header = ["", "seconds per step", f"seconds per epoch ({len(batches)} steps)", "ratio to flat AttentionXML"]
    print(markdown(header, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["reuters", "eurlex"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--epochs", type=int, default=8, help="total number of epochs")
    parser.add_argument(
        "--average_from", type=int, help="first epoch of weight averaging; trees average the second half of each level"
    )
    parser.add_argument("--hidden", type=int, help="width of the LSTM in each direction")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, each with one thread")
    parser.add_argument("--out", default="runs/plt_table")
    parser.add_argument("--steps", type=int, help="only time this number of steps of each method")
    parser.add_argument("--threads", type=int, default=2, help="number of threads with `--steps`")
    options, options.extra = parser.parse_known_args()
    seconds(options) if options.steps else tables(options)


if __name__ == "__main__":
    main()
