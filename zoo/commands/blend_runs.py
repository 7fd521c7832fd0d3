"""`zoo blend`: finished runs as one model, whose candidates boosted trees rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import yaml
from scipy.sparse import csr_array

from datamodules import Batch, TextDataModule
from heads import Blend, Ranking
from heads.blend.candidate_pairs import Pairs, take
from heads.tail.reranker import MAX_EXPONENT
from zoo.commands.combined import Member, check_name, measured, read_members, test_split, write_run
from zoo.commands.rerank import SingleProcess
from zoo.core.errors import MAX_SEED, WIDEST, UserError, check_range
from zoo.training.blend_tagger import BlendTagger
from zoo.training.checkpoint import build, build_data
from zoo.training.stored import FORMAT
from zoo.training.tagger import Tagger

WORD = re.compile(r"\W+")


def blend(
    runs: list[str],
    *,
    name: str = "blend",
    out: str = "runs",
    candidates: int = 64,
    exponent: float | None = 0.0,
    label_texts: str | None = None,
    max_length: int = 600,
    trees: int = 300,
    seed: int = 0,
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Rank the candidates of finished runs by one model for all labels, without training the runs again.

    Boosted trees learn on the validation documents, which no run has trained on, from the scores of all runs, label
    counts, similar training documents, words of the label's name and co-occurrence. Backbones, heads and vocabularies
    of the runs may differ; their training and validation documents must be the same.

    Args:
        runs: run folders, or folders that contain them.
        name: name of the new run.
        out: folder of all runs. The new run has metrics and predictions for `compare` and `report`, and a checkpoint
            for `predict`.
        candidates: number of best labels of each run.
        exponent: rank by the probability times the inverse propensity to this power: it trades P@k for PSP@k. `null`
            chooses the largest one that costs at most half a point of P@1 and of P@5.
        label_texts: file with label descriptions (default: that of the runs).
        max_length: number of words of a document that similarities and label words are computed from.
        trees: number of boosted trees.
        seed: random seed.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that a checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo blend runs/lsfa_reuters runs/svm_reuters runs/bonsai_reuters
        zoo blend runs/svm_eurlex runs/bert_eurlex --exponent 0.2
    """
    check_name(name)
    check_range(0, MAX_EXPONENT, exponent=exponent)
    check_range(1, WIDEST, candidates=candidates, trees=trees, max_length=max_length)
    check_range(0, MAX_SEED, seed=seed)
    members = read_members(runs, device, trust or ())
    check_same_documents(members)
    data = words_of([member.tagger for member in members], label_texts, max_length, trust or ())
    init: dict[str, Any] = {"candidates": candidates, "exponent": exponent, "ranker": {"trees": trees}}
    head_names = unique_names(members)
    init["members"] = dict.fromkeys(head_names, "heads.blend.Proposals")
    config: dict[str, Any] = {"backbone": "backbones.Words", "head": {"class_path": "heads.Blend", "init_args": init}}
    module = build(config, data.space, trust or ())
    head = module.head
    assert isinstance(head, Blend)
    module.vocabulary, module.config_text = data.prepared.vocabulary, yaml.safe_dump({"name": name, "model": config})
    context, depth = CorpusContext(data, seed), min(head.candidates, data.space.num_labels)
    head.features.learn(context, torch.arange(len(context.train_targets())))
    rankings = [member.rankings("val", depth) for member in members]
    head.learn(pairs(head, data, rankings, context), data.targets("val"), context)
    content = {"state_dict": module.weights(), "zoo": module.stored_parts() | {"format": FORMAT}}
    contents = [member.content for member in members]
    made = BlendTagger([member.tagger for member in members], contents, Tagger(module.eval()), content)
    made.tuned = measured(data.space, data.targets("val"), blended(head, data, "val", rankings), 0.5).best_threshold()
    split = test_split(data)
    found = rankings if split == "val" else [member.rankings(split, depth) for member in members]
    facts = {"importances": head.importances(), "exponent": float(head.power)}
    write_run(members, made, blended(head, data, split, found), "Blend", name, out, facts)


class CorpusContext(SingleProcess):
    """Words and labels of the training documents of a corpus, and label texts."""

    def __init__(self, data: TextDataModule, seed: int) -> None:
        super().__init__(targets=data.train_targets(), seed=seed)
        self.data = data

    def train_ids(self) -> list[str]:
        return list(self.data.prepared.rows("train").ids())

    def train_words(self, lead: int = 0) -> csr_array:
        return self.data.train_words(lead)

    def label_features(self, unseen: bool = False) -> Iterator[tuple[Any, Batch]]:
        return ((None, batch) for batch in self.data.label_batches(unseen))


def check_same_documents(members: Sequence[Member]) -> None:
    """Refuse runs that were trained on validation documents of others."""
    first, *others = members
    for split in ("train", "val"):
        ids = list(first.data.prepared.rows(split).ids())
        for other in others:
            if list(other.data.prepared.rows(split).ids()) != ids:
                raise UserError(
                    f"{other.run} has other {'training' if split == 'train' else 'validation'} documents than "
                    f"{first.run}: train with the same `data.seed`, `data.val_fraction` and `data.limit_train`"
                )


def words_of(
    members: Sequence[Tagger], label_texts: str | None, max_length: int, trust: Sequence[str]
) -> TextDataModule:
    """The corpus of the models as words, or as features if it has no texts."""
    configs = [yaml.safe_load(member.module.config_text or "")["data"] for member in members]
    config: dict[str, Any] = configs[0]
    settings = config.setdefault("init_args", {})
    if not members[0].vocabulary.has_values:
        settings |= {"tokenizer": "word", "max_length": max_length, "vectors": None}
    known = [file for one in configs if (file := one["init_args"].get("label_texts"))]
    if label_texts or known:
        settings["label_texts"] = label_texts or known[0]
    return build_data(config, trust)


def unique_names(members: Sequence[Member]) -> list[str]:
    """Names of the runs as identifiers."""
    names: list[str] = []
    for number, member in enumerate(members, 1):
        name = WORD.sub("_", str(member.run.facts.get("experiment") or f"model_{number}"))
        name = name if name.isidentifier() else f"model_{name}"
        names.append(name if name not in names else f"{name}_{number}")
    return names


def pairs(head: Blend, data: TextDataModule, rankings: Sequence[Ranking], context: CorpusContext) -> Pairs:
    found = ((batch, take(rankings, batch.rows)) for batch in data.pass_dataloader("val"))
    return head.pairs_of(context.track(found, "Computing features"), data.targets("val"), context)


def blended(head: Blend, data: TextDataModule, split: str, rankings: Sequence[Ranking]) -> Ranking:
    """Rankings of the documents of a split, in corpus order."""
    size, depth = len(data.prepared.rows(split)), min(100, data.space.num_labels)
    scores, labels = torch.zeros(size, depth), torch.full((size, depth), -1)
    for batch in data.pass_dataloader(split):
        ranking = head.blended(take(rankings, batch.rows), batch, depth)
        scores[batch.rows], labels[batch.rows] = ranking.scores, ranking.labels
    return Ranking(scores, labels)
