"""What breaks when engines, clients and the gateway itself do: each row of docs/reliability/ by one command.

`python -m bench.reliability NAME [--ballast PATH]` runs one module of `experiments/` on processes: `ballast gateway` of
this checkout or of another installation, engine-sims that misbehave by command, and clients that check every token.
"""
