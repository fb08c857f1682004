"""`headrace plan`: what to ask a cluster for before there is one."""
