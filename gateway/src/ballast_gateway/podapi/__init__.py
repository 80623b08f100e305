"""The pod API: how the holders of clients' streams and the pickers speak to each other (docs/pod-api.md).

`plan` is what a picker writes into a request, `messages` what passes on the pod API, `auth` how both prove themselves.
Nothing here knows sockets.
"""
