"""Models on a hub, which is a server of ours that speaks the hub's API."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

import zoo
from tests.support.errors import raises
from tests.support.hub import Hub
from tests.unit.training.test_tagger import CONFIG, TEXTS, make
from zoo.commands.main import main
from zoo.training.hub_models import located
from zoo.training.model_folder import FILES

NAME = "team/model"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    server = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ckpt(tmp_path):
    make().save(tmp_path / "small.ckpt")
    return tmp_path / "small.ckpt"


def snapshot(server, name=NAME):
    return server.files(name)[0]


def tags(tagger):
    return [[(tag.label, tag.score) for tag in row] for row in tagger.tag(TEXTS)]


def test_a_run_is_shared_and_used_by_its_name(hub, fit, tmp_path, monkeypatch, capsys, fails):
    run = fit("--trainer.max_epochs=1")
    main(["push", str(run), NAME, "--licence", "apache-2.0"])
    files = snapshot(hub)
    assert files.keys() == {*FILES, ".gitattributes"} - {"thresholds.json", ".gitattributes"}
    card = files["README.md"].decode()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["license"], front["library_name"]) == ("apache-2.0", "xmc-zoo")
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    assert f"{100 * metrics['nDCG@5']:.2f}" in card
    assert f"{100 * metrics['macroF@5/few']:.2f}" in card
    assert json.loads(files["metrics.json"])["metrics"] == metrics
    best = zoo.load(run / "checkpoints" / "best.ckpt")
    assert json.loads(files["labels.json"])["names"] == best.names
    assert tags(zoo.load(NAME)) == tags(best)
    # every command that takes a checkpoint takes the name
    (tmp_path / "docs.txt").write_text("a text about fishing quotas\n")
    capsys.readouterr()
    main(["predict", "--ckpt", NAME, "--input", str(tmp_path / "docs.txt")])
    assert len(json.loads(capsys.readouterr().out)["labels"]) == 5
    main(["test", "--ckpt", NAME, "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"])
    assert f"{100 * metrics['P@1']:.2f}" in capsys.readouterr().out
    fails("tree", "--ckpt", NAME, names=[NAME, "Linear"])  # read, and it has no tree
    # a branch and a commit
    main(["push", str(run), NAME, "--revision", "next"])
    first, commit = hub.files(NAME, "next")
    assert first is not None
    assert located(f"{NAME}@next").is_file()
    assert located(f"{NAME}@{commit}").parent.name == commit
    fails("predict", "--ckpt", f"{NAME}@nowhere", "--input=-", names=[NAME, "nowhere"])
    # a local file wins
    folder = tmp_path / "work" / "team"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    (folder / "model").write_text("no checkpoint")
    fails("predict", "--ckpt", NAME, "--input=-", names=[NAME, "checkpoint"])


def test_a_checkpoint_without_a_run(hub, ckpt, fails):
    main(["push", str(ckpt), NAME, "--private"])
    assert hub.private[NAME]
    files = snapshot(hub)
    assert "metrics.json" not in files
    assert files["config.yaml"].decode() == CONFIG
    calls = len(hub.asked)
    assert tags(zoo.load(NAME)) == tags(zoo.load(ckpt))
    assert len(hub.asked) > calls
    _, commit = hub.files(NAME)
    fails("serve", "--ckpt", NAME, "--learn", names=["--learn", NAME])
    with raises(zoo.UserError, "model.safetensors"):
        zoo.load(NAME).save(located(NAME))  # the cache of the hub stays as it is
    calls = len(hub.asked)
    zoo.load(f"{NAME}@{commit}")  # in the cache, and a commit never changes
    assert len(hub.asked) == calls
    hub.shutdown()
    hub.server_close()
    assert tags(zoo.load(NAME)) == tags(zoo.load(ckpt))  # offline
    fails("predict", "--ckpt", "team/unknown", "--input=-", names=["team/unknown", "hub"])


@pytest.mark.parametrize("state", [{"a": [1.5, None, "b"], "t": torch.arange(3, dtype=torch.uint8)}])
def test_nested_content_survives(state, tmp_path):
    from zoo.training.model_folder import read_model, write_model

    shared = torch.ones(2, 2)
    inner = {"state_dict": {"w": shared, "extra": state}, "zoo": {"format": 3, "space": {"names": ["x"]}}}
    whole = {"format": 3, "members": [inner, inner], "calibration": None}
    content = {"zoo": whole, "optimizer_states": [torch.ones(9)]}
    write_model(content, tmp_path)
    found = read_model(tmp_path)
    assert found.keys() == {"zoo"}
    assert found["zoo"].keys() == whole.keys()
    for member in found["zoo"]["members"]:
        assert torch.equal(member["state_dict"]["w"], shared)
        assert member["state_dict"]["extra"]["t"].dtype == torch.uint8
        assert member["state_dict"]["extra"]["a"] == state["a"]
        assert member["zoo"] == inner["zoo"]
    assert len(load_file(tmp_path / "model.safetensors")) == 4


def hostile_config(files):
    return {"config.yaml": CONFIG.replace("heads.Linear", "os.system").encode()}


def path_outside(files):
    content = json.loads(files["zoo.json"])
    content["state_dict"]["head.classifier.weight"] = {"tensor": "../../etc/passwd"}
    return {"zoo.json": json.dumps(content).encode()}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (hostile_config, ["os.system"]),
        (path_outside, ["model.safetensors", "passwd"]),
        (lambda files: {"model.safetensors": files["model.safetensors"][:-9]}, ["damaged"]),
        (lambda files: {"zoo.json": b"[" * 100_000}, ["damaged"]),
        (lambda files: {"zoo.json": b'{"folder": 99}'}, ["newer"]),
        (lambda files: {"labels.json": b'{"names": ["a"]}'}, ["label space"]),
        (lambda files: {"tokenizer.json": b"{}"}, ["vocabulary"]),
    ],
)
def test_a_model_from_elsewhere_is_checked(hub, ckpt, fails, change, names, tmp_path):
    main(["push", str(ckpt), NAME])
    hub.commit(NAME, change(snapshot(hub)) | {"evil.py": b"raise SystemExit", "model.ckpt": b"\x80\x04."})
    fails("predict", "--ckpt", NAME, "--input=-", names=[n for n in names if n not in ("model.safetensors",)])
    downloaded = {path.name for path in (tmp_path / "hub").rglob("*") if "snapshots" in path.parts}
    assert not {"evil.py", "model.ckpt"} & downloaded


def test_what_is_no_model_of_the_zoo(hub, fails, monkeypatch):
    hub.commit("team/other", {"config.json": b"{}", "model.safetensors": b""})
    fails("predict", "--ckpt", "team/other", "--input=-", names=["team/other", "zoo.json"])
    hub.commit("team/large", {"zoo.json": b"{}" * 999, "model.safetensors": b""})
    monkeypatch.setattr("zoo.training.model_folder.LARGEST_TEXT", 99)
    fails("predict", "--ckpt", "team/large", "--input=-", names=["zoo.json", "1,998"])
    fails("push", "nowhere", NAME, names=["nowhere"])
    fails("push", "nowhere", "model", names=["model"])
