"""What the chaos experiment is made of: a schedule of faults, traffic, and what must be as before when all is over."""
