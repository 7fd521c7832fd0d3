"""Example documents of a report, with their labels, predictions and attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zoo.analysis.evidence import Evidence, Example
from zoo.core.metrics import THRESHOLD
from zoo.core.run_folder import RunFolder

SIGNS = {"right": "✓", "wrong": "✗", "missed": "○"}
HEADINGS = {"right": "All labels found", "missed": "A label missed", "wrong": "The top label is wrong"}
MIN_SHADE = 0.05  # fraction of the highest attention weight below which a word is not shaded
MAX_DESCRIPTION = 90  # characters


class LabelTag(NamedTuple):
    """A true or predicted label of a document."""

    kind: str  # key of SIGNS
    name: str
    text: str  # description, "" if the name says as much
    score: str
    is_unlikely: bool  # below the threshold
    choice: int | None  # index among the labels with attention

    @property
    def sign(self) -> str:
        return SIGNS[self.kind]


class ShadedWord(NamedTuple):
    text: str
    has_gap: bool  # whether a space comes before it
    style: str  # relative attention of each choice, as CSS variables


@dataclass(frozen=True)
class ExampleCard:
    """A document on the page."""

    example: Example
    run: RunFolder
    index: int

    @property
    def labels(self) -> list[int]:
        """Predicted labels, best first, then missed labels."""
        return [*self.example.found, *(label for label in self.example.truth if label not in self.example.found)]

    @property
    def attended(self) -> list[int]:
        """Labels with attention weights; the page shows the first until another is selected."""
        return [label for label in self.labels if label in self.example.attention]

    @property
    def tags(self) -> list[LabelTag]:
        scores = dict(zip(self.example.found, self.example.scores, strict=True))
        return [self._tag(label, scores.get(label)) for label in self.labels]

    def _tag(self, label: int, score: float | None) -> LabelTag:
        name, text = self.run.label_names[label], self.run.label_texts[label]
        text = "" if text.lower() == name.lower() else text
        kind = "missed" if score is None else "right" if label in self.example.truth else "wrong"
        number = "" if score is None else f"{score:.2f}"
        return LabelTag(
            kind,
            name,
            text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 1].rstrip()}…",
            number if self.run.label_documents[label] else "not in training",
            kind == "wrong" and score is not None and score < self.run.metrics.get("threshold", THRESHOLD),
            self.attended.index(label) if label in self.attended else None,
        )

    @property
    def words(self) -> list[ShadedWord]:
        """Words with their attention relative to the highest weight, for each label with attention."""
        strengths = [relative(self.example.attention[label]) for label in self.attended]
        words = []
        for place, word in enumerate(self.example.words):
            shares = {choice: strength[place] for choice, strength in enumerate(strengths)}
            style = ";".join(f"--a{choice}:{round(s, 2):g}" for choice, s in shares.items() if s >= MIN_SHADE)
            words.append(ShadedWord(word.strip(), place > 0 and word.startswith(" "), style))
        return words


def cards_by_heading(run: RunFolder, evidence: Evidence | None) -> dict[str, list[ExampleCard]]:
    """Examples of a run by heading."""
    examples = evidence.examples if evidence is not None else ()
    cards = [ExampleCard(example, run, index) for index, example in enumerate(examples)]
    groups = {title: [card for card in cards if card.example.kind == kind] for kind, title in HEADINGS.items()}
    return {title: found for title, found in groups.items() if found}


def relative(weights: list[float]) -> list[float]:
    most = max(weights, default=0.0)
    return [weight / most if most > 0 else 0.0 for weight in weights]
