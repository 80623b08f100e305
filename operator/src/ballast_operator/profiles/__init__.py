"""How fast engines really are: what gateways have learned, against what HardwareProfiles declare."""
