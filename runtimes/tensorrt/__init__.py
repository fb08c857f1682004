"""TensorRT engines, built for this GPU and kept."""
