"""What is in the fleet and in flight: endpoints, the ledger, planned micro-requests, and a policy's view of them."""
