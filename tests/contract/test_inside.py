"""What a report shows of a head: every one has the lengths of its labels' weights, and its attention, or says None."""

from __future__ import annotations

import pytest
import torch

from backbones import BiLSTM, Transformer
from heads import AttentionXML, Experts, LightXML, Linear, PvaeAugmentor
from tests.contract.test_pairs import HEADS, LENGTHS, SPACE, Pair, documents

LABELS = torch.tensor([[0, 3], [8, 1], [2, 2], [5, 0], [7, 6], [4, 1]])
SHOWING = {"AttentionXML", "Experts", "LDGN", "LSAN", "PLT", "PvaeAugmentor"}
every_head = pytest.mark.parametrize("head", HEADS, ids=lambda kind: kind.__name__)


@every_head
@pytest.mark.parametrize("backbone", [BiLSTM, Transformer])
def test_attention_is_shared_out_among_the_tokens_of_a_document(backbone, head):
    pair, batch = Pair(backbone, head).eval(), documents()
    weights = pair.head.attention_weights(pair.backbone(batch), LABELS)
    assert (weights is not None) == (head.__name__ in SHOWING)
    if weights is not None:
        assert weights.shape == (len(LENGTHS), 2, batch.mask.shape[1])
        assert torch.allclose(weights.sum(-1), torch.ones(len(LENGTHS), 2))
        assert not weights[~batch.mask.unsqueeze(1).expand_as(weights)].any()
        assert (weights >= 0).all()


@every_head
def test_lengths_of_weights_are_one_for_each_label(head):
    norms = Pair(BiLSTM if head is not Experts else Transformer, head).head.weight_norms()
    if norms is not None:
        assert norms.shape[0] == SPACE.num_labels
        assert (norms >= 0).all()
    assert (norms is not None) or head not in (Linear, LightXML, PvaeAugmentor)


def test_scores_come_from_what_attention_shows():
    pair, batch = Pair(BiLSTM, AttentionXML).eval(), documents()
    features = pair.backbone(batch)
    every = torch.arange(SPACE.num_labels).expand(len(LENGTHS), -1)
    x = pair.head.attention_weights(features, every) @ pair.head.first(features.tokens)
    for layer in pair.head.rest:
        x = layer(x.relu())
    assert torch.allclose(x.squeeze(-1), pair.head(features), atol=1e-5)
