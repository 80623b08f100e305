"""What the gateway learns online: output lengths, step times, prefill times, cached prefixes, rates.

Pure, like all of the core: every update carries its time, and the same updates give the same beliefs. Beliefs are
learned only from what a gateway can see. With the simulator's engine they share no code but the step-time law of
`ballast_core.profiles`.
"""
