"""The TensorRT backend: functions as graphs that its ONNX parser takes, with profiles out of a recipe's shapes."""
