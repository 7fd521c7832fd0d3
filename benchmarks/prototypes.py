"""Time of HTTN's transfer, which computes prototypes of the training set, against an evaluation pass over it.

    python benchmarks/prototypes.py [reuters | eurlex57k | sample] [--rounds R]

The model is that of experiments/httn_eurlex.yaml, untrained. An evaluation pass encodes documents, ranks 100 labels and
updates all metrics. The transfer encodes, samples and averages documents, and solves for the transfer matrix. Both
alternate on the same batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from backbones import BiLSTM, Features
from datamodules import Batch, EurLex, Reuters, Sample, Targets, TextDataModule
from heads import PrototypeTransfer, TransitionContext
from zoo.training.ranking_metrics import RankingMetrics

CORPORA = {"reuters": Reuters, "eurlex57k": EurLex, "sample": Sample}


class Context(TransitionContext):
    """Transition context over the documents of a corpus, without a trainer."""

    backbone: BiLSTM

    def __init__(self, data: TextDataModule, backbone: BiLSTM) -> None:
        super().__init__(backbone=backbone)
        self.data = data

    def train_targets(self) -> Targets:
        return self.data.train_targets()

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        for batch in self.data.pass_dataloader():
            yield self.backbone(batch), batch

    def log(self, values: Mapping[str, float]) -> None:
        print({name: round(value, 3) for name, value in values.items()})


@torch.no_grad()
def evaluation(context: Context, head: PrototypeTransfer) -> None:
    metrics = RankingMetrics(context.data.space)
    for features, batch in context.train_features():
        ranking = head.rank(features, min(100, head.num_labels))
        metrics.update(ranking.scores, ranking.labels, batch.targets)
    metrics.compute()


def seconds(task: object, *args: object) -> float:
    start = time.perf_counter()
    task(*args)  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default="eurlex57k", choices=CORPORA)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=200)
    options = parser.parse_args()
    data = CORPORA[options.corpus](max_length=options.max_length)
    torch.manual_seed(0)
    backbone = BiLSTM(data.space, embed_dim=100, hidden=150).eval()
    context = Context(data, backbone)
    passes, transfers = [], []
    for _ in range(options.rounds):
        head = PrototypeTransfer(backbone.dim, data.space, shots=1).eval()
        head.is_ready = True  # so that all labels are ranked
        passes.append(seconds(evaluation, context, head))
        transfers.append(seconds(head.transfer, context))
    ratios = [transfer / one for transfer, one in zip(transfers, passes, strict=True)]
    print(f"{data.corpus_name}: {data.space.num_documents:,} documents, {data.space.num_labels:,} labels")
    print("evaluation pass, s:", [round(x, 1) for x in passes], "transfer, s:", [round(x, 1) for x in transfers])
    print("transfer / evaluation:", [round(x, 3) for x in ratios])


if __name__ == "__main__":
    main()
