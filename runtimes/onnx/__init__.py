"""Builds, reads, inspects and quantises models as ONNX graphs."""
