"""Bodies of requests and answers, as the description of the API shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from zoo.service.options import MAX_K

Threshold = Annotated[float, Field(ge=0, le=1)] | Literal["auto"]


class Suggest(BaseModel):
    """Texts to tag."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"text": "Cocoa prices rose in Bahia", "k": 3, "threshold": 0.1}]},
    )
    text: str | list[str] = Field(description="one text, or a list of texts")
    k: int = Field(5, ge=1, le=MAX_K, description="most labels of a text")
    threshold: Threshold = Field(0.0, description='least score of a label; "auto" for the thresholds of the model')
    explain: bool = Field(False, description="also return the words that speak for each label; slower")


class Span(BaseModel):
    """A part of a text, in characters (Unicode code points) from its beginning."""

    start: int
    end: int
    weight: float = Field(description="share in what speaks for the label")


class Suggestion(BaseModel):
    """A label of a text."""

    label: str
    score: float = Field(description="probability of the label")
    spans: list[Span] | None = Field(None, description="what speaks for the label; only with `explain`")


class TextResult(BaseModel):
    """Labels of a text, best first."""

    labels: list[Suggestion]
    known: bool = Field(description="whether the model knows a word of the text; if not, the labels mean nothing")


class Suggestions(BaseModel):
    """Labels of each text, in the order of the request."""

    results: list[TextResult]


class LabelFacts(BaseModel):
    """A label that the model knows."""

    label: str
    documents: int = Field(description="training documents")


class LabelPage(BaseModel):
    """Labels by decreasing number of training documents."""

    total: int = Field(description="labels that match, on all pages")
    labels: list[LabelFacts]


class ModelFacts(BaseModel):
    """What is served."""

    model_config = ConfigDict(extra="allow")
    name: str
    version: str | None
    modified: str | None = Field(description="when the checkpoint was written")
    loaded: str
    heads: list[str]
    backbones: list[str]
    labels: int
    train_documents: int
    threshold: float = Field(
        description='the single threshold that `"auto"` stands for in a model that is not calibrated'
    )
    corpus: str | None
    metrics: dict[str, Any]
    licence: str | None
    calibrated: bool = Field(description="whether scores and thresholds are those of `zoo calibrate`")
    can_learn: bool
    limits: dict[str, int]


class Example(BaseModel):
    """A document with its labels."""

    model_config = ConfigDict(extra="forbid")
    text: str
    labels: list[str]


class Learn(BaseModel):
    """Documents to learn labels from."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"examples": [{"text": "Cotton futures fell", "labels": ["cotton"]}]}]},
    )
    examples: list[Example] = Field(min_length=1)


class Learned(BaseModel):
    """Labels after learning."""

    added: int
    labels: int = Field(description="labels that the model knows now")


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"
    model: str
    version: str | None
