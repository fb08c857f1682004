"""Whether the nodes of a cluster can serve: what each has, checked before."""
