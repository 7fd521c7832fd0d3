"""A model as one graph, from token ids to the best labels and their scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from datamodules.batch import Batch, Targets
from heads.base import Head
from heads.blend.blend import Blend
from heads.engines.linear_engine import LinearEngine
from zoo.core.errors import UserError, first_line
from zoo.core.exporting import exporting
from zoo.training.ranking_model import RankingModel

OUTPUTS = ("scores", "labels")
TOKENS = 12  # of the example that is traced


class TopLabels(nn.Module):
    """Token ids (batch, length) and their mask to the scores and numbers of the k best labels, (batch, k).

    Args:
        model: the trained model.
        k: number of labels; a label of -1 fills rows with fewer candidates.
    """

    def __init__(self, model: RankingModel, k: int) -> None:
        super().__init__()
        self.model, self.k = model, k
        assert model.vocabulary
        self.window = model.vocabulary.window

    def forward(self, ids: Tensor, mask: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.arange(ids.shape[0], device=ids.device)
        nothing = torch.zeros(0, dtype=torch.long, device=ids.device)
        batch = Batch(ids, mask, Targets(nothing, nothing), rows, values, self.window)
        found = self.model.rank(batch, self.k)
        return found.scores, found.labels


def trace(model: RankingModel, k: int) -> ExportedProgram:
    """Trace a model for batches of any size and length."""
    check_exportable(model.head)
    vocabulary = model.vocabulary
    assert vocabulary
    length = 2 * vocabulary.window + TOKENS  # a size of 1, such as a single window, would become a constant
    mask = torch.arange(length) < torch.tensor([[length], [length // 2], [2]])
    ids = torch.randint(model.space.vocab_size, mask.shape, generator=torch.Generator().manual_seed(0))
    example = [ids.masked_fill(~mask, model.space.pad_id), mask]
    if vocabulary.has_values:
        example.append(mask.float())
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},) * len(example)
    pair = f"{type(model.head).__name__} on {type(model.backbone).__name__}"
    try:
        with torch.no_grad(), exporting():
            graph = TopLabels(model, k).eval()
            program = torch.export.export(graph, tuple(example), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # tracing may fail anywhere
        raise UserError(f"{pair} cannot be exported: {first_line(error)}") from error
    longest = vocabulary.max_length * vocabulary.windows
    if not vocabulary.has_values and (most := most_tokens(program)) < longest:
        raise UserError(f"{pair} cannot be exported for {longest:,} tokens: its graph reads at most {most:,}")
    return program


def most_tokens(program: ExportedProgram) -> float:
    """Upper bound of the length of documents."""
    ids = next(node for node in program.graph.nodes if node.name == "ids")
    symbol = ids.meta["val"].shape[1].node.expr
    return float(program.range_constraints[symbol].upper)


def check_exportable(head: Head) -> None:
    """Refuse heads that are no graph, and heads whose training is not finished."""
    for part in head.modules():
        if isinstance(part, LinearEngine | Blend):
            raise UserError(
                f"{type(part).__name__} cannot be exported: it ranks by sparse vectors or trees outside of torch; use "
                "`zoo predict` or `zoo.load`"
            )
    if head.pending:
        raise UserError(f"the checkpoint was saved before {head.pending[0]}: finish its training first")


def to_onnx(program: ExportedProgram) -> Any:
    """Convert to ONNX; returns an `ONNXProgram`."""
    from zoo.deploy.onnx_functions import convert

    return convert(program, OUTPUTS)
