"""Every trainer of the literature on one bench: rules for one update, loops that follow them, and a table."""
