"""The gate: checks that a node does what its operator was promised, with a verdict and an exit code."""
