"""Cores that this process may use: affinity and the quota of a container."""

import math
import os
import subprocess
import sys

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


@pytest.mark.skipif(sys.platform != "linux", reason="OMP_DISPLAY_ENV is read by GNU's OpenMP")
@pytest.mark.parametrize(("environment", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(environment, expected):
    program = "import sys; from zoo.commands.main import main; main(['--version']); import torch"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables | {"OMP_DISPLAY_ENV": "true", "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"OMP_WAIT_POLICY = '{expected}'" in done.stderr
