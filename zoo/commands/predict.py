"""`zoo predict`: predict labels of documents with nothing but a checkpoint."""

from __future__ import annotations

from typing import Any, Literal

from zoo.commands.documents import documents, may_pause, shown
from zoo.commands.output import check_not_overwritten, json_line, opened_output
from zoo.core.console import note, progress_bar
from zoo.core.errors import check_low
from zoo.core.windows import arriving, windows
from zoo.training.arguments import check_limits
from zoo.training.tagger import load
from zoo.training.tags import Tag


def predict(
    *,
    ckpt: str,
    input: str,
    out: str = "-",
    k: int | None = None,
    threshold: float | Literal["auto", "tuned"] = 0.0,
    explain: bool = False,
    ancestors: bool = False,
    text_column: str = "text",
    id_column: str = "id",
    batch_size: int = 64,
    device: str | None = None,
    trust: list[str] | None = None,
    max_line_length: int = 100_000_000,
) -> None:
    """Predict labels of documents with a trained model.

    Args:
        ckpt: checkpoint of `zoo fit`, or owner/name of a model on the hub.
        input: jsonl, csv, tsv or parquet file, or a text file with one document per line; can be compressed. `-` reads
            jsonl or text from standard input.
        out: jsonl file to write, `-` for standard output.
        k: maximum number of labels per document (default: 5, or 100 with automatic thresholds).
        threshold: minimum score of a label; `auto` uses the thresholds of `zoo calibrate`, or else `tuned`, the single
            one with the best micro-F1 on the validation documents.
        explain: also write the words that speak for each label, as spans of characters with weights, and the most
            similar training documents of models that compare with these; slower.
        ancestors: add the ancestors of labels, for models of labels with parents.
        text_column: column of the text.
        id_column: column of the document id; documents without one are numbered.
        batch_size: documents per batch.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.
        max_line_length: longest line of a jsonl or text file, in characters.

    Examples:
        zoo predict --ckpt best.ckpt --input docs.jsonl --out labels.jsonl
        echo 'a document' | zoo predict --ckpt best.ckpt --input - --k 3
        zoo predict --ckpt best.ckpt --input docs.jsonl --explain
    """
    check_limits(k, 0.0 if threshold == "tuned" else threshold)
    check_low(1, batch_size=batch_size, max_line_length=max_line_length)
    check_not_overwritten(out, input=input, ckpt=ckpt)
    tagger = load(ckpt, device, trust or ())
    tagger.batch_size = batch_size
    least = tagger.threshold if threshold == "tuned" else threshold
    rows = documents(input, text_column, id_column, max_line_length)
    # Those who wait for an answer get it soon; the windows of a file, and so its scores, do not depend on timing
    parts = arriving(rows, tagger.window) if may_pause(input) else windows(rows, tagger.window)
    count = unknown = 0
    with opened_output(out) as sink, progress_bar("Predicting") as bar:
        advance = bar(None)
        for part in parts:
            found = tagger.stream((text for _, text in part), k, least, explain, ancestors)
            for (id, _), tags in zip(part, found, strict=True):
                labels = [as_json(tag, explain) for tag in tags]
                sink.write(json_line({"id": id, "labels": labels}, sink.encoding))
                unknown += not tags.known
            sink.flush()
            advance(len(part))
            count += len(part)
    if unknown:
        note(f"{unknown:,} of {count:,} documents have no word that the model knows: they all get the same labels")
    elif not count:
        note(f"no documents in {shown(input)}")


def as_json(tag: Tag, explain: bool) -> dict[str, Any]:
    """A label as it is written."""
    found: dict[str, Any] = {"label": tag.label, "score": round(tag.score, 6)}
    if not explain:
        return found
    spans = [{"start": span.start, "end": span.end, "weight": round(span.weight, 6)} for span in tag.spans]
    near = [{"id": document.id, "similarity": round(document.similarity, 6)} for document in tag.documents]
    return found | {"spans": spans} | ({"documents": near} if near else {})
