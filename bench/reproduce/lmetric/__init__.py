"""LMetric: prefill tokens times batch size, lowest wins."""
