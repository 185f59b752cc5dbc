"""`python -m kvops.cli`, the same as the `kvops` command."""

from kvops.cli.main import run

if __name__ == "__main__":
    run()
