"""Pictures of timelines: each bar is where its slice was."""
