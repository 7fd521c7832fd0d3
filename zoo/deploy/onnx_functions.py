"""Conversion to ONNX, with operations that torch's converter does not know."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript import opset18, optimizer
from torch.export import ExportedProgram

from zoo.core.errors import UserError, first_line

op: Any = opset18  # its types know no Python values
ONNX_GATES = (0, 3, 1, 2)  # input, output, forget, cell; torch has input, forget, cell, output
FOLDED = 2**31  # elements of a constant that may be computed at conversion


def lstm(words: Any, of_words: Any, of_states: Any, bias: Any, other: Any, hidden: Any, cell: Any, *rest: Any) -> Any:
    """`mkldnn_rnn_layer` of one LSTM layer in one direction, time first."""
    width = rest[3]
    order = op.Constant(value_ints=[gate * width + i for gate in ONNX_GATES for i in range(width)])
    first, second = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])

    def gates(weight: Any) -> Any:
        return op.Gather(weight, order, axis=0)

    biases = op.Concat(gates(bias), gates(other), axis=0)
    weights = (op.Unsqueeze(value, first) for value in (gates(of_words), gates(of_states), biases))
    starts = (op.Unsqueeze(value, first) for value in (hidden, cell))
    states, last, last_cell = op.LSTM(words, *weights, None, *starts, hidden_size=width)
    return op.Squeeze(states, second), last, last_cell, last_cell


def stable_sort(values: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """`TopK` of all values; by its definition, the lower index comes first of ties."""
    size = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]), axis=0)
    return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)


def convert(program: ExportedProgram, outputs: Sequence[str]) -> Any:
    """Convert to ONNX; returns an `ONNXProgram` with its constants folded."""
    table: dict[Any, Any] = {torch.ops.aten.mkldnn_rnn_layer.default: lstm, torch.ops.aten.sort.stable: stable_sort}
    try:
        with quiet():
            converted = torch.onnx.export(
                program, dynamo=True, verbose=False, output_names=list(outputs), custom_translation_table=table
            )
            assert converted is not None
            optimizer.fold_constants(converted.model, input_size_limit=FOLDED, output_size_limit=FOLDED)
            optimizer.optimize(converted.model)
    except Exception as error:  # the converter may fail anywhere
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(f"the model cannot be converted to ONNX: {first_line(cause)}; try `format=torch`") from error
    return converted


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of the converter, which concern its own versions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
