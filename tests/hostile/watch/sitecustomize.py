"""Records what a process does outside its folder; Python imports this file at its start if it is on the path.

An audit hook appends lines to $HOSTILE_LOG: `write PATH` for changes outside the folders of $HOSTILE_FOLDERS, `connect
HOST` for connections to other machines, and `start PROGRAM` for new programs. Forked children keep the hook.
"""

import os
import sys

LOG, FOLDERS = "HOSTILE_LOG", "HOSTILE_FOLDERS"
LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "", None}
DEVICES = ("/dev/", "/proc/")  # nothing can be created there
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS = {"os.rename": (0, 1), "os.remove": (0,), "os.mkdir": (0,), "os.rmdir": (0,), "os.symlink": (1,)}
PATHS |= {"os.link": (1,), "os.truncate": (0,), "os.chmod": (0,), "shutil.rmtree": (0,)}
PROGRAMS = {"subprocess.Popen": 0, "os.system": 0, "os.exec": 0, "os.posix_spawn": 0}


def watch(log, folders):
    """Install the hook, which cannot be removed."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    inside = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)

    def record(what, value):
        os.write(target, f"{what} {value}\n".encode(errors="replace"))

    def check_path(path):
        if isinstance(path, int) or path is None:
            return
        place = os.path.realpath(os.fsdecode(path))
        if not os.path.join(place, "").startswith(inside) and not place.startswith(DEVICES):
            record("write", place)

    def hook(event, args):
        if event == "open":
            path, mode, flags = args
            if (isinstance(flags, int) and flags & WRITING) or (isinstance(mode, str) and set(mode) & set("wax+")):
                check_path(path)
        elif event in PATHS and not (event == "os.mkdir" and os.path.isdir(args[0])):
            for position in PATHS[event]:
                check_path(args[position])
        elif event in PROGRAMS:
            record("start", args[PROGRAMS[event]])
        elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in LOCAL:
            record("connect", args[1][0])
        elif event == "socket.getaddrinfo" and args[0] not in LOCAL:
            record("connect", args[0])

    sys.addaudithook(hook)


if LOG in os.environ:
    watch(os.environ[LOG], os.environ[FOLDERS].split(os.pathsep))
