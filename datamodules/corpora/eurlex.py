"""EURLEX57K (Chalkidis et al. 2019): EU acts with EuroVoc concepts."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from datamodules.corpora.named import NamedCorpus
from datamodules.corpora.sources import DownloadedFile, HubRows, JsonRow, checked, split_members, write_split
from datamodules.prepare.limits import Limits
from datamodules.prepare.opening import limited_lines
from datamodules.tools.statistics import Published

SPLITS = {"train": "train", "validation": "val", "dev": "val", "test": "test"}


@dataclass(frozen=True)
class ActsZip(DownloadedFile):
    """Archive of the authors: `{train,dev,test}.jsonl` with the sections of each act."""

    def unpack(self, downloads: Path, folder: Path, limits: Limits) -> None:
        with zipfile.ZipFile(self.path(downloads)) as archive:
            limits.check_zip(archive, self.path(downloads).name)
            for split, name in split_members(archive, ("train", "dev", "test"), ".jsonl").items():
                with archive.open(name) as stream:
                    lines = map(checked, limited_lines(stream, limits))
                    write_split(folder, SPLITS[split], map(act_of_parts, map(json.loads, lines)))


def act_of_parts(row: JsonRow) -> JsonRow:
    parts = [row["title"], row["header"], row["recitals"], *row["main_body"]]
    return {"id": row["celex_id"], "text": "\n".join(parts), "labels": row["eurovoc_concepts"]}


def act_of_hub(row: JsonRow) -> JsonRow:
    return {"id": row["celex_id"], "text": f"{row['title']}\n{row['text']}", "labels": row["eurovoc_concepts"]}


class EurLex(NamedCorpus):
    """EURLEX57K: 57,000 EU acts, 45,000 of them for training, with 4,271 EuroVoc concepts."""

    folder = "eurlex57k"
    how_to_get = (
        "Put {train,val,test}.jsonl.gz with the columns id, text and labels into $ZOO_DATA/eurlex57k, "
        "set `root` to their folder, or run once with a network connection"
    )
    sources = (
        (HubRows("NLP-AUEB/eurlex", "refs/convert/parquet", act_of_hub, SPLITS),),
        (ActsZip("https://archive.org/download/EURLEX57K/dataset.zip"),),
    )
    published = (Published("Chalkidis et al. 2019", 45_000, 6_000, 4_271, labels_per_document=5.07, val=6_000),)
