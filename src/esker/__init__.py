"""esker: an SSD-backed distributed KV-cache and storage layer for LLM inference."""

__version__ = "0.1.0"
