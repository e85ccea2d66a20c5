"""What `gputrace check` finds, and that it finds nothing else."""
