"""Ordered transactional key-value stores with FoundationDB's semantics, behind one interface."""
