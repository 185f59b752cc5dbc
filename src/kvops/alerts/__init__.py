"""Alerts: rules over the readings of a snapshot, their states, and who is told. Imports no torch and no HTTP server."""
