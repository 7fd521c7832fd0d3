"""Memory of preparation does not grow with the documents, except for a few bytes each."""

import json
import subprocess
import sys

import pytest

SMALL, LARGE = 12_000, 60_000
MEGABYTES = 25  # tolerance for the allocator; the texts of the additional documents alone take 33

MEASURE = """
import json, sys, threading
from pathlib import Path
from datamodules.prepare.corpus import Corpus
from datamodules.prepare.preparation import Settings, prepare
from datamodules.prepare.readers import Document


class Generated:
    def __init__(self, size):
        self.size = size

    def read(self, progress):
        for number in range(self.size):
            words = " ".join(f"w{number * step % 1999:0139d}" for step in range(1, 6))  # long words are quick to index
            yield Document(f"document {number}", words, [str(number % 50)])

    def fingerprint(self):
        return str(self.size)

    def report(self):
        return []


def peak(size):
    highest, ended = 0, threading.Event()

    def watch():
        nonlocal highest
        while not ended.wait(0.005):
            highest = max(highest, int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    prepare(Corpus("generated", {"train": Generated(size)}), Settings(max_words=2000), Path(sys.argv[1]))
    ended.set()
    thread.join()
    return highest / 1024


print(json.dumps([peak(int(size)) for size in sys.argv[2:]]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.usefixtures("clean_environment")
def test_five_times_the_documents_need_no_more_memory(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(SMALL), str(LARGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    small, large = json.loads(done.stdout)
    assert large < small + MEGABYTES, (small, large)
