"""What every process needs: configuration, logging, counters, deadlines, signals."""
