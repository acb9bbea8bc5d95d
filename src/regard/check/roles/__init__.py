"""What every axis of every tensor of a trace is: found by influence, not by names."""
