"""The user's data as one tensor and back: tables, images, players, and the model as a function of tensors."""
