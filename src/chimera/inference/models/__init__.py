"""What answers queries: models of Hugging Face, of Chimera, of scikit-learn, and of the user's own code."""
