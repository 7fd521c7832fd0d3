"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("xmc-zoo")
except PackageNotFoundError:  # a checkout on PYTHONPATH
    __version__ = "0.0.0+unknown"
