"""Pure array functions: attention, loss, norms, rotary positions."""
