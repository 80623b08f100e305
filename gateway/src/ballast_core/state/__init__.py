"""The fleet and the requests in flight: inventory, ledger, the book of planned micro-requests, and policies' views."""
