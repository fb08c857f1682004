"""OpenVINO, on processors."""
