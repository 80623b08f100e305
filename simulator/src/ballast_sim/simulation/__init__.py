"""A fleet of engines on one virtual clock, driven by the very Director that the gateway runs.

Policies see scraped, delayed observations and what passes through their own gateway; never an engine's state. The
wings, from the inputs of a run to its report (each imports only those before it; `make lint` checks this):

`kernel` the event heap; `inputs` what a run is given; `policies` what it compares; `requests` the record of each
request; `world` the engines and their links; `gateways` a Director each; `fleet` one run; `figures` its results; `runs`
one run or many, from description to figures; `capacity` the rate that a fleet sustains; `report` the HTML page.
"""
