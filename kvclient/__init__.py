"""The KV-cache client: prefix-keyed blocks, get, put, match_prefix."""
