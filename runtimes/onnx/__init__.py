"""Models as ONNX files: made, read, looked into and quantized."""
