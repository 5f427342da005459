"""What stands around the cells of a notebook: its data, what it prints, what this machine can run."""
