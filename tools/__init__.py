"""The `esker` command: development cluster, benchmark, trace replay, trace generator."""
