"""The storage client: routing cache, buffer pool, chunk reads and writes over chains."""
