"""The command line: one small file a command group. Heavy imports happen inside the commands."""
