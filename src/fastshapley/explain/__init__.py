"""From a fitted explainer's values to better ones: corrections by evaluations of the game or calls of the model."""
