"""The Director and its parts: they turn events into effects, call the policies, book their choices and keep timers."""
