"""`python -m zoo tree`: the label tree of a checkpoint, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps

from rich.console import Console
from rich.table import Table

from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from datamodules.progress import note
from heads import TreeHead
from heads.label_tree import ancestor
from heads.tree_search import LabelTree
from zoo.checkpoint import rebuild
from zoo.predict import opened_output

UNITS = "documents are training documents, counted once for each of their labels in a cluster"


def show_tree(ckpt: str, tree: int = 1, clusters: int = 20, labels: int = 8, json: bool = False) -> None:
    """Show which labels a label tree has put together.

    Args:
        ckpt: checkpoint of zoo fit, of a head with a label tree.
        tree: which one, where the head has several.
        clusters: show so many, from the first; 0 for all.
        labels: name so many of a cluster, the most frequent; 0 for all.
        json: write a line of JSON for each label instead: its name, its training documents, and its path from the
            highest cluster to the lowest.
    """
    for name, value in {"clusters": clusters, "labels": labels}.items():
        if value < 0:
            raise UserError(f"--{name}={value} is too low: give 0 for all")
    module = rebuild(ckpt)
    head = next((part for part in module.head.modules() if isinstance(part, TreeHead)), None)
    if head is None:
        raise UserError(f"{ckpt}: head {type(module.head).__name__} has no label tree")
    if not 1 <= tree <= len(head.trees):
        raise UserError(f"--tree={tree}: the trees of {ckpt} are numbered from 1 to {len(head.trees)}")
    if not head.grown:
        note(f"{ckpt} is from before build_tree: its clusters are of labels of like frequency, not of like words")
    one = head.trees[tree - 1]
    assert isinstance(one, LabelTree)
    view = TreeView(one, module.space)
    if json:
        with opened_output("-") as sink:
            sink.writelines(f"{line}\n" for line in view.json_lines())
    else:
        view.show(clusters, labels)


@dataclass
class TreeView:
    """A tree with the names and training documents of its labels."""

    tree: LabelTree
    space: LabelSpace

    @property
    def above(self) -> list[int]:
        """Nodes of each level of clusters, top first."""
        return self.tree.widths[:-1]

    def path(self, cluster: int) -> list[int]:
        """The cluster and those above it, top first; each is numbered within its level, from 0."""
        return [ancestor(cluster, self.above[-1], width) for width in self.above]

    def labels(self, cluster: int) -> list[int]:
        """Those of a cluster, by falling frequency."""
        found = [label for label in self.tree.labels_of[cluster].tolist() if label >= 0]
        return sorted(found, key=lambda label: -self.space.counts[label])

    def json_lines(self) -> Iterator[str]:
        clusters = self.tree.cluster_of.tolist()
        for name, count, cluster in zip(self.space.names, self.space.counts, clusters, strict=True):
            yield dumps({"label": name, "count": count, "path": self.path(cluster)}, ensure_ascii=False)

    def show(self, clusters: int, labels: int) -> None:
        # Names of labels go out as they are: in one line, and what looks like markup or an emoji is none.
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        console.print(self.shape())
        console.print(f"\n{UNITS}")
        shown = min(clusters or self.above[-1], self.above[-1])
        for cluster in range(shown):
            console.print(self.line(cluster, labels))
        if more := self.above[-1] - shown:
            console.print(f"+ {more:,} more clusters: --clusters=0 shows all")

    def shape(self) -> Table:
        table = Table("level", "nodes", "children", box=None, padding=(0, 2))
        sizes = self.tree.cluster_of.bincount(minlength=self.above[-1])
        for depth, width in enumerate(self.above[:-1]):
            table.add_row(str(depth + 1), f"{width:,}", f"{self.above[depth + 1] // width:,}")
        fewest, most = int(sizes.min()), int(sizes.max())
        children = f"{fewest:,}" if fewest == most else f"{fewest:,}-{most:,}"
        table.add_row(str(len(self.above)), f"{self.above[-1]:,}", children)
        table.add_row("labels", f"{self.tree.widths[-1]:,}", "")
        return table

    def line(self, cluster: int, labels: int) -> str:
        """What a person wants to know of a cluster."""
        members, path = self.labels(cluster), self.path(cluster)
        place = f" ({' > '.join(map(str, path))})" if len(path) > 1 else ""
        documents = sum(self.space.counts[label] for label in members)
        named = members[:labels] if labels else members
        names = "; ".join(self.space.names[label] for label in named)
        more = f" + {len(members) - len(named):,} more" if len(named) < len(members) else ""
        return f"cluster {cluster}{place}: {len(members):,} labels, {documents:,} documents: {names}{more}"
