"""The command line: one module a subcommand, each with one `command`, none knowing another."""
