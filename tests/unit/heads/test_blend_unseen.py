"""Blend ranks labels without training documents that a dual encoder among its members proposes."""

from dataclasses import replace

import torch

from backbones import Bow
from heads import Blend, DualEncoder, Linear
from heads.blend.boosting import Boosting
from tests.support.blend import LABELS, Corpus
from zoo.training.ranking_model import share_backbone

SEEN = LABELS - 2


def test_unseen_labels_have_features_and_are_ranked():
    train, val = Corpus(80, seed=0), Corpus(40, seed=1)
    names, counts = train.space.names, train.space.counts
    space = replace(
        train.space,
        names=names[:SEEN],
        counts=counts[:SEEN],
        unseen=names[SEEN:],
        unseen_texts=["a text", "another"],
        reference_counts=counts,
    )
    torch.manual_seed(0)
    backbone = Bow(space, dim=16, dropout=0.0, min_documents=1)
    context = train.context(val)
    backbone.learn_counts(context.train_words())
    context.targets = train.targets.below(SEEN)
    encoded, seen = (replace(backbone(part.batch), batch=part.batch) for part in (val, train))
    context.val, context.features = (encoded, val.targets), seen
    members = {"dual": DualEncoder, "linear": Linear}
    head = Blend(16, space, members, scores="validation", ranker=Boosting(trees=5, least=1))
    share_backbone(head, backbone)
    head.dual.read_label_texts(context)
    head.fit_ranker(context)
    head.eval()
    ranking = head.rank(encoded, LABELS)
    found = set(ranking.labels.flatten().tolist())
    assert SEEN in found
    assert SEEN + 1 not in found  # it has no text
    assert ((ranking.scores >= 0) & (ranking.scores <= 1)).all()
    assert max(head.rankings(encoded, 5)["linear"].labels.flatten().tolist()) < SEEN
