"""The LightningModule, metrics, optimizers, checkpoints, loggers and inference."""
