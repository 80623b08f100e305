"""What is said of resources: conditions, figures, Events. Pure."""
