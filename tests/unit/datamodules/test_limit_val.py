"""`limit_val`: which validation documents are used, and the metrics on them."""

from functools import partial
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from backbones import BiLSTM
from datamodules import Sample
from heads import Linear
from zoo.training.module import ZooModule
from zoo.training.ranking_metrics import RankingMetrics

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def sample(tmp_path):
    return partial(
        Sample, num_documents=200, num_labels=12, words_per_document=30, eval_batch_size=4, cache_dir=str(tmp_path)
    )


def validated(data):
    """Rows of all validation batches, in their order."""
    return [row for batch in data.val_dataloader() for row in batch.rows.tolist()]


def test_all_documents_by_default(sample):
    every = validated(sample())
    assert sorted(every) == list(range(len(every)))
    assert len(every) > 10
    assert validated(sample(limit_val=len(every))) == validated(sample(limit_val=10**6)) == every


def test_a_limit_draws_a_reproducible_subset(sample):
    every, rows = validated(sample()), validated(sample(limit_val=10))
    assert len(rows) == len(set(rows)) == 10
    assert set(rows) < set(every)
    assert validated(sample(limit_val=10)) == rows
    assert rows == [row for row in every if row in rows]  # in the order that they have without the limit
    assert set(rows) < set(validated(sample(limit_val=11)))


def test_the_subset_follows_the_seed(sample):
    # Changed late, so that it decides the draw alone and not the sample as well.
    one, other = sample(limit_val=10), sample(limit_val=10)
    other.seed = 1
    assert set(validated(one)) != set(validated(other))


def test_other_splits_are_not_limited(sample):
    data, limited = sample(), sample(limit_val=3)
    assert limited.prepared.folder == data.prepared.folder
    for loader in ("train_dataloader", "pass_dataloader", "test_dataloader"):
        sizes = [sum(len(batch) for batch in getattr(each, loader)()) for each in (data, limited)]
        assert sizes[0] == sizes[1] > 3


@pytest.mark.parametrize("world", [3, 20])
def test_ranks_share_one_subset(sample, world):
    expected, shared = sorted(validated(sample(limit_val=10))), []
    for rank in range(world):
        data = sample(limit_val=10)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)
        shared += validated(data)
    assert sorted(row for row in shared if row >= 0) == expected


def test_metrics_cover_the_subset_only(sample):
    torch.manual_seed(0)
    data = sample(limit_val=10)
    model = ZooModule(data.space, partial(BiLSTM, embed_dim=8, hidden=4), Linear)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    (got,) = trainer.validate(model, data, verbose=False)
    expected = RankingMetrics(data.space)
    batch = data.prepared.rows("val")[validated(sample(limit_val=10))]
    with torch.no_grad():
        ranking = model.eval().rank(batch, data.space.num_labels)
    expected.update(ranking.scores, ranking.labels, batch.targets)
    values = expected.compute()
    for name in ("P@1", "nDCG@5", "PSP@5"):
        assert got[f"val/{name}"] == pytest.approx(values[name].item(), rel=1e-5)
