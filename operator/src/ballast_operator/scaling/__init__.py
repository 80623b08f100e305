"""What decisions on instances go by, and what is kept of them."""
