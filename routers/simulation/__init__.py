"""The real core on virtual time, against modelled replicas."""
