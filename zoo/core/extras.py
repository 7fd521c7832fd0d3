"""Optional dependencies."""

from __future__ import annotations

from importlib.util import find_spec

from zoo.core.errors import UserError

EXTRAS = {
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "linear": ("omikuji", "liblinear", "sklearn"),
    "report": ("matplotlib", "sklearn"),
    "search": ("hnswlib",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "sweep": ("optuna",),
}


def is_installed(extra: str) -> bool:
    return all(find_spec(name) for name in EXTRAS[extra])


def require_extra(extra: str, what: str) -> None:
    """Raise an error if a library of an extra, which `what` needs, is not installed."""
    if missing := [name for name in EXTRAS[extra] if find_spec(name) is None]:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'xmc-zoo[{extra}]'")


def missing_extra(error: ImportError, extra: str) -> UserError:
    """Make the error for a library of an extra that cannot be imported."""
    return UserError(f"the library {error.name} is missing: pip install 'xmc-zoo[{extra}]'")
