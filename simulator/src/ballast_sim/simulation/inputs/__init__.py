"""The inputs of a run: machines, requests, thresholds, failures and settings. Read from text and checked here."""
