"""gputrace in pytest: tests as spans of a trace, and GPU times held to a baseline. Entry point: `plugin`."""
