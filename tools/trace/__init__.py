"""KV-cache request traces in Mooncake's format: reading, figures, generation."""
