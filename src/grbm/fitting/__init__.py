"""A learned density: its recipe, its start, learning to the end, what it is asked; the scikit-learn estimator."""
