"""`headrace plan`: what to order for a cluster, before the cluster exists."""
