"""The folder of an exported model: graph, tokenizer, labels, a script that needs no zoo, and a parity report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from datamodules.prepare.vocabulary import VALUES_ID
from zoo.core.console import progress_bar
from zoo.core.errors import UserError
from zoo.core.extras import require_extra
from zoo.core.version import __version__
from zoo.deploy.graph import to_onnx, trace
from zoo.deploy.parity import ROUNDS, Measured, Parity, Run, compare, measure
from zoo.deploy.rendering import render
from zoo.training.tagger import Tagger

Format = Literal["onnx", "torch"]
INT8 = "model.int8.onnx"
MODELS = {"onnx": "model.onnx", "torch": "model.pt2"}
RUNTIMES = {"onnx": "onnxruntime", "torch": "torch"}
CONTENT = {
    "model.onnx": "the graph in single precision",
    "model.onnx.data": "its weights",
    INT8: "the graph with weights of 8 bits",
    "model.pt2": "the graph, a program of `torch.export`",
    "tokenizer.json": "tokenizer and vocabulary, for the library `tokenizers`",
    "labels.json": "labels with their numbers of training documents and their thresholds",
    "config.json": "settings that `predict.py` reads",
    "predict.py": "predicts labels without the zoo",
    "parity.json": "comparison with the checkpoint",
}


@dataclass(frozen=True)
class Documents:
    """Documents that an exported model is compared on."""

    source: str
    texts: list[str]
    labels: list[list[str]]


@dataclass(frozen=True)
class Export:
    """Writes a folder with a model in another format.

    Args:
        tagger: the model, on the CPU.
        format: format of the graph.
        int8: also write an ONNX graph with weights of 8 bits.
        k: number of labels that the graph returns.
        batch_size: documents per batch of the comparison.
    """

    tagger: Tagger
    format: Format
    int8: bool
    k: int
    batch_size: int

    def __post_init__(self) -> None:
        if self.format == "torch" and self.tagger.vocabulary.windows > 1:
            raise UserError("`format=torch` has no graph for documents in windows: use `format=onnx`")

    @property
    def models(self) -> list[str]:
        return [MODELS[self.format], *([INT8] if self.int8 else [])]

    def write(self, folder: Path, documents: Documents) -> dict[str, Any]:
        """Write all files and the parity report; an error unless the model gives the same labels and scores."""
        if self.format == "onnx":
            require_extra("export", "`format=onnx`")
        with progress_bar("Exporting") as bar:
            advance = bar(2.0 + self.int8 + ROUNDS * (1 + len(self.models)))
            program = trace(self.tagger.module, self.k)
            advance(1)
            model = folder / MODELS[self.format]
            if self.format == "torch":
                torch.export.save(program, model)
            else:
                to_onnx(program).save(model, external_data=size_of(program) >= LARGEST_FILE)
            advance(1)
            if self.int8:
                quantize(model, folder / INT8)
                advance(1)
            self.write_facts(folder)
            report = self.measured(folder, documents, advance)
        (folder / "parity.json").write_text(json.dumps(report, indent=2) + "\n", "utf8")
        (folder / "README.md").write_text(self.readme(folder, report), "utf8")
        return report

    def write_facts(self, folder: Path) -> None:
        """Write everything that `predict.py` reads, and itself."""
        vocabulary, space = self.tagger.vocabulary, self.tagger.module.space
        config: dict[str, Any] = {"k": self.k, "windows": vocabulary.windows, "max_length": vocabulary.max_length}
        config |= {"pad_id": vocabulary.pad_id, "unk_id": vocabulary.unk_id}
        config |= {"first_feature": VALUES_ID + 1} if vocabulary.has_values else {}
        limits = self.tagger.thresholds
        thresholds = [self.tagger.threshold] * space.num_labels if limits is None else limits.tolist()
        labels = [
            {"label": label, "documents": count, "threshold": threshold}
            for label, count, threshold in zip(space.names, space.counts, thresholds, strict=True)
        ]
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf8")
        (folder / "labels.json").write_text(json.dumps(labels, ensure_ascii=False, indent=0) + "\n", "utf8")
        (folder / "tokenizer.json").write_text(vocabulary.tokenizer.to_str(), "utf8")
        values = {"runtime": RUNTIMES[self.format], "model": MODELS[self.format], "features": vocabulary.has_values}
        (folder / "predict.py").write_text(render("predict.py.jinja", **values), "utf8")

    def measured(self, folder: Path, documents: Documents, advance: Any) -> dict[str, Any]:
        """Run the checkpoint and the script in the folder on the same documents."""
        number = {name: i for i, name in enumerate(self.tagger.names)}
        truth = [{number[name] for name in names if name in number} for names in documents.labels]
        script, threads = load_script(folder / "predict.py"), torch.get_num_threads()
        self.tagger.batch_size = self.batch_size

        def checkpoint(texts: Sequence[str]) -> list[Any]:
            ranking, _ = self.tagger.rank_texts(list(texts), self.k)
            return [ranking.scores.numpy(), ranking.labels.numpy()]

        def speed_and_ranking(run: Run) -> Measured:
            return measure(run, documents.texts, self.batch_size, advance)

        reference = speed_and_ranking(checkpoint)
        rows: dict[str, Parity] = {}
        for name in self.models:
            rows[name] = compare(speed_and_ranking(script.load(name, threads)), reference, truth)
            if name == INT8:
                rows[name].check_loss(name)
            else:
                rows[name].check_same(name)
        return {
            "source": documents.source,
            "documents": len(documents.texts),
            "threads": threads,
            "batch_size": self.batch_size,
            "checkpoint": known({"precision": rows[self.models[0]].reference, "speed": reference.speed}),
            **{name: known(asdict(row)) for name, row in rows.items()},
        }

    def readme(self, folder: Path, report: dict[str, Any]) -> str:
        module, vocabulary = self.tagger.module, self.tagger.vocabulary
        first = report["checkpoint"]
        rows = [{"name": "checkpoint, PyTorch", "same": "", "tied": "", "difference": ""} | shown(first)]
        for name in self.models:
            row = report[name]
            numbers = {"same": f"{row['same']:,}", "tied": f"{row['tied']:,}", "difference": f"{row['difference']:.1e}"}
            rows.append({"name": f"`{name}`"} | numbers | shown(row))
        return render(
            "README.md.jinja",
            head=type(module.head).__name__,
            backbone=type(module.backbone).__name__,
            labels=f"{len(self.tagger.names):,}",
            version=__version__,
            runtime=RUNTIMES[self.format],
            int8=self.int8,
            k=self.k,
            pad_id=vocabulary.pad_id,
            features=vocabulary.has_values,
            files={name: text for name, text in CONTENT.items() if (folder / name).exists()},
            documents=f"{report['documents']:,}",
            source=report["source"],
            threads=report["threads"],
            rows=rows,
        )


def known(row: dict[str, float]) -> dict[str, float]:
    """Without what is NaN, which JSON does not have."""
    return {name: value for name, value in row.items() if value == value}


def shown(row: dict[str, Any]) -> dict[str, str]:
    precision = row.get("precision", float("nan"))
    return {"precision": f"{100 * precision:.2f}" if precision == precision else "", "speed": f"{row['speed']:,.0f}"}


LARGEST_FILE = 2**31 - 2**20  # of a protobuf; larger weights are a file of their own


def size_of(program: torch.export.ExportedProgram) -> int:
    """Bytes of all weights."""
    return sum(value.nbytes for value in program.state_dict.values() if isinstance(value, torch.Tensor))


def quantize(model: Path, target: Path) -> None:
    """Write an ONNX graph whose weights have 8 bits; activations are quantized as they are computed."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from zoo.deploy.onnx_functions import quiet

    try:
        with quiet():
            graph = onnx.load(model)
            del graph.graph.value_info[:]  # stale once weights are transposed
            quantize_dynamic(graph, target, weight_type=QuantType.QInt8, per_channel=True)
    except Exception as error:  # of many types
        raise UserError(f"the graph cannot be quantized ({error}): leave out `int8`") from error


def load_script(path: Path) -> Any:
    """Import the script that was just written, without bytecode beside it: what is compared is what is delivered."""
    module = ModuleType("exported_predict")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf8"), path, "exec"), module.__dict__)
    return module
