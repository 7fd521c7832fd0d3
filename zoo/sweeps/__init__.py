"""Many runs: sweeps over settings with Optuna, tables of papers, and their `zoo fit` child processes."""
