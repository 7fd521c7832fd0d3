"""Short help of `zoo fit`, `validate` and `test`: the most used options; `--help_all` describes all of them."""

from __future__ import annotations

from zoo.commands.usage import listing, page, section

OPTION_COLUMN = 30
EXPERIMENT = {
    "--config NAME|FILE": "experiment: a name from `zoo list`, or a YAML file; can be repeated, later files win",
    "--ckpt FILE": "checkpoint; its model and data settings are the defaults",
    "--data CLASS": "corpus, such as Reuters or TextFiles",
    "--data.SETTING VALUE": "setting of the corpus, such as --data.batch_size 32 or --data.max_length 300",
    "--model.backbone CLASS": "text encoder, such as BiLSTM; its settings: --model.backbone.hidden 256",
    "--model.head CLASS": "classification head, such as Linear; its settings: --model.head.SETTING VALUE",
    "--trainer.SETTING VALUE": "setting of Lightning's Trainer, such as --trainer.accelerator gpu",
    "--seed_everything N": "random seed (default: 0)",
}
FIT = {
    "--model.optimizer.lr X": "learning rate",
    "--stages.NAME.SETTING VALUE": "setting of a training stage, such as --stages.finetune.epochs 2",
    "--budget TIME": "time that --config best may plan with, such as 10m (default: 30m)",
    "--from_stage NAME": "start at this stage, from the weights of --ckpt",
    "--ckpt_path last": "resume the latest run of this experiment",
    "--final_test BOOL": "test the best checkpoint after training (default: true)",
    "--runs DIR": "folder of all runs (default: runs)",
    "--name NAME": "name of the run (default: the name of the experiment)",
    "--wandb.mode MODE": "Weights & Biases: online, offline or disabled",
}
MORE = {
    "--model.head.help CLASS": "describe the settings of a class; also --data.help and --model.backbone.help",
    "--trust MODULE": "module outside the zoo with classes that --ckpt may use; can be repeated",
    "--print_config": "print the complete configuration and exit",
    "--help_all": "describe all options",
    "-h, --help": "show this help and exit",
}
EXAMPLES = {
    "fit": (
        "zoo fit --config lsfa_eurlex",
        "zoo fit --config lsfa_eurlex --seed_everything 1 --data.batch_size 32",
        "zoo fit --config lsfa_eurlex --ckpt_path last",
    ),
    "validate": ("zoo validate --ckpt runs/lsfa_eurlex/RUN/checkpoints/best.ckpt",),
    "test": ("zoo test --ckpt runs/lsfa_eurlex/RUN/checkpoints/best.ckpt",),
}


def training_help(command: str, summary: str) -> str:
    required = "--config NAME|FILE" if command == "fit" else "--ckpt FILE"
    return page(
        f"usage: zoo {command} {required} [options]",
        f"{summary[0].upper()}{summary[1:]}.",
        section("experiment", EXPERIMENT, OPTION_COLUMN),
        section("training", FIT if command == "fit" else {}, OPTION_COLUMN),
        section("more", MORE, OPTION_COLUMN),
        listing("examples", EXAMPLES[command]),
    )
