"""`headrace cluster status | why | logs`: a release's pods, and what they wait for."""
