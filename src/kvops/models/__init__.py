"""Models: what they are, how they are fetched, checked and read. Imports no torch and no code from a model."""
