"""Several processes of one gateway: `supervisor` starts them and starts dead ones again, `process` is one of them,
`admin` answers for all. They share ports (SO_REUSEPORT) and nothing else.
"""
