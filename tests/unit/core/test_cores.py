"""Cores that this process may use: affinity and the quota of a container."""

import math
import os

import pytest
import torch

from zoo.core import cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "nonsense"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "0\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_quota(tmp_path, files, expected):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cores.quota(tmp_path) == expected


def test_half_a_core_is_one(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("50000 100000")
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    assert cores.available_cores() == 1


def test_no_quota_leaves_the_affinity_mask(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    assert cores.available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("environment", "expected"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, 2)])
def test_threads_stay_below_the_quota_unless_the_user_set_them(tmp_path, monkeypatch, environment, expected):
    (tmp_path / "cpu.max").write_text("100000 100000")
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cores.limit_threads()
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
