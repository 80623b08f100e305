"""Events in, effects out: who asks the policies, books their answers and keeps the clock of timers."""
