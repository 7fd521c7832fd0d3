"""Settings and options of `zoo fit`: wrong kinds and ranges, unknown names, hostile names, and modules that fail."""

from __future__ import annotations

import json

from tests.hostile.case import CANARY, EITHER, ERROR, TINY, WORKS, Box, Case, Result, fit, lost_unless, silent_unless

# Refused, whatever the reason: none of these can be what anyone wants.
WRONG = {
    "lr-nan": "--model.optimizer.lr=nan",
    "lr-negative": "--model.optimizer.lr=-1",
    "lr-text": "--model.optimizer.lr=fast",
    "weight-decay-negative": "--model.optimizer.weight_decay=-1",
    "batch-size-0": "--data.batch_size=0",
    "batch-size-float": "--data.batch_size=1.5",
    "eval-batch-size-0": "--data.eval_batch_size=0",
    "max-length-0": "--data.max_length=0",
    "max-words-0": "--data.max_words=0",
    "val-fraction-0": "--data.val_fraction=0",
    "val-fraction-nan": "--data.val_fraction=nan",
    "limit-train-0": "--data.limit_train=0",
    "max-bad-rows-negative": "--data.max_bad_rows=-1",
    "data-seed-negative": "--data.seed=-1",
    "propensity-a-nan": "--data.propensity_a=nan",
    "propensity-b-negative": "--data.propensity_b=-10",
    "num-workers-negative": "--data.num_workers=-1",
    "num-labels-0": "--data.num_labels=0",
    "num-documents-0": "--data.num_documents=0",
    "words-per-document-0": "--data.words_per_document=0",
    "vectors-folder": "--data.vectors=.",
    "vectors-missing": "--data.vectors=nowhere.txt",
    "tokenizer-missing": "--data.tokenizer=no/such/folder",
    "cache-dir-is-a-file": "--data.cache_dir=tiny.yaml",
    "embed-dim-huge": "--model.backbone.embed_dim=99999999999",
    "hidden-0": "--model.backbone.hidden=0",
    "hidden-text": "--model.backbone.hidden=wide",
    "dropout-2": "--model.backbone.dropout=2",
    "dropout-nan": "--model.backbone.dropout=nan",
    "depth-0": "--model.depth=0",
    "head-unknown": "--model.head=Foo",
    "head-abstract": "--model.head=Head",
    "head-abstract-dense": "--model.head=DenseHead",
    "head-is-a-backbone": "--model.head=backbones.BiLSTM",
    "head-is-popen": "--model.head=subprocess.Popen",
    "head-null": "--model.head=null",
    "backbone-abstract": "--model.backbone=Backbone",
    "data-abstract": "--data=TextDataModule",
    "optimizer-unknown": "--model.optimizer=Adamm",
    "optimizer-lbfgs-setting": "--model.optimizer.nesterov=true",
    "module-missing": "--model.head=no_such_module.Head",
    "module-failing": "--model.head=failing.Head",
    "module-exiting": "--model.head=exiting.Head",
    "module-with-syntax-error": "--model.head=broken.Head",
    "class-whose-init-fails": "--model.head=raising.Head",
    "class-not-in-module": "--model.head=raising.Nothing",
    "misspelt-option": "--trainer.max_epoch=3",
    "option-without-value": "--trainer.max_epochs",
    "positional": "stray",
    "max-epochs-negative": "--trainer.max_epochs=-7",
    "devices-0": "--trainer.devices=0",
    "accelerator-unknown": "--trainer.accelerator=abacus",
    "strategy-fsdp": "--trainer.strategy=fsdp",
    "precision-unknown": "--trainer.precision=7",
    "callback-unknown": "--trainer.callbacks=Nothing",
    "clip-nan": "--trainer.gradient_clip_val=nan",
    "accumulate-0": "--trainer.accumulate_grad_batches=0",
    "val-check-interval-0": "--trainer.val_check_interval=0",
    "overfit-batches": "--trainer.overfit_batches=2",
    "monitor-unknown": "--best.monitor=val/nothing",
    "best-filename-absolute": "--best.filename=/tmp/escaped-from-hostile",
    "best-dirpath-is-a-file": "--best.dirpath=tiny.yaml",
    "name-climbs": "--name=../elsewhere",
    "name-too-long": "--name=" + "n" * 300,
    "runs-is-a-file": "--runs=tiny.yaml",
    "seed-negative": "--seed_everything=-1",
    "ckpt-path-missing": "--ckpt_path=nowhere.ckpt",
    "ckpt-without-stage": "--ckpt=tiny.yaml",
    "stage-setting-without-stages": "--stages.main.epochs=2",
    "config-is-a-folder": "--config=.",
}
# Odd, but it may be accepted: then the run has to end well.
ODD = {
    "lr-0": "--model.optimizer.lr=0",
    "num-labels-1": "--data.num_labels=1",
    "num-documents-1": "--data.num_documents=1",
    "max-length-1": "--data.max_length=1",
    "limit-val-1": "--data.limit_val=1",
    "val-fraction-tiny": "--data.val_fraction=1e-9",
    "depth-huge": "--model.depth=999999",
    "dropout-1": "--model.backbone.dropout=1",
    "name-dot": "--name=.",
    "name-markup": "--name=[red]x[/] :smile:",
    "name-newline": "--name=a\nb",
    "best-filename-epoch": "--best.filename={epoch}-{step}",
    "best-filename-metric": "--best.filename={val/nDCG@5:.3f}",
    "best-filename-unknown-key": "--best.filename={nothing}",
    "best-filename-format-attack": "--best.filename={epoch.__class__.__mro__}",
    "save-top-k-0": "--best.save_top_k=0",
    "save-last-link": "--best.save_last=link",
    "no-checkpoints": "--trainer.enable_checkpointing=false",
    "max-epochs-0": "--trainer.max_epochs=0",
    "max-time": "--trainer.max_time=00:00:00:00",
    "fast-dev-run": "--trainer.fast_dev_run=true",
    "limit-train-batches-0": "--trainer.limit_train_batches=0",
    "devices-99": "--trainer.devices=99",
    "precision-64": "--trainer.precision=64",
    "precision-16-true": "--trainer.precision=16-true",
    "no-logger": "--trainer.logger=false",
    "barebones": "--trainer.barebones=true",
    "max-bad-rows-huge": "--data.max_bad_rows=99999999999999999999",
}
WITHOUT_TRAINING = {"max-epochs-0", "max-time", "limit-train-batches-0"}
MODULES = {
    "failing.py": "raise ValueError('fails at import')\n",
    "exiting.py": "import sys; sys.exit(0)\n",
    "broken.py": "def (:\n",
    "raising.py": "import heads\nclass Head(heads.Linear):\n    def __init__(self, dim, space):\n"
    "        raise ValueError('cannot be made')\n",
}
# Configurations: text of the file, or what replaces a line of TINY.
FILES = {
    "empty": "",
    "a-list": "[1, 2]",
    "broken": "model: {",
    "utf16": TINY.encode("utf-16"),
    "latin1": TINY.encode() + b"# \xe9\n",
    "unknown-key": TINY + "modle: {}\n",
    "none-as-key": TINY + "null: {}\n",
    "duplicate-section": TINY + "trainer: {max_epochs: 2}\n",
    "duplicate-key": TINY.replace("  max_epochs: 1\n", "  max_epochs: 1\n  max_epochs: 2\n"),
    "python-tag": TINY + f"name: !!python/object/apply:os.system ['touch {CANARY}']\n",
    "unknown-tag": TINY + "name: !boo 3\n",
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + TINY,
    "recursive": TINY + "stages: &s [*s]\n",
    "deep": "model: " + "[" * 20000 + "]" * 20000,
    "includes-itself": TINY + "stages: bad.yaml\n",
    "stages-empty-name": TINY.replace("  max_epochs: 1\n", "") + "stages: [{name: '', epochs: 1}]\n",
    "stages-climb": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: ../../../../up, epochs: 1}, {name: b, epochs: 1}]\n",
    "stages-same-name": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1}, {name: a, epochs: 1}]\n",
    "stages-named-best": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: best, epochs: 1}, {name: last, epochs: 1}]\n",
    "stages-unknown-key": TINY.replace("  max_epochs: 1\n", "") + "stages: [{name: a, epoch: 1}]\n",
    "stages-negative": TINY.replace("  max_epochs: 1\n", "") + "stages: [{name: a, epochs: -1}]\n",
    "stages-none-trained": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1, trainable: [nothing]}]\n",
    "stages-method-missing": TINY.replace("  max_epochs: 1\n", "") + "stages: [{name: a, epochs: 1, on_enter: [no]}]\n",
    "stages-method-private": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1, on_enter: [__init__]}]\n",
    "stages-method-with-path": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1, on_enter: [forward.__globals__.clear]}]\n",
    "stages-lr-nan": TINY.replace("  max_epochs: 1\n", "") + "stages: [{name: a, epochs: 1, lr: .nan}]\n",
    "stages-patience-negative": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1, patience: -1}]\n",
    "stages-monitor-unknown": TINY.replace("  max_epochs: 1\n", "")
    + "stages: [{name: a, epochs: 1, patience: 1, monitor: val/no}]\n",
}
CODE_IN_ANY = (
    "--model.backbone={class_path: Transformer, init_args: {name: bert, pretrained: false, config: {hidden_size: 8, "
    "num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8, x: "
    f"{{class_path: subprocess.Popen, init_args: {{args: [touch, {CANARY}]}}}}}}}}}}"
)
FOREIGN = "--model.head={class_path: subprocess.Popen, init_args: {args: [touch, canary]}}"


def whole(box: Box, result: Result) -> None:
    """A run that ended well left readable files and no NaN."""
    for file in box.folder.glob("**/metrics.json"):
        text = file.read_text()
        silent_unless("NaN" not in text and "Infinity" not in text, f"{file.name} reports NaN")
        json.loads(text)
    lost_unless((box.folder / "tiny.yaml").read_text() == TINY, "the configuration was overwritten")
    escaped = [path.name for path in box.folder.glob("*.ckpt")]
    silent_unless(not escaped, f"a checkpoint outside the run folder: {escaped}")


def nothing_as_result(box: Box, result: Result) -> None:
    """A run that trained nothing is marked, and is not compared."""
    whole(box, result)
    for file in box.folder.glob("**/metrics.json"):
        silent_unless(json.loads(file.read_text()).get("partial"), "a model that was never trained looks like a result")
        box.judge(box.zoo("compare", str(file.parent)), ERROR)


def cases(seed: int) -> list[Case]:
    found = [Case("works", ["fit", "--config=tiny.yaml"], WORKS, check=whole)]
    found += [Case(id, fit(option), ERROR, MODULES, check=whole) for id, option in WRONG.items()]
    for id, option in ODD.items():
        argv = ["fit", "--config=tiny.yaml", option]
        check = nothing_as_result if id in WITHOUT_TRAINING else whole
        found.append(Case(f"odd-{id}", argv, EITHER, MODULES, check=check))
    for id, text in FILES.items():
        expect = EITHER if id.startswith(("stages-", "duplicate")) else ERROR
        argv = ["fit", "--config=bad.yaml", "--final_test=false"]
        found.append(Case(f"yaml-{id}", argv, expect, {"bad.yaml": text, **MODULES}, check=whole))
    found += [
        Case("code-in-any-setting", fit(CODE_IN_ANY), EITHER),
        Case("code-as-head", fit(FOREIGN), ERROR),
        Case("no-config", ["fit"], ERROR),
        Case("no-command", [], EITHER),
        Case("unknown-command", ["train"], ERROR),
        Case("unknown-option-first", ["--config=tiny.yaml"], ERROR),
        Case("version", ["--version"], WORKS),
        Case("help-of-abstract", fit("--model.head.help=Head"), EITHER),
        Case("print-config", fit("--print_config"), WORKS),
        Case("surrogate-argument", fit("--name=\udcff"), EITHER),
        Case("validate-without-ckpt", ["validate", "--config=tiny.yaml"], EITHER),
        Case("test-without-anything", ["test"], ERROR),
        Case("unreadable-working-directory", fit("--runs=/proc/nowhere"), ERROR),
        Case("same-option-twice", fit("--data.batch_size=8", "--data.batch_size=0"), ERROR),
        Case("two-configs-one-broken", fit("--config=/dev/null"), EITHER),
        Case("config-from-descriptor", fit("--config=/dev/stdin"), EITHER),
        Case("list-with-hostile-modules", ["list"], WORKS, {"heads/evil.py": "raise SystemExit(3)\n"}),
    ]
    return found
