"""Explanations: places of tokens in texts, and what each of them adds to a score."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import zoo
from backbones import BiLSTM, Bow, Transformer, Words
from datamodules.prepare.bags import bag_width, bags, occurrences
from datamodules.prepare.vocabulary import (
    PAD,
    UNK,
    VALUES,
    Vocabulary,
    feature_tokenizer,
    load_pretrained,
    word_tokenizer,
)
from heads import LSAN, AttentionXML, Bonsai, Linear, NearestNeighbours, OneVsRestSvm, Parabel, TransitionContext
from tests.support.documents import label_space
from tests.support.encoders import save_bert
from tests.support.engines import corpus, space_of
from tests.support.errors import raises
from zoo.training.arguments import well_formed
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.ranking_model import RankingModel
from zoo.training.spans import Span, mean_spans, original_places, token_places

WORDS = {PAD: 0, UNK: 1, "cod": 2, "quota": 3, "levy": 4, "ban": 5}
TEXT = "\U0001f41f Cod, the QUOTA — cod\u0301 levy. ﬂy cod"
NAMES = {PAD: 0, UNK: 1, **{f"w{i}": i for i in range(2, 40)}}


def tagger_of(backbone, head, words=WORDS, length=50, **space):
    torch.manual_seed(0)
    labels = label_space([9, 7, 5, 3, 2], vocab_size=len(words))
    module = RankingModel(labels, backbone, head)
    module.vocabulary = Vocabulary(word_tokenizer(words), length)
    return zoo.Tagger(module, batch_size=4)


def words_of(text, tags):
    return {tag.label: {text[span.start : span.end] for span in tag.spans} for tag in tags}


def test_places_of_words_are_characters_of_the_text():
    places = token_places(Vocabulary(word_tokenizer(WORDS), 50), TEXT)
    assert [TEXT[a:b] for a, b in places] == ["Cod", "the", "QUOTA", "cod", "levy", "ﬂy", "cod"]
    assert token_places(Vocabulary(word_tokenizer(WORDS), 2), TEXT) == places[:2]
    assert token_places(Vocabulary(word_tokenizer(WORDS), 2, windows=2), TEXT) == places[:4]
    assert token_places(Vocabulary(word_tokenizer(WORDS), 2), "") == [(0, 0)]


def test_places_are_aligned_with_features():
    vocabulary = Vocabulary.from_text(feature_tokenizer({PAD: 0, UNK: 1, VALUES: 2, "a": 3, "b:c": 4}).to_str(), 50)
    text = "a:2  x b:c:1 a:0 a"
    assert [text[a:b] for a, b in token_places(vocabulary, text)] == ["a:2", "b:c:1", "a"]
    assert len(vocabulary.encode([text])[0]) == 3


@pytest.mark.parametrize(
    "text", ["plain", "\ud83d\udc1f cod", "\udc1fx\ud83d cod \ud83d\udc1f\ud83d\udc1f ban", "\ud83d"]
)
def test_places_in_texts_with_surrogates(text):
    clean, positions = well_formed(text), original_places(text)
    positions = np.arange(len(text) + 1) if positions is None else positions
    assert len(positions) == len(clean) + 1
    for word in ("cod", "ban", "plain"):
        at = clean.find(word)
        assert at < 0 or text[positions[at] : positions[at + len(word)]] == word


def test_mean_of_explanations_is_cut_at_all_boundaries():
    one, two = (Span(0, 8, 0.75), Span(9, 12, 0.25)), (Span(0, 4, 1.0),)
    expected = (Span(0, 4, 0.6875), Span(4, 8, 0.1875), Span(9, 12, 0.125))
    assert mean_spans([one, (), two]) == expected
    assert mean_spans([(), ()]) == ()


@pytest.mark.parametrize("head", [AttentionXML, LSAN])
def test_label_attention_is_the_explanation(head):
    tagger = tagger_of(lambda space: BiLSTM(space, 4, 4), lambda dim, space: head(dim, space), length=6)
    (tags,) = tagger.tag([TEXT], explain=True)
    ((_, batch),) = tagger.batches([TEXT], [[]])
    with torch.no_grad():
        weights = tagger.module.head.attention_weights(tagger.module(batch), torch.arange(5)[None])[0]
    for tag in tags:
        expected = weights[tagger.names.index(tag.label)].tolist()
        assert [TEXT[span.start : span.end] for span in tag.spans] == ["Cod", "the", "QUOTA", "cod", "levy", "ﬂy"]
        assert [span.weight for span in tag.spans] == pytest.approx(expected, rel=1e-4)


def slow_gradients(tagger, text, label):
    """Change of the score with the length of each token's vector, by central differences."""
    ((_, batch),) = tagger.batches([text], [[]])
    table, found = tagger.module.backbone.word_embeddings()[0], []
    for place in range(batch.ids.shape[1]):
        ends = []
        for step in (1e-2, -1e-2):

            def scaled(_, given, out, step=step, place=place):
                out = out.clone()
                out[given[0] == batch.ids[0, place]] *= 1 + step
                return out

            handle = table.register_forward_hook(scaled)
            with torch.no_grad():
                ranking = tagger.module.rank(batch, 5)
            handle.remove()
            ends.append(float(ranking.scores[ranking.labels == label]))
        found.append((ends[0] - ends[1]) / 2e-2 / (batch.ids[0] == batch.ids[0, place]).sum().item())
    return np.array(found)


@pytest.mark.parametrize(
    "backbone",
    [lambda space: BiLSTM(space, 4, 4), lambda space: Bow(space, 8), lambda space: Bow(space, 8, tokens=True)],
)
def test_gradients_against_differences(backbone):
    text = "levy cod ban quota"  # distinct, since gradients of equal words differ in a sequence
    tagger = tagger_of(backbone, lambda dim, space: Linear(dim, space))
    if isinstance(tagger.module.backbone, Bow):
        tagger.module.backbone.tfidf.idf[1:] = 1
    several = tagger.tag([text, "cod cod", text + " levy"], explain=True)
    for tag in several[0]:
        expected = slow_gradients(tagger, text, tagger.names.index(tag.label)).clip(min=0)
        found = {text[span.start : span.end]: span.weight for span in tag.spans}
        for word, weight in zip(text.split(), expected / max(expected.sum(), 1e-12), strict=True):
            assert found.get(word, 0) == pytest.approx(weight, abs=0.02)
    for tag, alone in zip(several[0], tagger.tag([text], explain=True)[0], strict=True):
        assert [span.weight for span in tag.spans] == pytest.approx([span.weight for span in alone.spans], abs=1e-5)


def test_columns_of_occurrences_are_those_of_bags():
    tokens = np.random.default_rng(0).integers(2, 9, 30)
    for lead in (0, 6, 100):
        counts = bags(tokens, np.array([0, len(tokens)]), None, 9, lead)
        columns, places = occurrences(tokens, 9, lead)
        times = np.bincount(columns, minlength=bag_width(9, lead)) / np.where(np.arange(bag_width(9, lead)) < 18, 1, 2)
        assert np.array_equal(times, counts.toarray()[0])
        assert np.array_equal(tokens[places[: len(tokens)]], columns[: len(tokens)])


def engine(make, lead=0):
    counts, targets = corpus()
    space = space_of(targets)
    if lead:
        tokens = [np.repeat(np.arange(40), row.astype(int)) for row in counts.toarray()]
        starts = np.cumsum([0, *map(len, tokens)])
        counts = bags(np.concatenate(tokens), starts, None, 40, lead)
    module = RankingModel(space, Words, lambda dim, space: make(dim, space))
    module.head.fit(TransitionContext(targets=targets, words=counts, ids=[f"d{i}" for i in range(len(targets))]))
    module.vocabulary = Vocabulary(word_tokenizer(NAMES), 50)
    return zoo.Tagger(module, batch_size=4)


def test_svm_explains_by_weights_times_values():
    tagger, text = engine(OneVsRestSvm), "w4 W2 w30 w2 w3"
    head = tagger.module.head
    counts = np.zeros((1, 40), np.float32)
    counts[0, [2, 3, 4, 30]] = 2, 1, 1, 1
    values = head.tfidf.matrix(csr_array(counts)).toarray()[0]
    for tag in tagger.tag([text], k=3, explain=True)[0]:
        label = tagger.names.index(tag.label)
        each = {i: values[i] * head.weights[[i]].toarray()[0, label] for i in (2, 3, 4, 30)}
        expected = np.array([each[4], each[2] / 2, each[30], each[2] / 2, each[3]]).clip(min=0)
        kept = expected >= 0.01 * expected.max()
        assert [text[s.start : s.end] for s in tag.spans] == [w for w, k in zip(text.split(), kept, strict=True) if k]
        assert [s.weight for s in tag.spans] == pytest.approx((expected / expected.sum())[kept], rel=1e-4)


def test_neighbours_explain_their_votes():
    """Evidence sums to the score: votes split by the words that documents share."""
    tagger = engine(lambda dim, space: NearestNeighbours(dim, space, k=5))
    ((_, batch),) = tagger.batches(["w4 w2 w30 w2 w3"], [[]])
    ranking = tagger.module.rank(batch, 4)
    evidence = tagger.module.head.token_contributions(tagger.module(batch), ranking.labels)
    assert evidence.sum(2)[0].tolist() == pytest.approx(ranking.scores[0].tolist(), rel=1e-4)


@pytest.mark.parametrize(("make", "leaf"), [(Parabel, 4), (Bonsai, 100)])
def test_trees_explain_by_the_margins_on_the_way_to_a_label(make, leaf):
    """The scores of the library follow from these margins, with their biases."""
    tagger = engine(lambda dim, space: make(dim, space, trees=2, max_leaf=leaf, prune=0.0))
    ((_, batch),) = tagger.batches(["w4 w2 w30 w2 w3"], [[]])
    head, features = tagger.module.head, tagger.module(batch)
    ranking, row = head.rank(features, 4), head.matrix(head._documents(features))
    evidence = head.evidence(row.indices, row.data, ranking.labels[0].numpy())
    for label, score, own in zip(ranking.labels[0].tolist(), ranking.scores[0].tolist(), evidence, strict=True):
        total, by_tree = 0.0, []
        for tree in head.paths:
            margins = []
            for weights, column in tree[label]:
                dense = weights.toarray()[:, column]
                margins.append(float(row.toarray()[0] @ dense[:-1] + dense[-1]))
                total += float(row.toarray()[0] @ dense[:-1]) / len(head.paths)
            by_tree.append(np.exp(-sum(max(0, 1 - margin) ** 2 for margin in margins)))
        assert own.sum() == pytest.approx(total, abs=1e-5)
        assert np.mean(by_tree) == pytest.approx(score, abs=1e-3)  # equal unless a beam has missed the label
    tags = tagger.tag(["w4 w2 w30 w2 w3"], k=2, explain=True)[0]
    assert all(tag.spans for tag in tags)


def test_similar_training_documents_have_the_label():
    counts, targets = corpus()
    tagger, text = engine(lambda dim, space: NearestNeighbours(dim, space, k=9)), "w4 w2 w30 w2 w3"
    head = tagger.module.head
    query = np.bincount([4, 2, 30, 2, 3], minlength=40).astype(np.float32)[None]
    cosines = (head.tfidf.matrix(csr_array(query)) @ head.tfidf.matrix(counts).T).toarray()[0]
    nearest = sorted(range(len(cosines)), key=lambda row: (-cosines[row], row))[:9]
    has = targets.dense(len(tagger.names))
    for tag in tagger.tag([text], k=4, explain=True)[0]:
        expected = [row for row in nearest if has[row, tagger.names.index(tag.label)]][:3]
        assert [document.id for document in tag.documents] == [f"d{row}" for row in expected]
        assert [document.similarity for document in tag.documents] == pytest.approx(cosines[expected])
    state = head.get_extra_state()
    head.set_extra_state(state)
    assert head.ids[:2] == ["d0", "d1"]
    head.set_extra_state({name: value for name, value in state.items() if name != "ids"})  # an older checkpoint
    assert tagger.tag([text], k=1, explain=True)[0][0].documents[0].id.isdecimal()
    for damaged in (5, torch.tensor([255], dtype=torch.uint8), torch.zeros(999, dtype=torch.uint8)):
        with raises(zoo.UserError, "ids"):
            head.set_extra_state(state | {"ids": damaged})


def test_lead_words_have_the_evidence_of_their_bigrams():
    tagger = engine(lambda dim, space: OneVsRestSvm(dim, space, lead=3), lead=3)
    ((_, batch),) = tagger.batches(["w4 w2 w30 w2 w3"], [[]])
    head, labels = tagger.module.head, torch.arange(3)[None]
    total = head.token_contributions(tagger.module(batch), labels).sum(2)[0]
    margins = head.matrix(head._documents(tagger.module(batch))) @ head.weights
    assert total.tolist() == pytest.approx(margins.toarray()[0, :3].tolist(), abs=1e-5)


def test_any_other_model_is_explained_by_leaving_words_out(monkeypatch):
    tagger, text = engine(OneVsRestSvm), "w4 w2 w30, w2 w3"
    exact = tagger.tag([text], k=1, explain=True)[0][0]
    monkeypatch.setattr(OneVsRestSvm, "evidence", lambda *_: None)
    found = tagger.tag([text], k=1, explain=True)[0][0]
    assert found.label == exact.label
    strongest = max(exact.spans, key=lambda span: span.weight)
    assert max(found.spans, key=lambda span: span.weight).start in {
        strongest.start,
        *(s.start for s in exact.spans if text[s.start : s.end] == text[strongest.start : strongest.end]),
    }


def test_only_labels_above_the_threshold_are_explained_and_ensembles_are_too():
    one = tagger_of(lambda space: BiLSTM(space, 4, 4), lambda dim, space: AttentionXML(dim, space))
    two = tagger_of(lambda space: BiLSTM(space, 4, 4), lambda dim, space: Linear(dim, space))
    made = EnsembleTagger([one, two], [{}, {}])
    tags = made.tag([TEXT, "", "unknown"], threshold=0.4, explain=True)
    assert [tag.label for tag in tags[0]] == [tag.label for tag in made.tag([TEXT], threshold=0.4)[0]]
    assert all(sum(s.weight for s in tag.spans) == pytest.approx(1) for tag in tags[0])
    assert all(not tag.spans for tag in tags[1])


@pytest.mark.parametrize("windows", [1, 2])
def test_transformers_explain_by_whole_words_of_what_they_read(tmp_path, windows):
    text = "\U0001f41f Fishing quotas, herring and “cod” quotas in the Baltic sea of 1999 and the North sea"
    path = save_bert(tmp_path, [text, "fish in the sea"])
    vocabulary = load_pretrained(str(path), 12, windows)
    space = label_space([9, 7, 5], vocab_size=vocabulary.size, pad_id=vocabulary.pad_id)
    torch.manual_seed(0)
    module = RankingModel(space, lambda space: Transformer(space, str(path)), lambda dim, space: Linear(dim, space))
    module.vocabulary = vocabulary
    places = token_places(vocabulary, text)
    assert len(places) == len(vocabulary.encode([text])[0])
    read = {text[start:end] for start, end in places if end > start}
    (tags, short) = zoo.Tagger(module).tag([text, "cod"], explain=True)
    assert any(tag.spans for tag in tags)
    for tag in tags:
        assert {text[span.start : span.end] for span in tag.spans} <= read
        assert len({span.start for span in tag.spans}) == len(tag.spans)
    assert {"cod"} >= {"cod"[span.start : span.end] for tag in short for span in tag.spans}
    assert ("Baltic" in read) == (windows == 2)
