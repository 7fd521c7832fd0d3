import os
import sys

# `python -m` puts the working folder first, where a file may have the name of a library: see SECURITY.md.
CHECKOUT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]) and os.path.realpath(os.getcwd()) != CHECKOUT:
    del sys.path[0]

from zoo.commands.main import main  # noqa: E402

if __name__ == "__main__":
    main()
