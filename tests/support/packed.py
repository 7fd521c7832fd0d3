"""Small archives in the published formats."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile

from scipy.sparse import csr_matrix, save_npz

TEXTS = [f"some words of text {i} ü" for i in range(40)]
LABELS = [[i % 3, 3 + i % 2] for i in range(40)]


def lines(ids=True):
    rows = zip(range(40), TEXTS, LABELS, strict=True)
    return "".join(f"{f'd{i}' + chr(9) if ids else ''}{' '.join(map(str, y))}\t{x}\n" for i, x, y in rows).encode()


def tar(change=None, prefix="xmc-base/eurlex-4k/"):
    """A PECOS archive; `change` replaces members, or removes those that are None."""
    labels = csr_matrix([[float(i in row) for i in range(5)] for row in LABELS])
    packed = io.BytesIO()
    save_npz(packed, labels)
    text = "".join(f"{x}\n" for x in TEXTS).encode()
    members = {"X.trn.txt": text, "Y.trn.npz": packed.getvalue(), "X.tst.txt": text, "Y.tst.npz": packed.getvalue()}
    members |= {"output-items.txt": b"zero\none\ntwo\nthree\nfour\n", "tfidf-attnxml/X.trn.npz": b"much"} | (
        change or {}
    )
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            if content is not None:
                entry = tarfile.TarInfo(prefix + name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def sparse_members(names=("Eurlex/eurlex_train.txt", "Eurlex/eurlex_test.txt")):
    rows = "".join(f"{','.join(map(str, y))} {i % 7}:0.5 {7 + i % 3}:1\n" for i, y in enumerate(LABELS))
    return dict.fromkeys(names, "40 10 5\n" + rows)


def acts(splits=("train", "dev", "test")):
    part = {"header": "Header ü", "recitals": "Whereas", "main_body": ["Article 1", "Article 2"]}
    rows = [part | {"celex_id": f"{i}", "title": f"Title {i}", "eurovoc_concepts": ["100", "200"]} for i in range(3)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return zipped({f"dataset/{split}.jsonl": text for split in splits} | {"__MACOSX/dataset/._train.jsonl": "\0"})


def damaged(content, place):
    return content[:place] + bytes(64) + content[place + 64 :]
