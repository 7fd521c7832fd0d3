"""Experiments that ship with the zoo, by name."""

from __future__ import annotations

from pathlib import Path

from zoo.core.errors import UserError, did_you_mean


def shipped_folder() -> Path:
    """The folder of experiments: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "experiments"
    return inside if inside.is_dir() else package.parent / "experiments"


def shipped_experiments() -> dict[str, Path]:
    return {file.stem: file for file in sorted(shipped_folder().glob("*.yaml"))}


def find_experiment(name: str) -> Path:
    """Find an experiment by its path, or a shipped one by its name; an existing path takes precedence."""
    path = Path(name)
    if path.is_file():
        return path
    known = shipped_experiments()
    if name in known:
        return known[name]
    inside = shipped_folder().parent / path  # experiments/lsfa_eurlex.yaml, from any working directory
    if not path.is_absolute() and path.parts[:1] == ("experiments",) and inside.is_file():
        return inside
    if path.suffix or len(path.parts) > 1:
        raise UserError(f"no such configuration: {name}")
    raise UserError(f"no such experiment: {name}; {did_you_mean(name, list(known))}")
