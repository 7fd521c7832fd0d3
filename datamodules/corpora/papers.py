"""Corpora of the papers, with their published splits and download sources.

The defaults `max_length=500` and `max_words=500_000` are those of the papers. With transformers, ME-XML uses 512 tokens
for EUR-Lex and Wiki10-31K, and 192 for AmazonCat-13K.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datamodules.corpora.named import NamedCorpus
from datamodules.corpora.sources import PecosTar, SparseZip, TextLines
from datamodules.corpora.sparse_files import SUFFIXES, SparseFormat, sparse_corpus
from datamodules.corpora.text_files import files_in
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.file_source import paired_corpus
from datamodules.tools.statistics import Published

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel"
PECOS = "https://archive.org/download/pecos-dataset/xmc-base"
DRIVE = "https://drive.google.com/uc?export=download&id="
FILES = "Put train.jsonl.gz and test.jsonl.gz with the columns id, text and labels into $ZOO_DATA/{}"
HOW_TO_GET = FILES + ", set `root` to their folder, or run once with a network connection"
HOW_TO_GET_FEATURES = (
    "Put train.xmc.gz and test.xmc.gz, in the format of the Extreme Classification Repository, into "
    "$ZOO_DATA/{}, or set `root` to their folder"
)

# The paper's 25.73 documents per label count training and test documents.
RANKNET_EURLEX = Published("RankNet and Taug, Table 1", 15_539, 3_809, 3_993, 5.31)


def libsvm(name: str) -> tuple[TextLines, ...]:
    """Raw texts of both splits on the LIBSVM data page."""
    return tuple(TextLines(f"{LIBSVM}/{name}_{split}.txt.bz2", split=split) for split in ("train", "test"))


def pecos(name: str) -> tuple[PecosTar]:
    """Raw texts in the archive of PECOS."""
    return (PecosTar(f"{PECOS}/{name}.tar.gz"),)


class EurLex4K(NamedCorpus):
    """EUR-Lex with 3,956 EuroVoc concepts: 15,449 EU acts for training, with stemmed words, as in AttentionXML.

    Papers use different versions. HTTN and LSFA use this one, without the documents they validate on.
    """

    folder = "eurlex-4k"
    how_to_get = HOW_TO_GET.format(folder)
    label_sep = " "
    sources = (libsvm("eurlex_raw_texts"), pecos("eurlex-4k"))
    published = (
        Published("LIBSVM data page", 15_449, 3_865, 3_956),
        Published("HTTN, Table 1", 13_905, 3_865, 3_714, 5.32, 19.93),
        Published("LSFA, Table 1", 11_585, 3_865, 3_956, 5.32, 15.59),
        # The paper prints 2,978 medium labels, but the three classes must add up to 3,956.
        Published("ME-XML, Table 1", 15_539, 3_809, 3_956, 5.30, 20.84, (3_133, 640, 183)),
        Published("LightXML", 15_539, 3_809, 3_956),
        RANKNET_EURLEX,
    )


class Aapd(NamedCorpus):
    """AAPD: abstracts of computer science papers, with 54 arXiv subjects (SGM, Yang et al. 2018)."""

    folder = "aapd"
    how_to_get = (
        "Get it from the link at github.com/lancopku/SGM, and put text_train, label_train, text_val, label_val, "
        "text_test and label_test into $ZOO_DATA/aapd, or set `root` to their folder"
    )
    published = (
        Published("Yang et al. 2018", 53_840, 1_000, 54, 2.41, val=1_000),
        Published("HTTN, Table 1", 54_840, 1_000, 54, 2.41, 2444.04),  # training and validation documents together
    )

    def corpus_in(self, folder: Path) -> Corpus | None:
        return super().corpus_in(folder) or paired_corpus(self.folder, folder, self.max_bad_rows, self.limits)


class Reuters(NamedCorpus):
    """Reuters-21578, ModApte split: newswire with 90 topics, half of which have 20 training documents or fewer."""

    folder = "reuters"
    how_to_get = (
        "Put train.jsonl and test.jsonl with the columns id, text and labels into $ZOO_DATA/reuters, "
        "or set `root` to their folder"
    )


class Bills(NamedCorpus):
    """Bills of the 109th and 110th US Congress: titles and summaries, with subject terms of the Library of Congress."""

    folder = "bills"
    how_to_get = (
        "Put train.jsonl and test.jsonl with the columns id, text and labels into $ZOO_DATA/bills, "
        "or set `root` to their folder"
    )


class Rcv1(NamedCorpus):
    """RCV1-v2, LYRL2004 split: 23,149 stories for training as stemmed words without order, with 103 topics.

    The original texts are available from NIST only.
    """

    folder = "rcv1"
    how_to_get = HOW_TO_GET.format(folder)
    label_sep = " "
    sources = (libsvm("rcv1_topics"),)
    # Only 101 topics have training documents; the paper divides by these.
    published = (Published("HTTN, Table 1", 23_149, 781_265, 103, 3.18, 729.67),)


class Wiki10(NamedCorpus):
    """Wiki10-31K: 14,146 Wikipedia articles for training, with 30,938 social tags."""

    folder = "wiki10-31k"
    how_to_get = HOW_TO_GET.format(folder)
    label_sep = " "
    sources = (libsvm("wiki10_31k_raw_texts"), pecos("wiki10-31k"))
    # The paper also prints 18.64 documents per label, but 14,146 * 18.64 / 30,938 is 8.52.
    published = (Published("ME-XML, Table 1", 14_146, 6_616, 30_938, 18.64, 8.52, (29_309, 1_321, 308)),)


class AmazonCat(NamedCorpus):
    """AmazonCat-13K: 1,186,239 products for training, with 13,330 categories."""

    folder = "amazoncat-13k"
    how_to_get = HOW_TO_GET.format(folder)
    label_sep = " "
    sources = (libsvm("AmazonCat-13K_raw_texts"), pecos("amazoncat-13k"))
    published = (Published("ME-XML, Table 1", 1_186_239, 306_782, 13_330, 5.04, 448.57, (5_875, 3_889, 3_566)),)


class Amazon670K(NamedCorpus):
    """Amazon-670K: 490,499 products for training, labelled with 670,091 products bought together with them.

    Args:
        propensity_a: constant A of the propensity model, as estimated by Jain et al. (2016) for this corpus.
        propensity_b: constant B of the propensity model, likewise.
    """

    folder = "amazon-670k"
    how_to_get = HOW_TO_GET.format(folder)
    label_sep = " "
    sources = (pecos("amazon-670k"),)
    # The paper swaps the last two numbers, but 490,499 * 5.4 / 670,091 is 3.9.
    published = (Published("RankNet and Taug, Table 1", 490_499, 153_025, 670_091, 5.4, 3.9),)

    def __init__(self, propensity_a: float = 0.6, propensity_b: float = 2.6, **kwargs: Any) -> None:
        super().__init__(propensity_a=propensity_a, propensity_b=propensity_b, **kwargs)


class NamedSparse(NamedCorpus):
    """Named corpus of sparse features, in `train.xmc.gz` and `test.xmc.gz`."""

    def corpus_in(self, folder: Path) -> Corpus | None:
        files = files_in(folder, SUFFIXES)
        if not files:
            return None
        layout = SparseFormat.beside(files["train"])
        return sparse_corpus(self.folder, files, layout, self.max_bad_rows, self.limits)


class EurLex4KBow(NamedSparse):
    """EUR-Lex of the Extreme Classification Repository: 15,539 EU acts for training as bags of 5,000 words."""

    folder = "eurlex-4k-bow"
    how_to_get = HOW_TO_GET_FEATURES.format(folder) + ", or run once with a network connection"
    sources = ((SparseZip(f"{DRIVE}1xWW1UykQBTD2IorVn7V8XubJatQDScol"),),)
    published = (RANKNET_EURLEX,)


class Bibtex(NamedSparse):
    """Bibtex: 7,395 references as bags of 1,836 words, with 159 tags."""

    folder = "bibtex"
    how_to_get = HOW_TO_GET_FEATURES.format(folder)


class Delicious(NamedSparse):
    """Delicious: 16,105 web pages as bags of 500 words, with 983 tags."""

    folder = "delicious"
    how_to_get = HOW_TO_GET_FEATURES.format(folder)
