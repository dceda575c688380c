"""The subcommands' options, one module a command. Their work is imported only when they run."""
