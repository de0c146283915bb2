"""What a trained model is worth: exact answers where they exist, and the 2-D mixtures' scores."""
