"""The pod API: how the holders of clients' streams and the pickers speak to each other (docs/pod-api.md).

`plan` is what a picker writes into a request, `messages` what passes on the pod API, `auth` how both prove themselves;
`rows` is what a holder says of what it holds. None of these knows sockets. `feed` passes lines on to those who listen,
and `server` is the listener.
"""
