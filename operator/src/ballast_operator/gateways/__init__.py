"""What gateways are asked, and what they answer."""
