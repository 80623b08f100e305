"""Misbehaviour by command: what a gateway may meet in a bad engine, on real sockets, and only where it is asked for.

`faults` says what there is, `choosing` which fault a request gets (both pure), `exchanges` what goes over the wire
then, `saboteur` stands in front of the honest server, and `control` is the HTTP route that switches it all.
"""
