"""Node settings: their schema and where each value came from."""
