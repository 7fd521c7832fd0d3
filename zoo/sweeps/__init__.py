"""Hyper-parameter sweeps: axes, Optuna trials, and `zoo fit` child processes."""
