"""Kills in any stage, inside an epoch or a transition: the resumed run is bit for bit the uninterrupted one."""

from __future__ import annotations

import pytest

from tests.ddp.runs import assert_kills_change_nothing

pytestmark = [pytest.mark.ddp, pytest.mark.kill]


@pytest.mark.parametrize(
    ("processes", "workers", "every"), [(1, 0, None), (2, 2, 2)], ids=["1-process", "2-processes-2-workers-mid-epoch"]
)
def test_kills_change_nothing(fit, folder, processes, workers, every):
    saving = [] if every is None else [f"--last.every_n_train_steps={every}"]
    epoch = {"head": 14 // processes, "finetune": 4 // processes}  # batches
    places = [f"head:{epoch['head'] + 4}", f"head:{epoch['head'] // 2 + 2}", "transfer"]
    places += ["finetune:2", f"finetune:{epoch['finetune'] + 1}"]
    given = (*saving, f"--data.num_workers={workers}")
    assert_kills_change_nothing(fit, folder, places, processes=processes, resuming=given)


def test_a_kill_changes_nothing_in_new_interpreters(fit_unforked, folder):
    """Neither the hash seed nor anything else that forks share is needed."""
    assert_kills_change_nothing(fit_unforked, folder, ["head:9"], processes=2)
