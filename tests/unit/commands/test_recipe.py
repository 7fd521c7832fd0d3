"""What recipes pick, by corpus, machine and budget."""

from dataclasses import replace

import pytest

from tests.support.errors import raises
from zoo.commands.catalog import import_parts
from zoo.commands.recipe import Facts, apply_recipe, blend, choices, joined, parse_budget, picked
from zoo.core.errors import UserError

REUTERS = Facts(7_000, 90, 8_700, 60, 130, False, 950, False, 2, False, True)
EURLEX = Facts(45_000, 4_108, 228_000, 170, 390, False, 30_000, True, 2, False, True)
FEATURES = Facts(4_400, 159, 10_500, 68, 68, True, 1_000, False, 2, False, True)


def names(facts, budget):
    return [choice.name for choice in picked(facts, budget)[0]]


def test_members_fit_into_the_budget():
    for facts in (REUTERS, EURLEX, FEATURES):
        before: list[str] = []
        for budget in (1, 60, 600, 3600, 86400):
            chosen, left = picked(facts, budget)
            assert {choice.name for choice in (*chosen, *left)} == {choice.name for choice in choices(facts)}
            assert len(chosen) == 1 or sum(choice.seconds for choice in chosen) <= budget
            assert set(before) <= {choice.name for choice in chosen} or len(before) == 1
            before = [choice.name for choice in chosen]


def test_times_grow_with_the_corpus_and_shrink_with_the_machine():
    times = {choice.name: choice.seconds for choice in choices(EURLEX)}
    larger = {choice.name: choice.seconds for choice in choices(replace(EURLEX, documents=90_000, pairs=456_000))}
    faster = {choice.name: choice.seconds for choice in choices(replace(EURLEX, cores=8, gpu=True))}
    assert all(larger[name] > times[name] > faster[name] for name in times)


def test_a_network_needs_validation_documents_beside_linear_models():
    assert "network" in names(EURLEX, 86400)
    assert "network" not in names(REUTERS, 86400)
    assert names(replace(REUTERS, engines=False), 86400) == ["network"]
    assert "network" not in [choice.name for choice in choices(FEATURES)]


def test_where_the_ranker_learns():
    few = blend(REUTERS, 600)
    assert few["model"]["head"]["init_args"]["scores"] == "out_of_fold"
    assert few["data.val_fraction"] == 0.02
    assert blend(replace(REUTERS, documents=200), 600)["data.val_fraction"] == 0.1
    assert blend(replace(REUTERS, documents=2000), 600)["data.val_fraction"] == 0.04
    many = blend(EURLEX, 86400)
    assert many["model"]["head"]["init_args"]["scores"] == "validation"
    assert "data.val_fraction" not in many
    assert [stage["name"] for stage in many["stages"]] == ["network", "members", "ranker"]
    assert many["stages"][1]["on_enter"] == ["bonsai.fit", "nearest.fit", "svm.fit"]


def test_without_linear_models_one_model_is_trained_alone():
    found = blend(replace(REUTERS, engines=False), 600)
    assert found["model"]["head"]["class_path"] == "AttentionXML"
    assert len(found["stages"]) == 1
    for facts, budget in ((REUTERS, 2), (replace(REUTERS, documents=300), 600), (FEATURES, 600)):
        found = blend(replace(facts, engines=False), budget)
        assert found["model"]["head"]["class_path"] == "NearestNeighbours"
        assert found["stages"] == [{"name": "nearest", "on_enter": ["fit"]}]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5 h", 5400)])
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0m", "-3m", "nan s", "m", "1d"])
def test_odd_budgets_are_refused(text):
    with raises(UserError, f"--budget={text}"):
        parse_budget(text)


def test_options_of_the_command_line_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    data = {"class_path": "Sample", "init_args": {"num_documents": 100, "num_labels": 10}}
    import_parts()
    experiment = {"recipe": "blend", "data": data, "trainer": {"max_epochs": 3}}
    found = apply_recipe(experiment, ["fit", "--data.num_documents", "120", "--name=x"], "1h", tmp_path)
    assert found["data"] == data
    assert found["trainer"] == {"max_epochs": 3}
    assert "recipe" not in found
    assert {"model", "stages"} <= set(found)
    with raises(UserError, "'other'", "blend"):
        apply_recipe({"recipe": "other", "data": data}, [], None, tmp_path)


def test_options_and_values_are_joined():
    given = ["fit", "--data", "TextFiles", "--data.train=a.csv", "--flag", "--data.val", "b c.csv"]
    assert joined(given) == ["fit", "--data=TextFiles", "--data.train=a.csv", "--flag", "--data.val=b c.csv"]
