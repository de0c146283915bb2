"""Learning: objectives, the gradient that is followed, quasi-Newton rounds, guards, and the loop itself."""
