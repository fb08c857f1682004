"""Example settings: `minilm.yaml` (the default of `headrace serve`) and `device.yaml`."""
