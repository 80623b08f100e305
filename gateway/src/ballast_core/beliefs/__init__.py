"""What the gateway believes and learns online: output lengths, step times, prefill times, cached prefixes, rates.

Pure, like all of the core: every update carries its time, and the same updates give the same beliefs. Beliefs are
made of what a gateway can see; they share no code with the simulator's engine, only the step-time law of
`ballast_core.profiles`. Who may import this: the Director's side of the core, the gateway and the simulator.
"""
