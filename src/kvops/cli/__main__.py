"""`python -m kvops.cli`, the same as the `kvops` command."""

from kvops.cli.entry import run

if __name__ == "__main__":
    run()
