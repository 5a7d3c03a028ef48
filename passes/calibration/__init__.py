"""How weights are rounded for the inputs that they see: texts, importance, algorithms, channels."""
