"""`zoo tree`: print the label tree of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps

from rich.table import Table

from datamodules.batch import LabelSpace
from heads import TreeHead
from heads.tree.label_tree import ancestor
from heads.tree.search import LabelTree
from zoo.commands.output import opened_output, plain_console
from zoo.core.console import warn
from zoo.core.errors import UserError, check_low, printable
from zoo.training.checkpoint import rebuild

LEGEND = "documents: training documents, counted once per label in the cluster"


def show_tree(
    *, ckpt: str, tree: int = 1, clusters: int = 20, labels: int = 8, json: bool = False, trust: list[str] | None = None
) -> None:
    """Print the label tree of a checkpoint.

    Args:
        ckpt: checkpoint of `zoo fit` with a tree head.
        tree: number of the tree, for a head with several.
        clusters: number of clusters to print; 0 prints all.
        labels: number of labels to print per cluster, the most frequent first; 0 prints all.
        json: print one JSON line per label: its name, its number of training documents, and its path from the root.
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo tree --ckpt best.ckpt --clusters 5
    """
    check_low(1, tree=tree)
    check_low(0, clusters=clusters, labels=labels)
    module = rebuild(ckpt, trust or ())
    head = next((part for part in module.head.modules() if isinstance(part, TreeHead)), None)
    if head is None:
        raise UserError(f"{ckpt}: head {type(module.head).__name__} has no label tree")
    if not 1 <= tree <= len(head.trees):
        raise UserError(f"`tree={tree}`: the trees of {ckpt} are numbered from 1 to {len(head.trees)}")
    if not head.grown:
        warn(f"{ckpt} was saved before build_tree: its clusters are by label frequency, not by similarity")
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
    """A label tree with the names and frequencies of its labels."""

    tree: LabelTree
    space: LabelSpace

    @property
    def above(self) -> list[int]:
        """Number of nodes at each level of clusters, top first."""
        return self.tree.widths[:-1]

    def path(self, cluster: int) -> list[int]:
        """Path to a cluster, top first; nodes are numbered within their level, from 0."""
        return [ancestor(cluster, self.above[-1], width) for width in self.above]

    def labels(self, cluster: int) -> list[int]:
        """Labels of a cluster, the most frequent first."""
        found = [label for label in self.tree.labels_of[cluster].tolist() if label >= 0]
        return sorted(found, key=lambda label: -self.space.counts[label])

    def json_lines(self) -> Iterator[str]:
        clusters = self.tree.cluster_of.tolist()
        for name, count, cluster in zip(self.space.names, self.space.counts, clusters, strict=True):
            yield dumps({"label": name, "count": count, "path": self.path(cluster)}, ensure_ascii=False)

    def show(self, clusters: int, labels: int) -> None:
        console = plain_console()
        console.print(self.shape())
        console.print(f"\n{LEGEND}")
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
        members, path = self.labels(cluster), self.path(cluster)
        place = f" ({' > '.join(map(str, path))})" if len(path) > 1 else ""
        documents = sum(self.space.counts[label] for label in members)
        named = members[:labels] if labels else members
        names = "; ".join(self.space.names[label] for label in named)
        more = f" + {len(members) - len(named):,} more" if len(named) < len(members) else ""
        return printable(f"cluster {cluster}{place}: {len(members):,} labels, {documents:,} documents: {names}{more}")
