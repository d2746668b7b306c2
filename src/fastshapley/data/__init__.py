"""The user's data as one tensor: tables, images, their players, and the user's model as a function of tensors."""
