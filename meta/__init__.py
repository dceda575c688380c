"""Cluster metadata: transactions, key layouts, membership, namespaces, block catalog, and their server."""
