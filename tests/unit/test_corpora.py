"""Claims about real corpora; skipped where $ZOO_DATA has none."""

import os
from pathlib import Path

import pytest

from datamodules import EurLex, Reuters

pytestmark = pytest.mark.corpus


def prepared(kind, tmp_path):
    if not (Path(os.environ.get("ZOO_DATA", "/nowhere")) / kind.folder).is_dir():
        pytest.skip(f"$ZOO_DATA has no {kind.folder}")
    return kind(cache_dir=str(tmp_path), batch_size=32)


@pytest.mark.parametrize(("kind", "train", "labels"), [(Reuters, 7770, 90), (EurLex, 45000, 4108)])
def test_sizes_are_the_published_ones_and_padding_is_below_a_tenth(kind, train, labels, tmp_path):
    data = prepared(kind, tmp_path)
    assert data.space.reference_documents == train
    assert sum(count > 0 for count in data.space.reference_counts) == labels
    loader = data.train_dataloader()
    batches = [loader.dataset.lengths[rows] for rows in loader.sampler]
    assert sum(b.sum() for b in batches) > 0.9 * sum(len(b) * b.max() for b in batches)
