"""Models from the hub: the cache first, one request otherwise, and errors in one line."""

from functools import partial

import pytest

from datamodules.prepare.hub import load_model
from tests.support.errors import raises
from zoo.core.errors import UserError


class Hub:
    """Stands in for the hub and its download cache."""

    def __init__(self, cached=False, error=None):
        self.cached, self.error, self.asked, self.loaded = cached, error, 0, []

    def model_info(self, _, name, timeout):
        assert timeout <= 10
        self.asked += 1
        if self.error:
            raise self.error

    def load(self, source, local_files_only):
        self.loaded.append(local_files_only)
        if local_files_only and not self.cached:
            raise OSError("not in the cache")
        return source


@pytest.fixture
def hub(monkeypatch):
    def make(**settings):
        made = Hub(**settings)
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kw: made.model_info(*args, **kw))
        return made, partial(load_model, "some/model", made.load, "encoder", "--option")

    return make


@pytest.mark.parametrize(("cached", "asked", "loaded"), [(True, 0, [True]), (False, 1, [True, False])])
def test_the_hub_is_asked_only_if_the_cache_has_no_copy(hub, cached, asked, loaded):
    made, load = hub(cached=cached)
    assert load() == "some/model"
    assert (made.asked, made.loaded) == (asked, loaded)


def test_an_unreachable_hub_is_asked_once(hub):
    made, load = hub(error=ConnectionError("Name or service not known"))
    with raises(UserError, "'some/model'", "--option"):
        load()
    assert (made.asked, made.loaded) == (1, [True])


def test_errors_of_the_hub_name_the_fix(hub):
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    for error, part in (
        (without_response(RepositoryNotFoundError), "some/model"),
        (without_response(GatedRepoError), "hf auth login"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE"),
    ):
        with raises(UserError, part):
            hub(error=error)[1]()


def without_response(kind):
    error = kind.__new__(kind)  # its constructor wants a response
    Exception.__init__(error, "no")
    return error
