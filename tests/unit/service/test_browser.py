"""The page in a real browser: a text, its labels, and the words that speak for them."""

import json
import shutil

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

import zoo  # noqa: E402
from tests.support.served import application, serving, small_model  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
TEXT = "A quota 🐟 for cod.\n<img src=x onerror=\"document.title='owned'\"> The levy, and a ban on cod & chips."

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def url(ckpt):
    with serving(application(ckpt, max_chars=2000)) as one:
        yield one


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, url):
    """Open the page; at the end nothing has gone wrong in it, and nothing was loaded from elsewhere."""
    contexts, wrong, asked = [], [], []

    def run(width=1280, **settings):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 800}, **settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        page.wait_for_selector("#about:has-text('labels')")
        return page

    run.wrong = wrong
    yield run
    for context in contexts:
        context.close()
    assert wrong == []
    assert all(one.startswith(("http://127.0.0.1", "data:")) for one in asked)


def suggest(page, text=TEXT):
    page.fill("#text", text)
    with page.expect_response("**/v1/suggest") as answer:
        page.keyboard.press("Control+Enter")
    page.wait_for_selector("#labels button")
    return answer.value.json()["results"][0]["labels"]


def marked(page):
    return page.eval_on_selector_all("#marks mark", "marks => marks.map(mark => mark.textContent)")


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_label_shows_its_words(opened, ckpt, width, scheme):
    page = opened(width, color_scheme=scheme)
    labels = suggest(page)
    (tags,) = zoo.load(ckpt).tag([TEXT])
    assert page.locator("#labels .name").all_text_contents() == [tag.label for tag in tags]
    expected = [TEXT[span["start"] : span["end"]] for span in labels[1]["spans"]]
    assert {"for", "img"} <= set(expected)  # behind a character of two units, and in what looks like HTML
    assert marked(page) == []
    page.click("#labels li:nth-child(2) button")
    assert marked(page) == expected
    page.mouse.move(0, 0)
    assert marked(page) == expected  # until the label is clicked again
    page.keyboard.press("Escape")
    assert marked(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.input_value("#text") == TEXT
    assert page.title().startswith("small")
    assert page.locator("#marks img").count() == 0


@pytest.mark.parametrize("width", [400, 1280])
def test_marks_are_where_the_words_are(opened, width):
    page = opened(width)
    suggest(page, "cod quota, levy and a ban " * 70 + "\n")
    assert page.evaluate("[text.scrollTop, text.clientWidth - marks.clientWidth]") == [0, 0]
    assert page.evaluate("text.scrollHeight - marks.scrollHeight") == 0  # both layers wrap alike
    assert page.evaluate("text.scrollHeight > sheet.clientHeight")  # and the sheet scrolls them together


def test_by_keyboard(opened):
    page = opened()
    suggest(page)
    page.focus("#labels li:first-child button")
    page.keyboard.press("ArrowDown")
    assert marked(page)
    page.keyboard.press("Enter")
    assert page.get_attribute("#labels li:nth-child(2) button", "aria-pressed") == "true"
    page.keyboard.press("Tab")
    assert page.get_attribute("#labels li:nth-child(2) button", "aria-pressed") == "true"


def test_settings(opened):
    page = opened()
    labels = suggest(page)
    for name, value, count in (("k", "2", 2), ("threshold", "1", 0)):
        with page.expect_response("**/v1/suggest"):
            page.eval_on_selector(
                f"#{name}", f"one => {{ one.value = {value}; one.dispatchEvent(new Event('change')) }}"
            )
        sync_api.expect(page.locator("#labels li")).to_have_count(count)
    page.wait_for_selector("#empty:has-text('threshold')")
    with page.expect_response("**/v1/suggest") as answer:
        page.check("#auto")
    assert json.loads(answer.value.request.post_data)["threshold"] == "auto"
    assert len(labels) == 5


def test_files_and_the_clipboard(opened, tmp_path):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    rows = [{"id": 1, "text": "cod quota"}, {"id": 2, "text": "a ban"}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "broken.jsonl").write_text('{"text": "cod"}\n{"text": \n')
    (tmp_path / "plain.txt").write_text("levy\nlevy")
    page.set_input_files("#file", tmp_path / "docs.jsonl")
    page.wait_for_selector("#position:has-text('1 of 2')")
    assert page.input_value("#text") == "cod quota"
    page.click("#next")
    page.wait_for_selector("#position:has-text('2 of 2')")
    assert page.input_value("#text") == "a ban"
    page.wait_for_selector("#copy:enabled")
    page.click("#copy")
    page.wait_for_selector("#copy:has-text('Copied')")
    assert len(json.loads(page.evaluate("navigator.clipboard.readText()"))["labels"]) == 5
    page.set_input_files("#file", tmp_path / "broken.jsonl")
    page.wait_for_selector("#problem:has-text('line 2')")
    page.set_input_files("#file", tmp_path / "plain.txt")
    page.wait_for_selector("#pager", state="hidden")
    assert page.input_value("#text") == "levy\nlevy"


def test_errors_are_shown(opened):
    page = opened()
    page.fill("#text", "cod " * 501)
    page.click("#suggest")
    page.wait_for_selector("#problem:has-text('2,004 characters')")
    opened.wrong.clear()  # browsers log answers of 413
    suggest(page)
    page.wait_for_selector("#problem", state="hidden")
    page.fill("#text", "xyzzy")
    page.click("#suggest")
    page.wait_for_selector("#empty:has-text('no word')")


def test_a_token_is_asked_for(opened, ckpt, chromium):
    with serving(application(ckpt, token="s3cret")) as address:
        page = chromium.new_page()
        page.goto(address)
        page.fill("#token", "s3cret")
        page.click("#access button")
        page.wait_for_selector("#about:has-text('5 labels')")
        page.wait_for_selector("#access", state="hidden")
        suggest(page)
        page.close()


def test_the_description_of_the_api(opened, url):
    page = opened(400)
    page.goto(f"{url}docs")
    page.wait_for_selector("summary:has-text('/v1/suggest')")
    assert page.locator("details[open] pre").first.text_content().startswith(f"curl {url}v1/suggest")
    assert page.locator("summary:has-text('/v1/projects/{project_id}/suggest')").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") == 400
