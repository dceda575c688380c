"""What every process needs: logging, counters, sizes, signals, host identity, the start-up self-check."""
