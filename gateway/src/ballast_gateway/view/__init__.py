"""One view of the fleet in every gateway: what holders of streams and other gateways say, as events of the Director.

`book` makes one account of all that is said (pure: no sockets, times are given), `lines` judges one connection's
lines, `subscription` keeps that connection, `calls` asks holders for something, `publisher` tells the others what this
gateway has dispatched, `leading` says who moves and drains. docs/view.md has the whole.
"""
