"""New labels of nearest neighbours: their documents join those that are searched."""

import pytest
import torch

from datamodules.batch import Targets
from heads import NearestNeighbours
from tests.support.blend import LABELS, Corpus
from zoo.core.errors import UserError


def test_documents_of_new_labels_are_searched_too():
    train, more = Corpus(60, seed=0), Corpus(6, seed=1)
    head = NearestNeighbours(1, train.space, k=5, min_documents=1)
    grown = train.space.grown({"new": 6})
    examples = [(more.features, Targets.from_lists([[LABELS]] * 6))]
    with pytest.raises(UserError, match="fit"):
        head.learn_labels(grown, examples)
    head.fit(train.context())
    before = head.rank(train.features, LABELS)
    head.learn_labels(grown, examples)
    assert head.labels.shape == (66, LABELS + 1)
    assert (head.rank(more.features, LABELS + 1).labels == LABELS).any(1).all()
    after = head.rank(train.features, LABELS)
    untouched = ~(after.labels == LABELS).any(1)
    assert untouched.any()
    assert torch.equal(after.scores[untouched], before.scores[untouched])
    other = NearestNeighbours(1, grown, k=5, min_documents=1)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.rank(more.features, 3).labels, head.rank(more.features, 3).labels)
