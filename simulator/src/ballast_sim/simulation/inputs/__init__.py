"""What a run is given: machines, requests, thresholds, failures and settings. Read from text and checked here."""
