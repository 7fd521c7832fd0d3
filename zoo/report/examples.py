"""Test documents as html: their labels, what the model found, and where it looked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

from callbacks.pictures.files import RunFiles

if TYPE_CHECKING:
    from callbacks.evidence import Example

Kind = Literal["right", "wrong", "missed"]
SIGNS: dict[Kind, tuple[str, str]] = {"right": ("✓", "right"), "wrong": ("✗", "wrong"), "missed": ("○", "missed")}
HEADINGS = {
    "right": "All labels found",
    "missed": "A label missed",
    "wrong": "The first guess is wrong",
}
FAINTEST = 0.05  # of the most looked-at word: below it a word is not shaded
LONGEST_TEXT = 90  # characters of what a label means


@dataclass(frozen=True)
class Tag:
    """A label that a document has or that was found in it."""

    label: int
    kind: Kind
    score: float | None  # None where it is not among the first candidates


def examples_html(files: RunFiles, run: str) -> str:
    """All examples of a run; `run` makes names on the page different from those of other runs."""
    shown = files.evidence.examples if files.evidence is not None else ()
    parts: list[str] = []
    for kind, heading in HEADINGS.items():
        cards = [
            card(example, files, f"{run}-{number}") for number, example in enumerate(shown) if example.kind == kind
        ]
        if cards:
            parts += [f"<h4>{heading}</h4>", '<div class="examples">', *cards, "</div>"]
    if not parts:
        return ""
    looked = any(example.attention for example in shown)
    how = " Choose a label to see which words it looked at; the stronger the color, the more." if looked else ""
    legend = "✓ right, ✗ wrong, ○ missed; a number is the score, and what scores below the threshold is faint."
    texts = "Test documents as the model read them, with [UNK] for words that it does not know."
    about = f'<p class="about">{texts} {legend}{how}</p>'
    return "\n".join(["<h3>Examples</h3>", about, *parts])


def tags_of(example: Example) -> list[Tag]:
    """Candidates from the best on, then labels that are not among them."""
    truth = set(example.truth)
    pairs = zip(example.found, example.scores, strict=True)
    found = [Tag(label, "right" if label in truth else "wrong", score) for label, score in pairs]
    return [*found, *(Tag(label, "missed", None) for label in example.truth if label not in example.found)]


def card(example: Example, files: RunFiles, name: str) -> str:
    tags = tags_of(example)
    looked = [tag.label for tag in tags if tag.label in example.attention]  # the first one is shaded to begin with
    threshold = files.metrics.get("threshold", 0.5)
    rows = [tag_html(tag, files, looked, name, threshold) for tag in tags]
    box = ("fieldset", "<legend>Labels; choose one to see which words it looked at</legend>") if looked else ("div", "")
    return "\n".join(
        [
            '<article class="example">',
            f"<h4>{escape(example.id)}</h4>",
            f'<{box[0]} class="tags">{box[1]}',
            *rows,
            f"</{box[0]}>",
            f'<p class="words" tabindex="0">{"".join(shaded(example, looked)).strip()}</p>',
            "</article>",
        ]
    )


def tag_html(tag: Tag, files: RunFiles, looked: list[int], name: str, threshold: float) -> str:
    sign, meaning = SIGNS[tag.kind]
    unlikely = tag.kind == "wrong" and tag.score is not None and tag.score < threshold
    element, button = "div", "<span></span>"
    if tag.label in looked:
        place = looked.index(tag.label)
        checked = " checked" if place == 0 else ""
        element, button = "label", f'<input type="radio" name="{escape(name)}" value="{place}"{checked}>'
    score = "" if tag.score is None else f"{tag.score:.2f}"
    if not files.documents[tag.label]:
        score = "not in training"
    return (
        f'<{element} class="tag {tag.kind}{" unlikely" if unlikely else ""}">{button}'
        f'<span class="kind" role="img" aria-label="{meaning}" title="{meaning}">{sign}</span>'
        f'<span>{label_html(files, tag.label)}</span><span class="score">{score}</span></{element}>'
    )


def label_html(files: RunFiles, label: int) -> str:
    name, text = files.names[label], files.texts[label]
    if not text or text.lower() == name.lower():
        return escape(name)
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1].rstrip()}…"
    return f"{escape(name)} <small>{escape(short)}</small>"


def shaded(example: Example, looked: list[int]) -> Iterator[str]:
    """Words, each with its share of the strongest weight of every label that looked at it."""
    strengths = [relative(example.attention[label]) for label in looked]
    for place, word in enumerate(example.words):
        found = {number: strength[place] for number, strength in enumerate(strengths) if strength[place] >= FAINTEST}
        gap, text = " " if word.startswith(" ") else "", escape(word.strip())
        weights = ";".join(f"--a{number}:{round(share, 2):g}" for number, share in found.items())
        yield f'{gap}<i style="{weights}">{text}</i>' if weights else f"{gap}{text}"


def relative(weights: list[float]) -> list[float]:
    most = max(weights, default=0.0)
    return [weight / most if most > 0 else 0.0 for weight in weights]


def choice_rules(most: int) -> str:
    """CSS by which the chosen one of up to `most` labels shades the words; the first needs none."""
    rule = '.example:has(input[value="{0}"]:checked) i {{ --w: var(--a{0}, 0); }}'
    return "\n".join(rule.format(number) for number in range(1, most))
