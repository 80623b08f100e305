"""Hardware profiles from data: public tables, step logs, benchmark files, metrics scrapes (docs/profiles/fit.md)."""
