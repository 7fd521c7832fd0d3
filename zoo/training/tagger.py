"""Tag texts with a trained model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch, Targets
from datamodules.prepare.rows import pad, pad_values
from heads.base import Ranking
from zoo.core.errors import UserError, check_low, check_range, first_line
from zoo.core.windows import windows
from zoo.training.checkpoint import is_ensemble, read_checkpoint, rebuilt, save
from zoo.training.ranking_model import RankingModel

WINDOW = 16  # number of batches that are sorted by length together
MAX_NAME_LENGTH = 80  # of a label in an error message


@dataclass(frozen=True)
class Tag:
    """A label with its probability."""

    label: str
    score: float


class Tags(list[Tag]):
    """Labels of a text, best first.

    Attributes:
        known: whether the model knows a word of the text. If not, these are the labels of every such text.
    """

    def __init__(self, tags: Iterable[Tag] = (), known: bool = True) -> None:
        super().__init__(tags)
        self.known = known


class Tagger:
    """Ranks labels for texts: `zoo.load("best.ckpt").tag(["a text"])`.

    Several threads may call `tag` and `stream` at the same time, but not while another one calls `add_labels`.
    """

    def __init__(self, module: RankingModel, batch_size: int = 64) -> None:
        if module.vocabulary is None:
            raise UserError("this model has no vocabulary: load it from a checkpoint of `zoo fit`")
        self.module, self.vocabulary, self.batch_size = module.eval(), module.vocabulary, batch_size
        vocabulary = module.vocabulary
        self._fillers = sorted({*vocabulary.special_ids(), vocabulary.unk_id, vocabulary.pad_id})  # say nothing

    @property
    def batch_size(self) -> int:
        """Number of texts per batch."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        check_number("batch_size", value, Integral)
        check_low(1, batch_size=value)
        self._batch_size = int(value)

    @property
    def window(self) -> int:
        """Number of texts that are sorted by length together."""
        return self.batch_size * WINDOW

    @property
    def names(self) -> list[str]:
        """Labels that the model knows."""
        return self.module.space.names

    @property
    def threshold(self) -> float:
        """Score threshold with the best micro-F1 on the validation documents."""
        return self.module.threshold

    def tag(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> list[list[Tag]]:
        """Return the k best labels of each text with a score of at least `threshold`, best first."""
        return list(self.stream(texts, k, threshold))

    def stream(self, texts: Iterable[str], k: int = 5, threshold: float = 0.0) -> Iterator[Tags]:
        """Like `tag`, but yields the labels of one text at a time and needs constant memory.

        It reads `window` texts before it yields the labels of the first.
        """
        if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
            raise TypeError(f"`texts` is a single {type(texts).__name__}: pass a list of strings")
        check_limits(k, threshold)
        return self._stream(texts, int(k), float(threshold))

    @torch.no_grad()
    def add_labels(self, examples: Iterable[tuple[str, Sequence[str]]], update: bool = False) -> Self:
        """Add labels in place, without gradient steps: `tagger.add_labels([("a text", ["new label"]), ...])`.

        Args:
            examples: texts with their labels.
            update: also update labels that the model already knows; they are refused by default.
        """
        texts, labels = check_examples(examples)
        counts, space = Counter(name for names in labels for name in names), self.module.space
        known = {name: counts[name] for name in space.names if name in counts}
        if known and not update:
            raise UserError(
                f"the model already knows {quoted(list(known))}: remove known labels from the examples "
                "(`ignore_known`), or update them too (`update`)"
            )
        grown = space.grown({name: count for name, count in counts.items() if name not in known})
        index = {name: i for i, name in enumerate(grown.names)}
        head = deepcopy(self.module.head)  # so that an error leaves the model unchanged
        batches = self.batches(texts, [[index[name] for name in names] for names in labels])
        head.learn_labels(grown, ((self.module(batch), batch.targets) for _, batch in batches))
        self.module.head, self.module.space = head, grown.with_more(known)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint for `zoo.load`, `zoo predict` and `zoo add-labels`; training cannot resume from it."""
        save(self.module, checked_path(path))

    def _stream(self, texts: Iterable[str], k: int, threshold: float) -> Iterator[Tags]:
        first = 1
        for window in windows(texts, self.window):
            for number, text in enumerate(window, first):
                if not isinstance(text, str):
                    raise TypeError(f"text {number} is of type {type(text).__name__}, not a string")
            yield from self._tags(*self.rank_texts(window, min(k, len(self.names))), threshold)
            first += len(window)

    def batches(self, texts: list[str], labels: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of similar length, each with the positions of its texts."""
        encoded, values = self.vocabulary.encode_with_values([well_formed(text) for text in texts])
        tokens = [np.array(ids) for ids in encoded]
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            ids, mask = pad([tokens[row] for row in rows], self.vocabulary.pad_id)
            targets = Targets.from_lists([labels[row] for row in rows])
            each = pad_values([np.array(values[row]) for row in rows], mask) if values else None
            batch = Batch(ids, mask, targets, torch.arange(len(rows)), each, self.vocabulary.window)
            yield rows, batch.to(self.module.device)

    @torch.inference_mode()
    def rank_texts(self, texts: list[str], k: int) -> tuple[Ranking, Tensor]:
        """Rank k labels for each text, on the CPU; the second tells whether the model knows a word of a text."""
        scores, labels = torch.zeros(len(texts), k), torch.full((len(texts), k), -1)
        known = torch.zeros(len(texts), dtype=torch.bool)
        fillers = torch.tensor(self._fillers)
        for rows, batch in self.batches(texts, [[] for _ in texts]):
            ranking = self.module.rank(batch, k)
            found = ranking.labels.shape[1]
            scores[rows, :found], labels[rows, :found] = ranking.scores.float().cpu(), ranking.labels.cpu()
            known[rows] = (~torch.isin(batch.ids.cpu(), fillers)).any(1)
        return Ranking(scores, labels), known

    def _tags(self, ranking: Ranking, known: Tensor, threshold: float) -> list[Tags]:
        if ranking.scores.isnan().any():
            raise UserError("the model's scores are NaN: its training diverged, or values of a text are too large")
        names = self.names
        return [
            Tags((Tag(names[i], x) for i, x in zip(*row, strict=True) if i >= 0 and x >= threshold), is_known)
            for *row, is_known in zip(ranking.labels.tolist(), ranking.scores.tolist(), known.tolist(), strict=True)
        ]


def check_limits(k: int, threshold: float) -> None:
    """Check the arguments of `Tagger.tag`."""
    check_number("k", k, Integral)
    check_number("threshold", threshold, Real)
    check_low(1, k=k)
    check_range(0, 1, threshold=threshold)


def check_number(name: str, value: object, kind: type) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        wanted = "an integer" if kind is Integral else "a number"
        raise TypeError(f"`{name}={value!r}` is of type {type(value).__name__}, not {wanted}")


def checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"`path={path!r}` is of type {type(path).__name__}, not a string or a path")
    try:
        place = Path(path).expanduser()
        place.exists()  # raises an error if the name is too long
        place.resolve()  # or in a loop of links, or not a name at all
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{quoted([str(path)])} is not the name of a file: {first_line(error)}") from error
    return place


def well_formed(text: str) -> str:
    """Replace lone surrogates, which tokenizers refuse, by U+FFFD; pairs of them become characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def check_examples(examples: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[str], list[list[str]]]:
    """Split examples into texts and labels; drop texts without labels."""
    if isinstance(examples, str | bytes | Mapping) or not isinstance(examples, Iterable):
        raise TypeError('`examples` must be pairs of a text and its labels: [("a text", ["a label"]), ...]')
    texts: list[str] = []
    labels: list[list[str]] = []
    for number, example in enumerate(examples, 1):
        text, several = example if isinstance(example, tuple | list) and len(example) == 2 else (None, None)
        given = None if isinstance(several, str | Mapping) or not isinstance(several, Iterable) else list(several)
        if not isinstance(text, str) or given is None or not all(isinstance(name, str) for name in given):
            raise TypeError(f"example {number} must be a text and a list of labels, all of them strings")
        names = list(dict.fromkeys(name.strip() for name in given))  # as corpora are read
        if "" in names or (names and not text.strip()):
            raise UserError(f"example {number} has an empty {'label' if text.strip() else 'text'}")
        if wrong := [name for name in names if name != well_formed(name)]:
            raise UserError(f"example {number}: the label {wrong[0]!r} contains a lone surrogate")
        if names:
            texts.append(text)
            labels.append(names)
    if not texts:
        raise UserError("no document has a label: nothing to learn from")
    return texts, labels


def quoted(names: list[str]) -> str:
    """Format the first name and the number of the others."""
    first = repr(names[0] if len(names[0]) <= MAX_NAME_LENGTH else names[0][:MAX_NAME_LENGTH] + "...")
    return first if len(names) == 1 else f"{first} and {len(names) - 1:,} more"


def load(path: str | os.PathLike[str], device: str | torch.device | None = None, trust: Sequence[str] = ()) -> Tagger:
    """Load a tagger from a checkpoint file.

    Args:
        path: checkpoint of `zoo fit`.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: modules outside the zoo with classes that the checkpoint may use, such as `["my_heads"]`.
    """
    if not isinstance(device, str | torch.device | None):
        raise TypeError(f"`device={device!r}` is of type {type(device).__name__}, not a string")
    file = checked_path(path)
    content = read_checkpoint(file)
    if is_ensemble(content):
        from zoo.training.ensemble_tagger import EnsembleTagger

        return EnsembleTagger.of(content, file, device, trust)
    return tagger_of(content, file, device, trust)


def tagger_of(
    content: dict[str, Any], path: Path, device: str | torch.device | None = None, trust: Sequence[str] = ()
) -> Tagger:
    """Make a tagger from the content of a checkpoint."""
    module = rebuilt(content, path, trust)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(place).type == "meta":
            raise UserError("no device 'meta': it computes nothing")
        return Tagger(module.to(place))
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UserError(f"no device {str(place)!r}: {first_line(error)}") from error
