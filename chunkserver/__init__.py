"""A node's drives: I/O engines, chunk store, the chunk service, and the supervisor of the workers."""
