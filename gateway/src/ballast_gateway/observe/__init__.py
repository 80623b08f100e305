"""Observation: which endpoints there are (`files`, `pods`, `watch`) and what each says of itself (`scrape`).

Everything meets in `fleet`, which turns it into the core's endpoint events.
"""
