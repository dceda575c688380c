"""What two processes must agree on: ids, limits, types, messages, framing, placement and RPC."""
