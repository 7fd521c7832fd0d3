"""A stand-in for `zoo fit` that takes a moment, and a process that runs a sweep of it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

STAND_IN = """
import json, os, signal, sys, time

options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
if "--print_config" in sys.argv:
    sys.exit("error: key 'wrong' is not accepted" if "wrong" in options else 0)
notes = os.environ["NOTES"]
if "stubborn" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(notes + "/starts", "a") as file:
    file.write(os.path.basename(options["runs"]) + "/" + options["name"] + "\\\\n")
count = len(open(notes + "/starts").readlines())
x = json.loads(options.get("x", "0"))
if options.get("fail") == str(x) and not os.path.exists(notes + "/mended"):
    sys.exit("Traceback\\\\nValueError: x is not to my taste")
place = os.path.join(options["runs"], options["name"], "2026-01-01_00-00-00")
os.makedirs(place, exist_ok=True)
table = place + "/metrics.csv"
if not os.path.exists(table):
    with open(table, "w") as file:
        file.write("epoch,stage,step," + options.get("column", "val/nDCG@5") + "\\\\n,0,0,\\\\n")
for epoch in range(len(open(table).readlines()) - 2, int(options.get("epochs", 2))):
    value = 1 - (x - 3) ** 2 / 100 + 0.001 * int(options["seed_everything"]) + 0.01 * epoch
    with open(table, "a") as file:
        file.write(f"{epoch},,{epoch},{value}\\\\n")
    while count == int(options.get("hold", 0)) and not os.path.exists(notes + "/released"):
        time.sleep(0.02)
    time.sleep(float(options.get("pause", 0)))
with open(place + "/config.yaml", "w") as file:
    json.dump({"x": x}, file)
facts = {"experiment": options["name"], "data": "none", "metrics": {"P@1": 0.5}}
with open(place + "/metrics.json", "w") as file:
    json.dump(facts, file)
""".replace("\\\\n", "\\n")

DRIVER = """
import sys, types
import zoo.sweeps.children
import zoo.sweeps.trials
from zoo.core.console import terminal_output
from zoo.commands.sweep import run_sweep
from zoo.commands.verbs import one_line_errors

zoo.sweeps.children.POLL_SECONDS = 0.05
zoo.sweeps.children.STOP_SECONDS = 0.5
zoo.sweeps.trials.RETRY_SECONDS = 0.01
stand_in, *argv = sys.argv[1:]
def compare(runs, by, partial):
    print("compared", len(runs), by)

sys.modules["zoo.commands.compare"] = types.SimpleNamespace(compare=compare)
with terminal_output(), one_line_errors():
    run_sweep(argv, [sys.executable, "-I", "-S", stand_in])
"""


class Sweeps:
    """Sweeps in a folder of their own, of a stand-in whose starts are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stand_in.py").write_text(STAND_IN)
        (folder / "driver.py").write_text(DRIVER)
        (folder / "exp.yaml").write_text("data: {class_path: Sample}\n")

    def start(self, *args: str, out: str = "out") -> subprocess.Popen[str]:
        own = ["--config", "exp.yaml", f"--out={out}"] if "--sweep" not in args else [f"--out={out}"]
        command = [sys.executable, "driver.py", "stand_in.py", *own, *args]
        environment = os.environ | {"NOTES": str(self.folder), "PYTHONPATH": str(Path(__file__).parents[2])}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, **pipes)

    def run(self, *args: str, out: str = "out", code: int = 0) -> tuple[str, str]:
        """What a sweep says, on stdout and on stderr."""
        sweep = self.start(*args, out=out)
        said = sweep.communicate(timeout=60)
        assert sweep.returncode == code, said
        return said

    def cut(self, *args: str, starts: int, out: str = "out") -> None:
        """A sweep that is killed when so many children have been started, the last of which waits for release."""
        sweep = self.start(*args, f"--hold={starts}", out=out)
        self.wait_for_starts(starts)
        time.sleep(0.2)
        sweep.kill()
        sweep.communicate()

    def wait_for_starts(self, number: int) -> None:
        end = time.monotonic() + 30
        while len(self.starts()) < number:
            assert time.monotonic() < end, "no child was started"
            time.sleep(0.02)

    def release(self) -> None:
        (self.folder / "released").touch()

    def starts(self) -> list[str]:
        """`seed0/NAME` of each run that was started."""
        file = self.folder / "starts"
        return file.read_text().split() if file.exists() else []

    def table(self, out: str = "out") -> list[list[str]]:
        """Rows of `trials.csv`."""
        return list(csv.reader((self.folder / out / "trials.csv").open(newline="")))[1:]
