"""The file of API keys: its rows, the changes an operator makes to it, and nothing that could give a key back."""
