"""Plug-ins, experiments that extend others, recipes and papers' tables."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hostile.case import EITHER, ERROR, TINY, WORKS, Box, Case, Result, Story, fit, silent_unless

START = "import sys; sys.path.append('plugins'); from zoo.commands.main import script; script()"
PLUGINS = {
    "sys-exit": ("import sys\nsys.exit('no license')\n", "mine"),
    "sys-exit-0": ("import sys\nsys.exit(0)\n", "mine"),
    "interrupts": ("raise KeyboardInterrupt\n", "mine"),
    "raises": ("raise RuntimeError('a\\nb')\n", "mine"),
    "base-exception": ("class Odd(BaseException): pass\nraise Odd('odd')\n", "mine"),
    "broken-syntax": ("def (:\n", "mine"),
    "missing": ("", "no_such_module"),
    "not-a-module": ("thing = 3\n", "mine:thing"),
    "a-class": ("from heads import Linear\nclass Own(Linear):\n    '''Own.'''\n", "mine:Own"),
    "same-name-as-ours": ("import heads\nclass Linear(heads.Linear):\n    '''Not ours.'''\n", "mine"),
    "odd-members": ("class Meta(type):\n    def __getattr__(cls, name): raise ValueError(name)\n"
                    "class Odd(metaclass=Meta): pass\n", "mine"),
    "without-docstring": ("import heads\nclass Bare(heads.Linear): pass\n", "mine"),
    "control-characters": ("import heads\nclass Red(heads.Linear):\n    '''\\x1b[2J.'''\n", "mine"),
    "prints": ("print('hello')\n", "mine"),
}  # fmt: skip
EXTENDS = {
    "works": ("extends: tiny.yaml\ntrainer.max_epochs: 1\n", WORKS),
    "itself": ("extends: a.yaml\n", ERROR),
    "a-circle": ("extends: b.yaml\n", ERROR),
    "nothing": ("extends: none.yaml\n", ERROR),
    "a-folder": ("extends: .\n", ERROR),
    "a-list": ("extends: [tiny.yaml]\n", ERROR),
    "a-number": ("extends: 3\n", ERROR),
    "null": ("extends: null\n", ERROR),
    "an-empty-name": ("extends: ''\n", ERROR),
    "text": ("extends: text.txt\n", ERROR),
    "a-long-chain": ("extends: chain0.yaml\n", EITHER),
    "nul": ('extends: "a\\0b"\n', ERROR),
    "a-section-of-it": ("extends: tiny.yaml\nmodel: null\n", ERROR),
    "settings-of-nothing": ("extends: tiny.yaml\nmodel.head.inner.inner: 3\n", ERROR),
    "stage-of-it": ("extends: tiny.yaml\nstages.main.epochs: 3\n", ERROR),
}
CHAIN = 3000
LINKS = {f"chain{i}.yaml": f"extends: chain{i + 1}.yaml\n" for i in range(CHAIN)} | {f"chain{CHAIN}.yaml": TINY}
LOOP = {"b.yaml": "extends: c.yaml\n", "c.yaml": "extends: a.yaml\n", "text.txt": "hello"}
BUDGETS = ["0m", "-5m", "nan", "1e999h", "ten minutes", "9" * 400 + "h", "5", "", "0.0001s", "10 m"]
RECIPES = {
    "unknown": "data: {class_path: Sample}\nrecipe: magic\n",
    "a-list": "data: {class_path: Sample}\nrecipe: [blend]\n",
    "budget-a-list": "data: {class_path: Sample}\nrecipe: blend\nbudget: [1]\n",
    "without-data": "recipe: blend\n",
    "data-missing": "data: {class_path: TextFiles, init_args: {train: nowhere.csv}}\nrecipe: blend\n",
}
PAPERS = {
    "unknown-paper": (["lstm", "table1"], ERROR),
    "unknown-table": (["httn", "table99"], ERROR),
    "climbing-table": (["httn", "../../tiny"], ERROR),
    "no-table": (["httn"], ERROR),
    "unknown-row": (["httn", "table2", "--only=Nobody"], ERROR),
    "no-rows": (["httn", "table2", "--only=,"], EITHER),
    "seeds-0": (["httn", "table2", "--seeds=0"], ERROR),
    "seeds-text": (["httn", "table2", "--seeds=many"], ERROR),
    "out-is-a-file": (["httn", "table2", "--dry_run", "--out=tiny.yaml"], ERROR),
    "name-reserved": (["httn", "table2", "--dry_run", "--name=x"], ERROR),
    "dry-run": (["httn", "table2", "--dry_run"], WORKS),
    "list": (["--list"], WORKS),
    "odd-option": (["httn", "table2", "--only=Joint", "--nonsense=1"], EITHER),
}


def plugin(text: str, target: str, argv: list[str], expect: tuple[str, ...]) -> Story:
    """A command in an environment with a plug-in: what it breaks is itself."""

    def tell(box: Box) -> str:
        point = f"[zoo.plugins]\nmine = {target}\n"
        meta = "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n"
        box.write({"plugins/mine.py": text, "plugins/mine-1.0.dist-info/entry_points.txt": point})
        box.write({"plugins/mine-1.0.dist-info/METADATA": meta, "in.txt": "a text\n"})
        result = box.python("-P", "-c", START, *argv, timeout=240)
        found = box.judge(result, expect, codes=(130,) if "KeyboardInterrupt" in text else ())
        silent_unless("\x1b[2J" not in result.out, "a control sequence of a plug-in reaches the terminal")
        return found

    return Story(tell)


def overwritten(box: Box, result: Result) -> None:
    silent_unless((box.folder / "tiny.yaml").read_text() == TINY, "an experiment was overwritten")


def broken_reproduction(box: Box) -> str:
    """A folder with runs of a table, some of which are damaged."""
    argv = ["reproduce", "httn", "table2", "--dry_run", "--out=out"]
    box.judge(box.zoo(*argv), WORKS)
    for name, text in {"Joint/x/metrics.json": "{", "EHTTN/x/metrics.json": json.dumps({"metrics": [1]})}.items():
        path = box.folder / "out" / "runs" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for file in Path(box.folder, "out", "experiments").glob("*.yaml"):
        file.write_text("[1]")
    return box.judge(box.zoo(*argv), EITHER)


def cases(seed: int) -> list[Case]:
    found = []
    for id, (text, target) in PLUGINS.items():
        found.append(Case(f"plugin-{id}-list", plugin(text, target, ["list"], WORKS)))
    for id in ("sys-exit", "not-a-module", "odd-members", "same-name-as-ours", "prints"):
        story = plugin(*PLUGINS[id], ["predict", "--ckpt=linear.ckpt", "--input=in.txt"], WORKS)
        found.append(Case(f"plugin-{id}-predict", story, needs=("linear",)))
    story = plugin(*PLUGINS["sys-exit"], fit("--model.head=mine.Own"), ERROR)
    found.append(Case("plugin-sys-exit-fit", story))
    for id, (text, expect) in EXTENDS.items():
        files = {"a.yaml": text, **LOOP, **(LINKS if "chain" in id else {})}
        argv = ["fit", "--config=a.yaml", "--final_test=false"]
        found.append(Case(f"extends-{id}", argv, expect, files, check=overwritten))
    for number, budget in enumerate(BUDGETS):
        expect = EITHER if budget in ("0.0001s", "10 m", "9" * 400 + "h") else ERROR
        argv = ["fit", "--config=best", "--data=Sample", f"--budget={budget}", "--print_config"]
        found.append(Case(f"budget-{number}", argv, expect, options={"timeout": 120}))
    found.append(Case("budget-without-recipe", fit("--budget=10m"), ERROR))
    for id, text in RECIPES.items():
        found.append(Case(f"recipe-{id}", ["fit", "--config=a.yaml"], ERROR, {"a.yaml": text}))
    for id, (argv, expect) in PAPERS.items():
        run, options = ["reproduce", *argv], {"timeout": 300}
        codes = (1,) if id == "odd-option" else ()  # a row has failed, and its log is named
        found.append(Case(f"reproduce-{id}", run, expect, check=overwritten, options=options, codes=codes))
    found.append(Case("reproduce-in-a-broken-folder", Story(broken_reproduction)))
    return found
