"""Reuters-21578, the ModApte split with 90 topics."""

from __future__ import annotations

from datamodules.folder import NamedCorpus


class Reuters(NamedCorpus):
    """Reuters-21578, ModApte split: newswire, 90 topics of which half have 20 training documents or fewer."""

    folder = "reuters"
    how_to_get = (
        "Put train.jsonl and test.jsonl with the columns id, text and labels into $ZOO_DATA/reuters, "
        "or name a folder with --data.root"
    )
