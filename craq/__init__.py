"""The replication protocol, pure: no socket, clock, file, thread or logger."""
