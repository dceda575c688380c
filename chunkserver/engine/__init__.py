"""The chunk store of one drive and the block I/O under it; knows nothing of chains, peers or clients."""
