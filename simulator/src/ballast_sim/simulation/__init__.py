"""A fleet of engines on one virtual clock, driven by the very Director that the gateway runs.

Policies see scraped, delayed observations and what passes through their own gateway; never an engine's state. The
wings, from what a run is given up to its report (each imports only those before it; `make lint` checks it):

`kernel` the heap; `inputs` what a run is given; `policies` what it compares; `requests` what becomes of each request;
`world` the engines and their links; `gateways` a Director each; `fleet` one run; `figures` what it comes to; `runs`
one run or many, from description to figures; `capacity` the rate that a fleet sustains; `report` the HTML page.
"""
