"""EURLEX57K (Chalkidis et al. 2019): EU acts with EuroVoc concepts."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datamodules.errors import first_line
from datamodules.folder import NamedCorpus
from datamodules.progress import progress_bar

HUB = "https://huggingface.co"
HUB_NAME, HUB_REVISION = "NLP-AUEB/eurlex", "refs/convert/parquet"
ARCHIVE = "https://archive.org/download/EURLEX57K/dataset.zip"
SPLITS = {"train": "train", "validation": "val", "dev": "val", "test": "test"}


class EurLex(NamedCorpus):
    """EURLEX57K: 57,000 EU acts, 45,000 of them for training, with 4,271 EuroVoc concepts."""

    folder = "eurlex57k"
    how_to_get = (
        "Put {train,val,test}.jsonl.gz with the columns id, text and labels into $ZOO_DATA/eurlex57k, "
        "name a folder with --data.root, or run once with a network connection"
    )

    def fetch(self, folder: Path) -> None:
        failures = []
        for name, source in (("Hugging Face hub", from_hub), ("archive.org", from_archive)):
            aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
            try:
                source(aside)
                aside.rename(folder)
                return
            except Exception as error:  # whatever a network, a proxy or a changed source may raise
                failures.append(f"{name}: {first_line(error)}")
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        raise OSError("could not be downloaded (" + "; ".join(failures) + ")")


def from_hub(folder: Path) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise OSError("HF_HUB_OFFLINE is set")
    reach(HUB)
    import datasets

    for split, rows in datasets.load_dataset(HUB_NAME, revision=HUB_REVISION).items():
        texts = (
            {"id": row["celex_id"], "text": f"{row['title']}\n{row['text']}", "labels": row["eurovoc_concepts"]}
            for row in rows
        )
        write_split(folder, SPLITS[split], texts)


def from_archive(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder.parent) as file:
        with reach(ARCHIVE) as answer, progress_bar("Downloading EURLEX57K") as bar:
            advance = bar(int(answer.headers.get("Content-Length", 0)) or None)
            while block := answer.read(1 << 20):
                file.write(block)
                advance(len(block))
        read_archive(zipfile.ZipFile(file), folder)


def read_archive(archive: zipfile.ZipFile, folder: Path) -> None:
    """`{train,dev,test}.jsonl` of the published archive, as the zoo's own files."""
    members = {Path(name).stem: name for name in archive.namelist() if name.endswith(".jsonl")}
    if not {"train", "dev", "test"} <= set(members):
        raise OSError(f"the archive holds {sorted(members)}, not train, dev and test")
    for split in ("train", "dev", "test"):
        with archive.open(members[split]) as raw:
            write_split(folder, SPLITS[split], (act(json.loads(line)) for line in io.TextIOWrapper(raw, "utf8")))


def act(row: dict[str, Any]) -> dict[str, Any]:
    parts = [row["title"], row["header"], row["recitals"], *row["main_body"]]
    return {"id": row["celex_id"], "text": "\n".join(parts), "labels": row["eurovoc_concepts"]}


def write_split(folder: Path, split: str, rows: Iterable[dict[str, Any]]) -> None:
    with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def reach(url: str) -> Any:
    """The opened address; a machine without a network learns it within seconds."""
    return urllib.request.urlopen(url, timeout=5)
