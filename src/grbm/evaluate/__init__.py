"""Worth of a trained model: exact answers where they exist, and the 2-D mixtures' scores."""
