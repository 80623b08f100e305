"""A black-box conformance suite for endpoint pickers (EPP) of the Gateway API Inference Extension.

It plays the proxy's side of ext_proc and judges what any picker answers. It shares no code with Ballast's own picker,
so that a mistake there is not repeated here: `http2`, `hpack` and `grpc_call` carry the calls, `messages` and
`dialogue` are the protocol seen by a proxy, `cases` what is asked, `suite` asks it.
"""
