"""What an offline W&B run logs, read back from its file."""

import json
import struct

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from zoo.training.loggers import WandbSettings, has_api_key, make_loggers, wandb_mode

BLOCK = 32768  # the file is a log of records in blocks, each part with a header of checksum, length and kind
FULL, FIRST, MIDDLE, LAST = range(1, 5)


def read_records(path):
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = 7, []
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(b"".join(parts))
            yield record
            parts = []


def items_of(updates):
    return {".".join(u.nested_key) or u.key: json.loads(u.value_json) for u in updates}


def test_config_metrics_histogram_and_table_are_in_the_offline_run(fit, capsys):
    folder = fit(wandb="auto")
    assert "wandb sync" in capsys.readouterr().err
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    config, history, summary, name = {}, {}, {}, ""
    for record in read_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name
            config |= items_of(record.run.config.update)
        elif kind == "config":
            config |= items_of(record.config.update)
        elif kind == "history":
            history |= items_of(record.history.item)
        elif kind == "summary":
            summary |= items_of(record.summary.update)
    assert name == "tiny-sample"
    assert config["sample"] is True
    assert config["data"]["class_path"] == "datamodules.Sample"
    assert config["model"]["head"]["class_path"] == "heads.Linear"
    assert {"val/nDCG@5", "train/main/loss_epoch", "test/P@1", "test/macroF@5/few"} <= set(history)
    assert history["data/label_frequency._type"] == "histogram"
    assert sum(history["data/label_frequency.values"]) == 20  # labels
    assert history["results._type"] == "table-file"
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/results*.json")
    content = json.loads(table.read_text())
    assert content["columns"] == ["metric", "tiny on the built-in sample: test"]
    assert dict(content["data"])["P@1"] == pytest.approx(history["test/P@1"])
    assert summary["parameters"] > 0
    for name in ("label_distribution", "label_correlation", "bins", "norms", "tsne", "curves"):
        assert history[f"pictures/{name}._type"] == "image-file"
        assert len(list(folder.glob(f"wandb/offline-run-*/files/media/images/pictures/{name}_*.png"))) == 1


def test_a_failing_wandb_does_not_stop_a_run(fit, monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("no service")

    monkeypatch.setattr("wandb.init", broken)
    folder = fit(wandb="offline")
    assert (folder / "metrics.json").exists()
    assert "no service" in capsys.readouterr().err


def test_online_falls_back_to_offline(monkeypatch, tmp_path, capsys):
    import wandb

    modes, real = [], wandb.init

    def unreachable(**settings):
        modes.append(settings["mode"])
        if settings["mode"] == "online":
            raise RuntimeError("no network")
        return real(**settings)

    monkeypatch.setattr("wandb.init", unreachable)
    loggers = make_loggers(tmp_path, "run", WandbSettings(mode="online"))
    wandb.finish()
    assert modes == ["online", "offline"]
    assert len(loggers) == 2
    assert "no network" in capsys.readouterr().err


def test_the_mode_depends_on_the_api_key_and_the_environment(monkeypatch, tmp_path):
    assert not has_api_key()
    assert wandb_mode(WandbSettings()) == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert wandb_mode(WandbSettings()) == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode(WandbSettings()) == "disabled"
    assert wandb_mode(WandbSettings(mode="offline")) == "offline"
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 123\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert has_api_key()
