"""One run on the virtual clock: requests through gateways and engines, moves between engines, failures."""
