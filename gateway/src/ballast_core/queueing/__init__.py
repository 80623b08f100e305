"""In which order requests wait: queue orders, admission, and the waiting room of the gateway."""
