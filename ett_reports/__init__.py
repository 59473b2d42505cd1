"""The metric: how much of a training job's wall time moved it forward, and who owns the rest."""
