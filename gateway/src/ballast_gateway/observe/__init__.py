"""Observation: which endpoints there are (`files`, `pods`, `watch`) and the load that each reports (`scrape`).

`fleet` puts both together and turns them into the core's endpoint events.
"""
